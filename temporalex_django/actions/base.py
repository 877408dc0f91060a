"""What every operation on runs has in common: who acts, may he, the audit row, the Django signal and the log line.

One operation is one class in a file of its own. The client, the admin, REST, pages and commands all call these, so they
cannot disagree. ``user=None`` means code, which may do everything; about a person the access policy is asked, with the
model permission that the class names. Only messages that code sends in somebody's name (``handle.update(...,
by=user)``) do without it: the handler says who may send them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from django.db import DatabaseError, connections
from django.utils import timezone

from temporalex_django import access, signals
from temporalex_django.actions import audit
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.conf import get_settings
from temporalex_django.core import current, payloads
from temporalex_django.core.senders import Sender
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPermitted, NestingError, UpdateTimeout
from temporalex_django.models import Instance, OperatorAction

logger = logging.getLogger("temporalex_django.actions")

T = TypeVar("T")

#: Operations by name, as far as their modules were imported; ``actions.registry`` has all of them.
registry: dict[str, type[Action[Any]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who does it, and through which face: admin, rest, pages, command or code. ``user`` None is code.

    ``program``: a machine speaks for the user, with a token, say. ``account``: of the operating system, whoever ran a
    command; what code does under one is audited, too. ``job``: the id of the bulk job as part of which it is done.
    """

    user: Person | None = None
    source: str = "code"
    address: str | None = None
    program: bool = False
    request_id: str = ""
    account: str = ""
    job: str = ""

    @property
    def sender(self) -> Sender | None:
        """What travels with a message."""
        return authorization.sender_of(self.user)


CODE = Actor()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSubject:
    """The run that an action was about, for audit, signal and log; no run: none of them in particular."""

    run_id: str | None
    workflow: str
    workflow_id: str


def storage() -> DjangoStorage:
    """The tables, on the connection of the calling thread."""
    return DjangoStorage()


class Action(ABC, Generic[T]):
    """Base of all operations. ``execute()`` checks, acts and tells; ``perform()`` is what a subclass does.

    ``name`` is what the audit calls it; ``forced`` actions are audited even when code does them. ``authorized_by_run``:
    it sends a message, of which the run itself says who may send it. ``is_routine``: programs do it all day, so that
    the audit keeps theirs apart from what people did.
    """

    name: ClassVar[str]
    permission: ClassVar[str]
    forced: ClassVar[bool] = False
    authorized_by_run: ClassVar[bool] = False
    is_routine: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):  # the second way to cancel is found under the name of the first
            registry.setdefault(cls.name, cls)

    def __init__(self, *, by: Actor = CODE) -> None:
        self.by = by
        self.storage = storage()

    def execute(self) -> T:
        """Raises ``ActionNotPermitted`` before anything is read or written, and what ``perform`` raises."""
        with self.audit_denials():
            self.check()
            return self.perform()

    @contextmanager
    def translate_busy(self, label: str) -> Iterator[None]:
        """Raise ``UpdateTimeout`` (code ``busy``) where the database had no lock to give in time: nothing was done.

        Inside the caller's own transaction the error of the database goes through: that transaction is broken.
        """
        try:
            yield
        except DatabaseError as exc:
            if connections[self.storage.alias].in_atomic_block or not self.storage.is_transient(exc):
                raise
            raise UpdateTimeout(
                f"{self.name} of {label}: the database is busy, nothing was done; try again", code="busy"
            ) from exc

    @contextmanager
    def audit_denials(self) -> Iterator[None]:
        """What a person may not do is audited, when it is rolled back."""
        try:
            yield
        except ActionNotPermitted as exc:
            context = {"workflow": self.workflow_name or "", "message": self.message_name or ""}
            audit.record_denial(self.by, self.name, str(exc), run=self.row, **context)
            raise

    @abstractmethod
    def perform(self) -> T: ...

    def check(self) -> None:
        """Raises ``ActionNotPermitted``, ``WorkflowNotFound`` for a run that there is not for him.

        And ``NestingError`` inside workflow code.
        """
        refuse_inside_workflow(self.name)
        for operation in self.permission_requests if self.by.user is not None else ():
            access.require_access(self.by.user, operation, alias=self.storage.alias, run=self.row)

    @property
    def permission_requests(self) -> Sequence[access.Operation]:
        """Everything that the access policy is asked about; it has to allow each."""
        return (self.permission_request,)

    @property
    def permission_request(self) -> access.Operation:
        """What the access policy is asked about."""
        is_exempt = self.authorized_by_run and self.by.source == CODE.source
        permission = None if is_exempt else f"{APP}.{self.permission}"
        return access.Operation(
            action=self.name, permission=permission, workflow=self.workflow_name, message=self.message_name
        )

    @property
    def row(self) -> Instance | None:
        """The run that it is about; None for a start."""
        return None

    @property
    def workflow_name(self) -> str | None:
        """The name of the class."""
        return None if self.row is None else self.row.workflow

    @property
    def message_name(self) -> str | None:
        """The name of the message."""
        return None

    # -- what happened ------------------------------------------------------------------------------------------------

    @property
    def is_audited(self) -> bool:
        return self.forced or self.by.user is not None or bool(self.by.account)

    @property
    def is_automatic(self) -> bool:
        if self.by.user is None:
            return self.by.source == CODE.source
        return self.is_routine and self.by.program

    def audit_transaction(self) -> AbstractContextManager[None]:
        """A transaction when there is an audit row to write beside the message; one INSERT alone needs none.

        Unless it waits for a writer lock, which a transaction of the storage gets sooner.
        """
        needs_writer_lock = self.storage.sql.writer_lock and not connections[self.storage.alias].in_atomic_block
        return self.storage.transaction() if self.is_audited or needs_writer_lock else nullcontext()

    def record(self, subject: AuditSubject, *, reason: str = "", **details: Any) -> None:
        """Write the audit row in the open transaction; after the commit send ``operator_acted`` and log.

        Never payloads.

        An ordinary message from code leaves a log line alone: it is in the history.
        """
        if self.is_audited or logger.isEnabledFor(logging.DEBUG):
            self.storage.on_commit(lambda: self._announce(subject, reason))
        if not self.is_audited:
            return
        OperatorAction.objects.using(self.storage.alias).create(
            at=timezone.now(),
            action=self.name,
            run_id=subject.run_id,
            workflow=subject.workflow,
            workflow_id=subject.workflow_id,
            reason=reason,
            forced=self.forced,
            automatic=self.is_automatic,
            details={**details, **audit.job_details(self.by)},
            **audit.actor_columns(self.by),
        )
        # what applications send all day in the names of their users is no administration
        is_stored_user = getattr(self.by.user, "pk", None) is not None
        if subject.run_id is not None and is_stored_user and not (self.is_routine and self.by.source == CODE.source):
            audit.add_admin_log_entry(
                self.by, self.name, subject.run_id, f"{subject.workflow} {subject.workflow_id}", reason
            )

    def _announce(self, subject: AuditSubject, reason: str) -> None:
        ids = {"run_id": subject.run_id, "workflow": subject.workflow, "workflow_id": subject.workflow_id}
        logger.log(
            logging.INFO if self.is_audited else logging.DEBUG,
            "%s%s by %s",
            self.name,
            f" of {subject.workflow} {subject.workflow_id}" if subject.workflow else "",
            (self.by.account or self.by.source)
            if self.by.user is None
            else f"user {getattr(self.by.user, 'pk', None)} ({self.by.source})",
            extra={**ids, "action": self.name},
        )
        if self.is_audited:
            sender = workflows.signal_sender(subject.workflow)
            signals.send("operator_acted", sender, **ids, action=self.name, actor=self.by.user, reason=reason)


def refuse_inside_workflow(operation: str) -> None:
    """Raises ``NestingError``: workflow code has primitives of its own for all this, which replay."""
    if current.is_inside_workflow():
        raise NestingError(
            f"{operation} through a handle inside workflow code: use api.signal_external, api.cancel_external or api.child, or do it in "
            "an activity"
        )


def to_plain_payload(value: Any, *, label: str) -> Any:
    """``value`` as it will be stored.

    Raises ``PayloadError`` with the path of what cannot be encoded, or for one too large.
    """
    return payloads.to_plain(value, label=label, limit=get_settings().MAX_PAYLOAD_BYTES)
