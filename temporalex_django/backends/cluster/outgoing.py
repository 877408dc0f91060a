"""Rows of the outbox that go to the cluster: starts, signals, cancel requests, terminations, requests and deletes.

Each takes effect once, however often it is sent. The server knows starts, signals and cancel requests by a request id,
and requests by their update id. All but starts name the first run of their chain, so that none acts on a later run of
the same id.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.backends.cluster import calls, mirror
from temporalex_django.backends.cluster.answers import is_away, is_gone, is_transient, outcome_of_failure
from temporalex_django.backends.cluster.client import DESTINATION, ClusterClient, cluster_client, send
from temporalex_django.backends.cluster.ids import quoted, task_queue
from temporalex_django.backends.cluster.names import STARTED_BY
from temporalex_django.backends.cluster.runs import ClusterRun, find_on_cluster
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import codec
from temporalex_django.core.failures import error_data
from temporalex_django.db import outbox
from temporalex_django.db.inserts import SENT
from temporalex_django.db.outbox import DeliveryFailed, DeliveryRefused, OutboxRow
from temporalex_django.db.sql_columns import CHAINS, MESSAGES, RUNS, sender_columns
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.activity_policy import update_result
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.errors import (
    ActionNotPossible,
    AlreadyRunning,
    TemporalexError,
    UpdateTimeout,
    WorkflowClosed,
    WorkflowNotFound,
)
from temporalex_django.models import HumanTask, Instance, Message, Outbox
from temporalex_django.temporal import names
from temporalex_django.temporal.start_facts import TASK_LIMITS

_MAX_TRIES: Final = 20
#: Seconds between tries while the server is busy with the run. After them the row waits for a dispatcher.
_BUSY_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
#: Most runs of one id among which the run of an earlier try is looked for.
_LATEST_RUNS: Final = 20
#: Tries of a start for which another run of this project may still be about to end.
_CONFLICT_TRIES: Final = 8


class OtherRunIsOpen(DeliveryFailed):
    """The id belongs to a run that is closed in the tables but still open on the cluster; the start is tried again."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data that a row needs to be sent: its run, its body, and for a start the columns of the run's row.

    ``cancelled`` is the reason of a cancel request that waits behind a start, or None.
    """

    row: OutboxRow
    run: ClusterRun
    client: ClusterClient
    start: dict[str, Any] = field(default_factory=dict)
    cancelled: str | None = None


@dataclass(frozen=True, slots=True)
class Unsent:
    """The answer to a start that was not sent, because the run was cancelled for this ``reason`` before."""

    reason: str


#: An update of rows, and its parameters.
Update = tuple[str, list[Any]]


class ClusterKind(ABC):
    """Base class of the kinds of rows that go to the cluster."""

    max_tries = _MAX_TRIES

    def prepare(self, row: OutboxRow, storage: DjangoStorage) -> Prepared:
        """Read the address of the run on the cluster, which sending the row needs.

        Raises ``DeliveryRefused`` if the run has no row any more, or if its start was refused.
        """
        try:
            run = find_on_cluster(row.chain_id, before=row.id if row.is_held else None, storage=storage)
        except WorkflowNotFound as exc:
            raise DeliveryRefused(exc) from exc
        if run.is_behind:
            raise DeliveryFailed("earlier messages to the run are still to be sent", uses_try=False)
        if run.first_run_id is None:
            raise DeliveryRefused(
                WorkflowNotFound(
                    f"{run.label} was never started on the cluster, because its start was refused or dropped"
                )
            )
        return Prepared(row, run, cluster_client())

    def send(self, prepared: Prepared) -> Any:
        """Send the row and return the answer of the cluster. While the cluster is busy with the run, retry a few times.

        Raises ``DeliveryFailed`` if a later try may succeed, and ``DeliveryRefused`` if the cluster refuses the row for
        good.
        """
        for pause in (*_BUSY_PAUSES, None):
            try:
                return prepared.client.call(lambda sdk: self.request(sdk, prepared))
            except RPCError as exc:
                # The server takes nothing for a run while it closes it, for example to continue as new.
                if exc.status is RPCStatusCode.RESOURCE_EXHAUSTED and pause is not None:
                    time.sleep(pause)
                    continue
                if is_transient(exc):
                    # One row that is too large gets this status as well, while others are taken.
                    is_busy = exc.status is RPCStatusCode.RESOURCE_EXHAUSTED
                    raise DeliveryFailed(
                        f"the Temporal cluster says {exc.status.name}: {exc.message}",
                        uses_try=None if is_busy else not is_away(exc),
                    ) from exc
                raise DeliveryRefused(self.refusal(exc, prepared)) from exc
        raise AssertionError("the last try returns or raises")

    @abstractmethod
    async def request(self, sdk: Client, prepared: Prepared) -> Any:
        """Send the request of the row and return the answer."""

    def refusal(self, error: RPCError, prepared: Prepared) -> TemporalexError:
        """Return the error of this package for an answer that refuses the row."""
        kind = prepared.row.kind.partition(".")[2]
        label = f"{kind} of {prepared.run.label}"
        if is_gone(error):
            return WorkflowClosed(f"{prepared.run.label} is closed: {kind} refused")
        return ActionNotPossible(f"{label}: the Temporal cluster refused it: {error.message}")

    def settling(self, row: OutboxRow, answer: Any, storage: DjangoStorage) -> Sequence[Update] | None:
        """Return the updates that store the answer; most store nothing."""
        return []

    def settle(self, row: OutboxRow, answer: Any, storage: DjangoStorage) -> None:  # noqa: B027 - see ``settling``
        """Store an answer for which ``settling`` has no updates."""

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:  # noqa: B027 - as above
        """Store that the row was refused."""


class StartKind(ClusterKind):
    """Starts a run. Its input is read when it is sent, so a debounced start can still change it."""

    def prepare(self, row: OutboxRow, storage: DjangoStorage) -> Prepared:
        """Read the run, and whether a cancel request waits behind the start. One read.

        Raises ``DeliveryRefused`` if the run has no row any more, or had to begin earlier.
        """
        cancel = _waiting_rows(OuterRef("chain"), storage).filter(kind=f"{DESTINATION}.cancel").order_by("id")
        runs = Instance.objects.using(storage.alias).filter(chain=row.chain_id).order_by("id")
        run = runs.annotate(cancel=Subquery(cancel.values("body")[:1])).first()
        if run is None or run.cluster_id is None:
            raise DeliveryRefused(WorkflowNotFound(f"the chain {row.chain_id} has no run on the Temporal cluster"))
        on_cluster = ClusterRun(
            cluster_id=run.cluster_id, chain_id=row.chain_id, workflow=run.workflow, workflow_id=run.workflow_id
        )
        if run.start_before is not None and run.start_before <= storage.now():
            raise DeliveryRefused(StartTooLate(f"{on_cluster.label} had not begun by its start_before"))
        decode = codec().decode
        cancelled = None if run.cancel is None else decode(bytes(run.cancel))["reason"]  # type: ignore[attr-defined]
        facts: dict[str, Any] = {
            "id": run.workflow_id,
            "version": run.version,
            "chain": str(row.chain_id),
            "run": str(run.id),
            "limits": TASK_LIMITS,
        }
        further_facts = {
            "parent": run.parent,
            "snapshot": None if run.snapshot is None else decode(bytes(run.snapshot)),
            "headers": run.headers or None,
            "search_attributes": run.search_attributes or None,
            "scheduled_for": None if run.scheduled_for is None else run.scheduled_for.isoformat(),
        }
        facts |= {name: fact for name, fact in further_facts.items() if fact is not None}
        start = {
            "queue": task_queue(run.queue),
            "args": decode(bytes(run.args)),
            "facts": facts,
            "execution_timeout": None if run.expires_at is None else _seconds_until(run.expires_at, storage.now()),
            "run_timeout": run.run_timeout,
        }
        return Prepared(row, on_cluster, cluster_client(), start, cancelled)

    def send(self, prepared: Prepared) -> Any:
        """Start the run, unless its cancel request waits as well and no earlier try can have started it."""
        if prepared.cancelled is not None and prepared.row.tries == 1:
            return Unsent(prepared.cancelled)
        return super().send(prepared)

    async def request(self, sdk: Client, prepared: Prepared) -> str | Unsent:
        """Start the run and return its id on the cluster."""
        row = prepared.row
        request = calls.start_request(prepared.client, prepared.run, row_id=str(row.id), **prepared.start)
        if row.tries > 1 and (run_id := await self._earlier_start(sdk, prepared)) is not None:
            return run_id
        if prepared.cancelled is not None:
            return Unsent(prepared.cancelled)
        try:
            answer = await send(sdk, request)
        except RPCError as exc:
            if exc.status is not RPCStatusCode.ALREADY_EXISTS:
                raise
            return await self._resolve_conflict(sdk, prepared, exc)
        return str(answer.run_id)

    async def _earlier_start(self, sdk: Client, prepared: Prepared) -> str | None:
        """Return the run that an earlier try of this row has started, or None.

        The server forgets the id of a request once another run had the id of the run, so it is looked up by its memo.
        """
        # Not the iterator of the SDK, which raises for a paused run.
        condition = f"WorkflowId = {quoted(prepared.run.cluster_id)}"
        request = service.ListWorkflowExecutionsRequest(query=condition, page_size=_LATEST_RUNS)
        for info in (await send(sdk, request)).executions:
            if _starter_of(info, prepared) == str(prepared.row.chain_id):
                return str(info.first_run_id or info.execution.run_id)
        return None

    async def _resolve_conflict(self, sdk: Client, prepared: Prepared, error: RPCError) -> str:
        """Return the run that has the id, if it is the one of this start.

        Raises ``OtherRunIsOpen`` if it is another run of this project: its row has closed, so it is about to end there.
        Raises ``DeliveryRefused`` for a run that somebody else has started.
        """
        run = prepared.run
        request = calls.make_request(service.DescribeWorkflowExecutionRequest, run)
        info = (await send(sdk, request)).workflow_execution_info
        starter = _starter_of(info, prepared)
        if starter == str(prepared.row.chain_id):
            return str(info.first_run_id or info.execution.run_id)
        if starter is not None and prepared.row.tries < _CONFLICT_TRIES:
            raise OtherRunIsOpen(
                f"another run of {run.label} is still open on the cluster, although its row is closed"
            ) from error
        raise DeliveryRefused(
            AlreadyRunning(f"{run.label} is open already on the Temporal cluster: use its handle, or another id")
        ) from error

    def settling(self, row: OutboxRow, answer: str | Unsent, storage: DjangoStorage) -> Sequence[Update] | None:
        """Store the id of the run, unless a worker has stored it already. None if the run was cancelled unsent.

        The row of the first run may be deleted while its chain continues, and messages have to name that run.
        """
        if isinstance(answer, Unsent):
            return None
        first = "id = (select id from temporalex_instance where chain_id = %s order by id limit 1)"
        of_run = RUNS.update({"cluster_run_id": "%s"}, f"where {first} and cluster_run_id is null")
        of_chain = CHAINS.update({"cluster_first_run_id": "%s"}, "where id = %s and cluster_first_run_id is null")
        return [(update, [UUID(answer), row.chain_id]) for update in (of_run, of_chain)]

    def settle(self, row: OutboxRow, answer: Unsent, storage: DjangoStorage) -> None:
        """Close a run that was cancelled unsent. None of its messages is sent."""
        self._close(row, "cancelled", {"reason": answer.reason, "outside": True}, storage)
        _waiting_rows(row.chain_id, storage).delete()
        _sent_messages(row.chain_id, storage).filter(kind="signal").update(outcome_status="undelivered")

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:
        """Close the run in the tables as failed, or as timed out after its ``start_before``."""
        if isinstance(error, StartTooLate):
            self._close(row, "timed_out", {"timeout": "start_before"}, storage)
        else:
            described = error_data(error)
            self._close(row, "failed", {"type": described["type"], "message": described["message"]}, storage)

    def _close(self, row: OutboxRow, status: str, closing: dict[str, Any], storage: DjangoStorage) -> None:
        """Close the run in the tables. Raises ``DeliveryFailed`` if its row is locked."""
        try:
            mirror.close(row.chain_id, status, closing, storage=storage)
        except mirror.MirrorBusy as exc:
            raise DeliveryFailed(str(exc)) from exc


def _starter_of(info: WorkflowExecutionInfo, prepared: Prepared) -> Any:
    """Return the chain whose start has started a run, or None if somebody else has started it."""
    memo = info.memo.fields.get(STARTED_BY)
    return None if memo is None else prepared.client.payloads.decode(memo)


class StartTooLate(TemporalexError):
    """The run had not begun by its start_before."""

    code = "start_too_late"
    next_step = "Start it again, with a later start_before."


class SignalKind(ClusterKind):
    """Sends a signal."""

    async def request(self, sdk: Client, prepared: Prepared) -> None:
        body, request_id = prepared.row.body, str(prepared.row.id)
        request = calls.signal_request(prepared.client, prepared.run, body["name"], body, request_id=request_id)
        await send(sdk, request)

    def settling(self, row: OutboxRow, answer: None, storage: DjangoStorage) -> Sequence[Update]:
        """Mark the message as completed, unless its handler has failed already."""
        if row.body["id"] is None:
            return []
        now, clock = storage.sql.now_expression(storage.clock, live=True)
        sent = "where chain_id = %s and request_id = %s and kind = 'signal' and outcome_status = %s"
        update = MESSAGES.update({"outcome_status": "'completed'", "answered_at": now}, sent)
        return [(update, [*clock, row.chain_id, row.body["id"], SENT])]

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:
        """Mark the message as undelivered, so that a signal with its id can be sent again."""
        if row.body["id"] is not None:
            signals = _sent_messages(row.chain_id, storage).filter(request_id=row.body["id"], kind="signal")
            signals.update(outcome_status="undelivered")


class CancelKind(ClusterKind):
    """Asks a run to end."""

    async def request(self, sdk: Client, prepared: Prepared) -> None:
        request = calls.make_request(
            service.RequestCancelWorkflowExecutionRequest,
            prepared.run,
            reason=prepared.row.body["reason"],
            request_id=str(prepared.row.id),
        )
        await send(sdk, request)


class TerminateKind(ClusterKind):
    """Terminates a run. A run that the cluster does not know any more counts as terminated."""

    async def request(self, sdk: Client, prepared: Prepared) -> None:
        kind, reason = service.TerminateWorkflowExecutionRequest, prepared.row.body["reason"]
        with _ignore_gone():
            await send(sdk, calls.make_request(kind, prepared.run, reason=reason))


@contextmanager
def _ignore_gone() -> Iterator[None]:
    """Return a context manager that ignores the answer that a run is closed or unknown."""
    try:
        yield
    except RPCError as exc:
        if not is_gone(exc):
            raise


class RequestKind(ClusterKind):
    """Sends a resume or a decision, which was committed with the caller's transaction, as an update."""

    async def request(self, sdk: Client, prepared: Prepared) -> None:
        body = prepared.row.body
        answer = await send(sdk, calls.update_request(prepared.client, prepared.run, names.RESUME, body))
        if not answer.HasField("outcome"):
            raise UpdateTimeout("the run has not judged it yet", update_id=body["id"])
        if answer.outcome.HasField("failure"):
            outcome = outcome_of_failure(answer.outcome.failure, prepared.client.payloads)
            label = f"{prepared.row.kind.partition('.')[2]} of {prepared.run.label}"
            try:
                update_result(outcome, update_id=body["id"], label=label)
            except TemporalexError as exc:
                raise DeliveryRefused(exc) from exc

    def settling(self, row: OutboxRow, answer: None, storage: DjangoStorage) -> None:
        """Return None: ``settle`` stores the answer."""

    def settle(self, row: OutboxRow, answer: None, storage: DjangoStorage) -> None:
        """Mark the message as completed. The run itself closes the row of the human task."""
        self._note(row, "completed", storage)

    def refuse(self, row: OutboxRow, error: TemporalexError, storage: DjangoStorage) -> None:
        """Mark the message as rejected, and open its human task for decisions again."""
        self._note(row, "rejected", storage)
        _reopen_task(row.body, storage)

    def _note(self, row: OutboxRow, status: str, storage: DjangoStorage) -> None:
        messages = _sent_messages(row.chain_id, storage).filter(request_id=row.body["id"])
        messages.update(outcome_status=status, answered_at=storage.now())


class DeleteKind(ClusterKind):
    """Deletes the runs of a chain on the cluster, whose rows here are gone."""

    def prepare(self, row: OutboxRow, storage: DjangoStorage) -> Prepared:
        run = ClusterRun(cluster_id=row.body["cluster_id"], chain_id=row.chain_id, workflow="", workflow_id="")
        return Prepared(row, run, cluster_client())

    async def request(self, sdk: Client, prepared: Prepared) -> None:
        kind = service.DeleteWorkflowExecutionRequest
        for run_id in prepared.row.body["runs"]:
            with _ignore_gone():
                await send(sdk, calls.make_request(kind, prepared.run, run_id=run_id))


KINDS: Final[dict[str, ClusterKind]] = {
    "start": StartKind(),
    "signal": SignalKind(),
    "cancel": CancelKind(),
    "terminate": TerminateKind(),
    "request": RequestKind(),
    "delete": DeleteKind(),
}


def insert(chain_id: UUID, kind: str, body: dict[str, Any], **options: Any) -> OutboxRow:
    """Insert a row for the cluster and return it. ``kind`` is a key of ``KINDS``; see ``outbox.insert`` for options."""
    return outbox.insert(chain_id, destination=DESTINATION, kind=f"{DESTINATION}.{kind}", body=body, **options)


#: A prepared statement for the usual case, in which no row waits.
_WAITING: Final = (
    "select 1 from temporalex_outbox where chain_id = %s and destination = %s and failed is null order by id limit 1"
)


def send_waiting(chain_id: UUID, *, storage: DjangoStorage) -> Outbox | None:
    """Send the due rows of a chain in order, and return the first row that is left, or None.

    It commits, so no transaction may be open. It also returns None before a resume or a decision, because the run may
    judge it much later. If no row is due, this is one read.
    """
    waiting = _waiting_rows(chain_id, storage)
    if not storage.sql.select(_WAITING, [chain_id, DESTINATION], ("int4",)):
        return None
    while (row := waiting.order_by("id").first()) is not None:
        if row.kind == f"{DESTINATION}.request":
            return None
        rows = outbox.claim(storage, limit=1, destination=DESTINATION, chain_id=chain_id)
        if not rows:
            return row
        outbox.deliver(rows, storage=storage)
    return None


_NOTE: Final = MESSAGES.pick_columns(
    *("chain_id", "queue", "kind", "name", "body", "request_id", "sender_key", "sender_name", "fresh", "settled"),
    *("outcome_status", "created_at"),
)


def note_message(target: RunTarget, message_id: str, message: MessageFingerprint, *, storage: DjangoStorage) -> bool:
    """Insert the row of a message with an id, by which one that is sent again is recognized. No turn reads it.

    Returns False if a message of the chain has the id.
    """
    now, clock = storage.sql.now_expression(storage.clock, live=True)
    body, sender = codec().encode(message.payload), sender_columns(message.sender)
    values = [target.chain_id, target.queue, message.kind, message.name, body, message_id, *sender]
    free = "on conflict (chain_id, request_id) where request_id is not null do nothing"
    insert = _NOTE.insert_parameters(storage.sql.placeholder, free, created_at=now)
    return bool(storage.sql.execute(insert, [*values, False, True, SENT, *clock]))


def store_outcome(chain_id: UUID, message_id: str, outcome: Outcome, *, storage: DjangoStorage) -> None:
    """Store the outcome of an update with its row, from which it is read later, unless it is stored already."""
    now, clock = storage.sql.now_expression(storage.clock, live=True)
    storage.sql.execute(
        f"update temporalex_message set outcome_status = %s, outcome = %s, answered_at = {now}"  # noqa: S608 - no values
        " where chain_id = %s and request_id = %s and outcome_status = %s",
        [outcome.status, codec().encode(outcome.value), *clock, chain_id, message_id, SENT],
    )


def drop_unsent_start(chain_id: UUID, *, storage: DjangoStorage) -> bool:
    """Delete all rows of the outbox for a chain whose start nobody has begun to send.

    Returns False, with nothing deleted, if it may have been sent.
    """
    rows = Outbox.objects.using(storage.alias).filter(chain=chain_id, destination=DESTINATION)
    # The process that sends the row counts its try first, under the lock of the row.
    if not rows.filter(kind=f"{DESTINATION}.start", tries=0).delete()[0]:
        return False
    rows.delete()
    return True


def forget_message(chain_id: UUID, message_id: str, *, storage: DjangoStorage) -> None:
    """Delete the row of a message that the run has not taken, so that its id is free again."""
    _sent_messages(chain_id, storage).filter(request_id=message_id).delete()


def forget_refused(chain_id: UUID, message_id: str, *, storage: DjangoStorage) -> bool:
    """Delete the row of a signal that the cluster has refused, so that its id is free.

    Returns True if there was one.
    """
    rows = Message.objects.using(storage.alias).filter(
        chain_id=chain_id, request_id=message_id, outcome_status__in=["undelivered", "rejected"]
    )
    return bool(rows.delete()[0])


def settle_request(row: OutboxRow, *, is_taken: bool, storage: DjangoStorage) -> None:
    """Delete the outbox row of a request that its sender has sent itself, unless a dispatcher was faster.

    If the run took the request, its message is completed. Otherwise its human task is open for decisions again.
    """
    if not Outbox.objects.using(storage.alias).filter(pk=row.id).delete()[0]:
        return
    if is_taken:
        messages = _sent_messages(row.chain_id, storage).filter(request_id=row.body["id"])
        messages.update(outcome_status="completed", answered_at=storage.now())
    else:
        _reopen_task(row.body, storage)


def _reopen_task(body: dict[str, Any], storage: DjangoStorage) -> None:
    """Open the human task of a decision that the run has not taken for decisions again."""
    if (task := body.get("task")) is not None:
        HumanTask.objects.using(storage.alias).filter(pk=UUID(task)).update(deciding=None)


def _sent_messages(chain_id: UUID, storage: DjangoStorage) -> QuerySet[Message]:
    """Return the messages of a chain of which nothing but the sending is known."""
    return Message.objects.using(storage.alias).filter(chain_id=chain_id, outcome_status=SENT)


def _waiting_rows(chain: Any, storage: DjangoStorage) -> QuerySet[Outbox]:
    """Return the rows of a chain that are still to be sent."""
    return Outbox.objects.using(storage.alias).waiting().filter(chain=chain, destination=DESTINATION)


def _seconds_until(moment: datetime, now: datetime) -> float:
    return max((moment - now).total_seconds(), 1.0)
