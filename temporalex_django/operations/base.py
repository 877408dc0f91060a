"""Base of all operations: access checks, the audit row, the Django signal and the log line.

Each operation is one class in a file of its own. The client, the admin, REST, pages and commands all call these
classes, so they cannot differ (see decision 36).

``user=None`` means code, which may do anything. For a person the access policy is asked, with the model permission
that the class names. Messages that code sends in the name of a user (``handle.update(..., by=user)``) are the one
exception: their handler says who may send them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections
from django.utils import timezone

from temporalex_django import access, signals
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person, check_person
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject, RunBackend
from temporalex_django.conf import get_settings
from temporalex_django.core import current
from temporalex_django.core.messages.sender import Headers, Sender, check_headers
from temporalex_django.core.payloads import codec
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPermitted, NestingError, UpdateTimeout
from temporalex_django.interceptors import ClientCall
from temporalex_django.interceptors.chain import around, chain
from temporalex_django.models import Instance, OperatorAction
from temporalex_django.operations import audit

logger = logging.getLogger("temporalex_django.operations")

T = TypeVar("T")

#: Operations by name, as far as their modules have been imported; ``operations.registry`` contains all of them.
registry: dict[str, type[Action[Any]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The user, program or code that performs an operation, and the interface that it uses.

    ``user`` is None for code. ``source`` is the interface: admin, rest, pages, command or code. ``address`` is the IP
    address of the client, and ``request_id`` the id of its HTTP request. ``program`` is True if a machine acts for the
    user, for example with a token. ``account`` is the account of the operating system that ran a command; operations of
    code under an account are audited too. ``job`` is the id of the bulk job that the operation is part of.
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
        """The key and the name of the user, which are stored with each message that they send; None for code."""
        return None if self.user is None else authorization.sender_of(self.user)


CODE = Actor()


def actor_for(by: object) -> Actor:
    """Return the actor for a user whom code names; None is ``CODE``. Raises ``ActionNotPermitted`` for others."""
    return CODE if by is None else Actor(user=check_person(by))


def storage() -> DjangoStorage:
    """Return the storage through which operations read and write runs.

    It uses the database connection of the calling thread. The current host creates it; see ``backends.host``.
    """
    return host().storage()


class Action(ABC, Generic[T]):
    """Base class of all operations.

    ``execute()`` checks access, performs the operation and records it. A subclass implements ``perform()``.

    - ``name``: the name of the operation in the audit log.
    - ``permission``: the code name of the model permission that a user needs.
    - ``forced``: True if the operation is audited even when code performs it.
    - ``authorized_by_run``: True for a message whose handler says who may send it, when code sends it for a user.
    - ``is_routine``: True for an operation that programs perform all day; their audit rows are marked as automatic.
    - ``headers``: the checked headers of the start or the message that it sends, or None.
    """

    name: ClassVar[str]
    permission: ClassVar[str]
    forced: ClassVar[bool] = False
    authorized_by_run: ClassVar[bool] = False
    is_routine: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Only classes with a name of their own: a subclass that inherits one must not replace the class that declares
        # it.
        if "name" in vars(cls):
            registry.setdefault(cls.name, cls)

    def __init__(self, *, by: Actor = CODE) -> None:
        self.by = by
        self.storage = storage()
        self.headers: Headers | None = None

    def execute(self) -> T:
        """Check access, perform the operation and return its result.

        Raises ``ActionNotPermitted`` before anything is written, and whatever ``perform`` raises. The audit log records
        a refusal.
        """
        with self.client_call():
            with self.audit_denials():
                self.check()
                result = self.perform() if self.remote is None else self.perform_remotely()
            self.flush()
        return result

    def flush(self) -> None:
        """Send what ``perform`` has stored for another system; ``execute`` calls this when its transaction is over."""

    async def aexecute(self) -> T:
        """Execute the operation from async code, and return its result.

        ``execute`` runs in the thread that asgiref keeps for Django.
        """
        return await sync_to_async(self.execute)()

    def client_call(self) -> AbstractContextManager[None]:
        """Return the context manager in which to perform the operation.

        It runs the hooks ``client_call`` of interceptors, which may change ``headers``. Raises ``InvalidHeaders`` if
        they leave invalid ones.
        """
        return self._intercepted() if chain.client_call else nullcontext()

    @contextmanager
    def _intercepted(self) -> Iterator[None]:
        call = ClientCall(
            operation=self.name,
            source=self.by.source,
            workflow=self.workflow_name,
            message=self.message_name,
            headers=dict(self.headers or {}),
            **self._run_ids(),
        )
        with around(chain.client_call, call, keeps_errors=True):
            self.headers = check_headers(call.headers, label=f"{self.name} with interceptors")
            yield

    def _run_ids(self) -> dict[str, str | None]:
        """Return the ids of the run that the operation is about, as far as they are known."""
        return {}

    @contextmanager
    def translate_busy(self, label: str) -> Iterator[None]:
        """Turn a database error of the block into ``UpdateTimeout`` (code ``busy``) if a lock was not free in time.

        The transaction of the block has been rolled back then. ``label`` names the run or task in the message. Inside
        the caller's own transaction the database error propagates, because that transaction is broken.
        """
        try:
            yield
        except DatabaseError as exc:
            if connections[self.storage.alias].in_atomic_block or not self.storage.is_transient(exc):
                raise
            raise UpdateTimeout(
                f"{self.name} of {label}: the database is busy. Nothing was done; try again", code="busy"
            ) from exc

    @contextmanager
    def audit_denials(self) -> Iterator[None]:
        """Record an ``ActionNotPermitted`` that the block raises as a refusal in the audit log, and raise it again.

        Put it around the transaction of the operation and not inside, so that the row survives the rollback.
        """
        try:
            yield
        except ActionNotPermitted as exc:
            context = {"workflow": self.workflow_name or "", "message": self.message_name or ""}
            audit.record_denial(self.by, self.name, str(exc), run=self.row, **context)
            raise

    @property
    def remote(self) -> RunBackend | None:
        """The backend that stores the run of the operation outside of the tables; None on the tables."""
        return None

    @abstractmethod
    def perform(self) -> T: ...

    def perform_remotely(self) -> T:
        """Perform the operation on a run that ``remote`` stores."""
        return self.perform()

    def check(self) -> None:
        """Raise ``ActionNotPermitted`` unless the access policy allows the operation.

        Raises ``WorkflowNotFound`` for a run that the access policy hides from the user, and ``NestingError`` inside
        workflow code.
        """
        refuse_inside_workflow(self.name)
        for operation in self.permission_requests if self.by.user is not None else ():
            access.require_access(self.by.user, operation, alias=self.storage.alias, run=self.row)

    @property
    def permission_requests(self) -> Sequence[access.Operation]:
        """The operations about which the access policy is asked; it has to allow all of them."""
        return (self.permission_request,)

    @property
    def permission_request(self) -> access.Operation:
        """The operation about which the access policy is asked, with its permission, class and message."""
        # Who may send a message is judged when it is delivered, not when it is sent (see decision 37).
        is_exempt = self.authorized_by_run and self.by.source == CODE.source
        permission = None
        if not is_exempt:
            permission = f"{APP}.{self.permission}"
        return access.Operation(
            action=self.name, permission=permission, workflow=self.workflow_name, message=self.message_name
        )

    @property
    def row(self) -> Instance | None:
        """The run that the operation is about; None if it is about no existing run, such as a start."""
        return None

    @property
    def workflow_name(self) -> str | None:
        """The name of the workflow class, or None if the operation is about no class."""
        if self.row is None:
            return None
        return self.row.workflow

    @property
    def message_name(self) -> str | None:
        """The name of the signal, update, query or event, or None if the operation sends none."""
        return None

    # -- the audit log ------------------------------------------------------------------------------------------------

    @property
    def is_audited(self) -> bool:
        return self.forced or self.by.user is not None or bool(self.by.account)

    @property
    def is_automatic(self) -> bool:
        if self.by.user is None:
            return self.by.source == CODE.source
        return self.is_routine and self.by.program

    def audit_transaction(self) -> AbstractContextManager[None]:
        """Return the context manager in which an operation inserts its message: a transaction, if one is needed.

        An audit row commits together with its message. Without an audit row the INSERT is the only statement, and needs
        no transaction. On a database with a writer lock (SQLite), a transaction is opened in any case, because it gets
        that lock sooner.
        """
        needs_writer_lock = self.storage.sql.writer_lock and not connections[self.storage.alias].in_atomic_block
        if self.is_audited or needs_writer_lock:
            return self.storage.transaction()
        return nullcontext()

    def record(self, subject: AuditSubject, *, reason: str = "", **details: Any) -> None:
        """Write the audit row in the open transaction. After the commit, send ``operator_acted`` and log.

        ``subject`` is the run that the row names. ``details`` go into the JSON column of the row; they must contain no
        payloads. An operation that is not audited, such as an ordinary message from code, leaves only a log entry at
        the level DEBUG, because the history has it.
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
        # Messages that applications send all day in the names of their users are not administration, so the admin's log
        # leaves them out. The audit row above is written in any case.
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
    """Raise ``NestingError`` inside workflow code.

    Workflow code has primitives of its own for these operations, and only those can be replayed.
    """
    if current.is_inside_workflow():
        raise NestingError(
            f"{operation} was called on a handle inside workflow code: use api.signal_external, "
            "api.cancel_external or api.child, or call it in an activity"
        )


def to_plain_payload(value: Any, *, label: str) -> Any:
    """Return ``value`` as plain JSON types, as the codec will store it.

    Raises ``PayloadError`` with the path of the part that cannot be encoded, and for a payload above
    ``MAX_PAYLOAD_BYTES``. ``label`` names the value in the message.
    """
    return codec.to_plain(value, label=label, limit=get_settings().MAX_PAYLOAD_BYTES)
