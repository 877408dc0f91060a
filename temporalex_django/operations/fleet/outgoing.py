"""Outgoing messages, and the mirror of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.backends.protocol import AuditSubject, RunTarget
from temporalex_django.backends.routing import cluster_module
from temporalex_django.core.names import TABLES, fit_note, quoted
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.outbox import OUTBOX_QUEUE
from temporalex_django.errors import ActionNotPossible, NotConfigured, WorkflowNotFound
from temporalex_django.models import Instance, Outbox
from temporalex_django.operations.base import CODE, Action, Actor

# --- outgoing ---------------------------------------------------------------------------------------------------------
#
# Outgoing messages: rows of the outbox that wait to be sent, and dead letters, which a person sends again or drops.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """An outgoing message, as interfaces show it. Its body is a payload and is not shown.

    ``kind`` says what it is, and ``destination`` where it goes. ``workflow`` and ``workflow_id`` name the run that it
    is about. It is sent at ``due_at``, after ``tries`` tries. ``code`` and ``error`` say why it is a dead letter, or
    ``error`` what the last try has met; both are empty without one. The text of ``error`` may quote the message, so it
    is hidden from users who may not see payloads of the run. ``is_dead`` is True for a dead letter.
    """

    id: str
    kind: str
    destination: str
    workflow: str
    workflow_id: str
    sender: str
    created_at: datetime
    due_at: datetime
    tries: int
    is_dead: bool
    code: str
    error: str


def outgoing_messages(alias: str, user: Person | None = None) -> QuerySet[Outbox]:
    """Return the rows of the outbox that a user may see (None: code sees all), the oldest first.

    They are those about runs that the user may see. Each has the id, the class and the business id of its run.
    """
    runs = Instance.objects.using(alias).filter(chain=OuterRef("chain")).order_by("-id")
    rows = Outbox.objects.using(alias).annotate(
        run_id=Subquery(runs.values("pk")[:1]),
        workflow=Subquery(runs.values("workflow")[:1]),
        workflow_id=Subquery(runs.values("workflow_id")[:1]),
    )
    visible_runs = access.runs_for(user, alias=alias)
    if visible_runs is not None and not access.is_unfiltered(visible_runs):
        rows = rows.filter(chain__in=visible_runs.values("chain"))
    return rows.order_by("id")


def describe_outgoing(rows: Sequence[Any], user: Person | None = None) -> list[OutgoingMessage]:
    """Return rows of ``outgoing_messages`` as interfaces show them to a user (None: code sees all).

    One read, if a person looks and a row has the text of an error.
    """
    runs: Mapping[UUID, Instance] = {}
    if user is not None and (run_ids := {row.run_id for row in rows if row.run_id and (row.failed or row.error)}):
        runs = Instance.objects.using(rows[0]._state.db).in_bulk(run_ids)  # noqa: SLF001 - Django documents it
    return [_describe(row, _redactor(user, runs.get(row.run_id))) for row in rows]


def _redactor(user: Person | None, run: Instance | None) -> Redactor:
    if run is not None or user is None:
        return UNREDACTED if run is None else access.redactor_for(user, run)
    # The run has been deleted, and with it the class that says which fields are hidden.
    return Redactor(may_see_payloads=access.policy().allows(user, access.VIEW_PAYLOAD))


def _describe(row: Any, redactor: Redactor) -> OutgoingMessage:
    failed = row.failed or {}
    error = failed.get("error") or row.error or ""
    return OutgoingMessage(
        id=str(row.pk),
        kind=row.kind,
        destination=row.destination,
        workflow=row.workflow or "",
        workflow_id=row.workflow_id or "",
        sender=row.sender or "",
        created_at=row.created_at,
        due_at=row.due_at,
        tries=row.tries,
        is_dead=row.failed is not None,
        code=failed.get("code", ""),
        error=redactor.redact_text(error) if error else "",
    )


class SendAgain(Action[OutgoingMessage]):
    """Operation that sends a dead letter again, and returns it as it is then.

    It comes before later messages that wait for the same run and destination, since rows are sent in the order of their
    ids. Raises ``WorkflowNotFound`` if there is no such message, and ``ActionNotPossible`` if it waits to be sent.
    Locks its row, in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "send_again"
    permission: ClassVar[str] = "operate_outbox"
    forced: ClassVar[bool] = True

    def __init__(self, message: UUID | str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.message = message
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> OutgoingMessage:
        with self.storage.transaction():
            row = self._lock()
            if row.failed is None:
                raise ActionNotPossible(
                    f"the message {row.pk} is not a dead letter: it will be sent automatically at {row.due_at}"
                )
            row.failed, row.error, row.tries, row.due_at = None, None, 0, self.storage.now()
            row.save(using=self.storage.alias, update_fields=["failed", "error", "tries", "due_at"])
            self._record(row)
            notify_on_commit(alias=self.storage.alias, queues=[OUTBOX_QUEUE])
        (sent,) = describe_outgoing([row], self.by.user)
        return sent

    def _lock(self) -> Any:
        """Look among the messages that the user may see."""
        alias = self.storage.alias
        try:
            pk = UUID(str(self.message))
        except ValueError:
            raise WorkflowNotFound(f"there is no outgoing message {quoted(str(self.message))}") from None
        row = outgoing_messages(alias, self.by.user).filter(pk=pk).select_for_update(of=("self",)).first()
        if row is None:
            raise WorkflowNotFound(f"there is no outgoing message {quoted(str(pk))}")
        return row

    def _record(self, row: Any) -> None:
        run = Instance.objects.using(self.storage.alias).filter(chain=row.chain_id).order_by("-id").first()
        subject = AuditSubject(
            run_id=None if run is None else str(run.pk), workflow=row.workflow or "", workflow_id=row.workflow_id or ""
        )
        self.record(subject, reason=self.reason, message=str(row.pk), kind=row.kind, destination=row.destination)


class DropOutgoing(SendAgain):
    """Operation that drops an outgoing message, so that it is never sent, and returns it as it was.

    Raises ``WorkflowNotFound`` if there is no such message, and ``ActionNotPossible`` if it is being sent. Locks its
    row, in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "drop_outgoing"

    def perform(self) -> OutgoingMessage:
        with self.storage.transaction():
            row = self._lock()
            if row.failed is None and row.tries and row.error is None:
                raise ActionNotPossible(f"the message {row.pk} is being sent: try again in a moment")
            (dropped,) = describe_outgoing([row], self.by.user)
            Outbox.objects.using(self.storage.alias).filter(pk=row.pk).delete()
            self._record(row)
        return dropped


# --- mirror -----------------------------------------------------------------------------------------------------------
#
# The comparison of the rows of runs on a Temporal cluster with the cluster, which a person asks for.


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSynced:
    """The result of a comparison: how many runs the cluster listed, how many were written, and how many were closed."""

    compared: int
    written: int
    closed: int


class SyncMirror(Action[MirrorSynced]):
    """Operation that rebuilds the rows of runs that are on the cluster from their histories there.

    ``target`` is one run, of whose chain all runs are written; None means all runs of the project. Rows that were
    deleted come back, and open rows whose run the cluster no longer has are closed. Each run is one transaction. Raises
    ``NotConfigured`` without the SDK of Temporal, ``ActionNotPossible`` for a run on the tables or while the cluster
    does not answer. Audited.
    """

    name: ClassVar[str] = "sync"
    permission: ClassVar[str] = "operate_outbox"
    forced: ClassVar[bool] = True

    def __init__(self, target: RunTarget | None = None, *, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target

    def perform(self) -> MirrorSynced:
        try:
            module = cluster_module("reconcile")
        except ImportError as exc:
            raise NotConfigured(
                f"the rows cannot be compared with a Temporal cluster: {exc}. "
                "Run: pip install 'temporalex-django[temporal]'"
            ) from exc
        repairs = module.sync(self._cluster_ids(), storage=self.storage)
        subject = AuditSubject(run_id=None, workflow="", workflow_id="")
        with self.storage.transaction():
            self.record(
                subject if self.target is None else self.target.audit_subject,
                written=repairs.written,
                closed=repairs.closed,
            )
        return MirrorSynced(compared=repairs.compared, written=repairs.written, closed=repairs.closed)

    def _cluster_ids(self) -> Collection[str] | None:
        if self.target is None:
            return None
        if self.target.backend == TABLES:
            raise ActionNotPossible(
                f"sync of {self.target.workflow} {self.target.workflow_id}: the run is on the tables, so there is "
                "nothing to rebuild"
            )
        rows: Any = Instance.objects.using(self.storage.alias).filter(chain=self.target.chain_id)
        return {cluster_id for cluster_id in rows.values_list("cluster_id", flat=True) if cluster_id is not None}
