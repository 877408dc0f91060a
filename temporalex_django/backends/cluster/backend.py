"""``ClusterBackend``: runs that live on a Temporal cluster, with rows in the tables that mirror them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from uuid import UUID

from temporalex_django.backends.cluster import calls, mirror, operate, outgoing, pending, reads
from temporalex_django.backends.cluster.client import DESTINATION
from temporalex_django.backends.cluster.ids import cluster_id
from temporalex_django.backends.cluster.requests import ClusterRequest
from temporalex_django.backends.cluster.runs import adopt
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import OperatorCall, RequestCall, RunQueryCall, RunTarget
from temporalex_django.conf import codec
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import TEMPORAL
from temporalex_django.db import outbox
from temporalex_django.db.inserts import (
    InsertedMessage,
    RemoteStart,
    StartedRun,
    delete_replaced,
    find_message,
    insert_many,
    insert_start,
    notify_on_commit,
)
from temporalex_django.db.messages import inbox
from temporalex_django.db.messages.inbox import HandledMessage
from temporalex_django.db.outbox import OutboxRow
from temporalex_django.db.paced_starts import write_waiting_run
from temporalex_django.db.sql_columns import sender_from_columns
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import ActivityTask, Instance, Outbox

#: Rows that operations of the calling thread have written and not sent.
_own_rows: ContextVar[tuple[OutboxRow, ...]] = ContextVar("temporalex_own_rows", default=())


def _note_own(row: OutboxRow) -> None:
    _own_rows.set((*_own_rows.get()[-100:], row))


def _seconds_to_hold(storage: DjangoStorage) -> float:
    """Return for how long the caller holds a row, to send it itself: not at all inside a transaction."""
    return 0.0 if inside_transaction(storage.alias) else policy.OUTBOX_HELD


class ClusterBackend:
    """The backend of runs on a Temporal cluster. See ``backends.protocol.RunBackend``.

    Starts and messages are rows of the outbox in the caller's transaction. If the caller has no transaction, the row is
    committed first and sent at once, so a process that dies in between loses nothing.
    """

    name = TEMPORAL

    def flush(self, chain_id: UUID, *, storage: DjangoStorage) -> None:
        """Send the rows of the outbox that wait for the chain; inside a transaction, leave them to a worker.

        Raises the error with which the cluster refuses a row that this thread has written. If the cluster does not
        answer, a worker sends the rows later.
        """
        if inside_transaction(storage.alias):
            return
        rows = [row for row in _own_rows.get() if row.chain_id == chain_id]
        own = [row.id for row in rows]
        _own_rows.set(())
        held_rows = [row for row in rows if row.is_held]
        while len(held_rows) < len(rows):  # rows of a transaction, which come before those that are held
            claimed = outbox.claim(storage, limit=1, destination=DESTINATION, chain_id=chain_id)
            if not claimed:
                break
            if not outbox.deliver(claimed, storage=storage, own=own):
                return
        outbox.deliver(held_rows, storage=storage, own=own)

    # -- starts and messages ------------------------------------------------------------------------------------------

    def start(self, start: RunStart, *, storage: DjangoStorage) -> StartedRun:
        """Insert the rows of a chain, and the row of the outbox that starts it. See ``insert_start``."""
        ids, row_id = StartedRun(uuid7(), uuid7()), uuid7()
        is_later = start.start_at is not None or start.start_delay is not None
        hold_seconds = 0.0 if is_later else _seconds_to_hold(storage)
        remote = RemoteStart(cluster_id(start, ids.chain_id), row_id, DESTINATION, hold_seconds)
        insert_start(start, ids=ids, remote=remote, storage=storage)
        if not is_later:
            kind = f"{DESTINATION}.start"
            row = OutboxRow(
                id=row_id,
                chain_id=ids.chain_id,
                destination=DESTINATION,
                kind=kind,
                body={},
                tries=1 if hold_seconds else 0,
                is_held=bool(hold_seconds),
            )
            _note_own(row)
            if not hold_seconds:
                notify_on_commit(alias=storage.alias, queues=[outbox.OUTBOX_QUEUE])
        return ids

    def start_many(self, starts: Sequence[RunStart], *, storage: DjangoStorage) -> list[StartedRun | AlreadyRunning]:
        """Insert the rows of these chains, and a row of the outbox for each. See ``insert_many``."""
        results = insert_many(starts, storage=storage)
        pairs = zip(starts, results, strict=True)
        self._adopt([(start, result) for start, result in pairs if isinstance(result, StartedRun)], storage)
        return results

    def _adopt(self, pairs: Sequence[tuple[RunStart, StartedRun]], storage: DjangoStorage) -> None:
        adopt([(ids.chain_id, cluster_id(start, ids.chain_id)) for start, ids in pairs], storage=storage)
        now = storage.now()
        for start, ids in pairs:
            self._insert(ids.chain_id, "start", {}, due_at=start.starts_at(now), storage=storage)

    def _insert(
        self,
        chain_id: UUID,
        kind: str,
        body: dict[str, Any],
        *,
        due_at: datetime | None = None,
        sender: Sender | None = None,
        hold_seconds: float = 0.0,
        storage: DjangoStorage,
    ) -> None:
        row = outgoing.insert(
            chain_id, kind, body, due_at=due_at, sender=sender, hold_seconds=hold_seconds, storage=storage
        )
        if due_at is None:
            _note_own(row)

    def replace_input(self, start: RunStart, sender: Sender | None, *, storage: DjangoStorage) -> StartedRun | None:
        """Give the run that waits to begin the input and the time of a debounced start.

        ``sender`` counts as a person who started it. Returns None if no run of the class and version waits with this
        id.
        """
        now = storage.now()
        runs = Instance.objects.using(storage.alias).filter(
            workflow_id=start.workflow_id,
            workflow=start.workflow,
            version=start.version,
            chain__open_key=start.open_key,
            starts_at__gt=now,
        )
        run = next((row for row in runs if (row.start_limit or {}).get("debounce") is not None), None)
        if run is None:
            return None
        rows = (
            Outbox.objects.using(storage.alias)
            .select_for_update(of=("self",))
            .filter(chain=run.chain_id, kind=f"{DESTINATION}.start", tries=0)
        )
        begin = start.begins_at(now)
        if not rows or not rows.update(due_at=begin):
            return None
        write_waiting_run(run.pk, start, sender, now, storage.alias)
        return StartedRun(run.chain_id, run.pk)

    def send(
        self,
        target: RunTarget,
        *,
        kind: str,
        name: str,
        body: Any,
        message_id: str | None = None,
        sender: Sender | None = None,
        headers: Headers | None = None,
        exact: bool = False,
        storage: DjangoStorage,
    ) -> InsertedMessage:
        """Insert a signal or a cancel request into the outbox. Raises ``MessageIdTaken``."""
        hold_seconds, replaced = _seconds_to_hold(storage), None
        if kind == "cancel":
            self._insert(
                target.chain_id, "cancel", {"reason": body["reason"]}, hold_seconds=hold_seconds, storage=storage
            )
            return InsertedMessage(0, True)
        with nullcontext() if message_id is None else storage.transaction():
            if message_id is not None:
                fingerprint = MessageFingerprint(kind, name, body, sender)
                earlier = find_message(target.chain_id, message_id, storage=storage)
                if earlier is not None and not outgoing.forget_refused(target.chain_id, message_id, storage=storage):
                    replaced = delete_replaced(target.chain_id, message_id, fingerprint, storage=storage)
                    if replaced is None:
                        earlier[1].require_same(message_id, fingerprint, exact=exact)
                        return InsertedMessage(earlier[0], False)
                outgoing.note_message(
                    target, kind=kind, name=name, body=body, message_id=message_id, sender=sender, storage=storage
                )
            signal = {
                "name": name,
                "payload": body,
                "id": message_id,
                "sender": calls.sender_data(sender),
                "headers": headers,
            }
            self._insert(target.chain_id, "signal", signal, sender=sender, hold_seconds=hold_seconds, storage=storage)
        return InsertedMessage(0, True, replaced=replaced)

    def request(self, call: RequestCall) -> ClusterRequest:
        """Return the message of ``call``, an update, a resume or a decision. Nothing is sent before its ``begin``."""
        return ClusterRequest(call)

    # -- reads --------------------------------------------------------------------------------------------------------

    def query(self, call: RunQueryCall) -> Any:
        """Answer the query by a worker, or from the rows of the run; see ``reads.query``.

        Built-in queries, whose names begin with two underscores, are answered here. Raises ``UnknownQuery``,
        ``QueryFailed``, and ``QueryTimeout`` if no worker answers in time.
        """
        if isinstance(call.query, str) and call.query.startswith("__"):
            return call.answer_built_in()
        return reads.query(call)

    def open_tasks(self, target: RunTarget, *, limit: int, storage: DjangoStorage) -> list[ActivityTask]:
        """Return the first ``limit`` open activities of the selected run, as the cluster reports them.

        See ``pending.open_tasks``.
        """
        return pending.open_tasks(target, limit=limit, storage=storage)

    def history(self, target: RunTarget, *, storage: DjangoStorage, timeout: float | None = None) -> list[HistoryEvent]:
        """Return the events of the selected run, with which a worker answers a query.

        ``timeout`` is in seconds (None: ``reads.QUERY_SECONDS``). Raises ``QueryFailed``, and ``QueryTimeout`` if no
        worker answers in time.
        """
        return reads.history(target, storage=storage, timeout=timeout or reads.QUERY_SECONDS)

    def closing(self, target: RunTarget, *, storage: DjangoStorage) -> tuple[str, Any] | None:
        """Return ``(status of the last run, attributes of its closing event)``; None while the chain is open.

        They come from the rows, which are corrected first if the cluster has closed the run without a worker.
        """
        return reads.closing(target, storage=storage)

    # -- what operators do --------------------------------------------------------------------------------------------

    def operate(self, call: OperatorCall) -> Any:
        """Perform the operation that ``call.name`` names. See ``operate.OPERATIONS`` for those that the server does."""
        if (operation := operate.OPERATIONS.get(call.name)) is not None:
            return operation(call)
        return self._close(call)

    def _close(self, call: OperatorCall) -> None:
        """Terminate the run, or request the cancellation of a graph.

        Termination closes the rows at once, and the outbox then terminates the run on the cluster. A start that nobody
        has begun to send is never sent. Writes the audit row.
        """
        storage, target = call.storage, call.target
        with storage.transaction():
            run = call.lock_run()
            if call.name == "cancel":
                self._insert(target.chain_id, "cancel", {"reason": call.reason}, storage=storage)
            else:
                mirror.close_locked(run, "terminated", {"reason": call.reason}, storage=storage)
                if not outgoing.drop_unsent_start(target.chain_id, storage=storage):
                    self._insert(target.chain_id, "terminate", {"reason": call.reason}, storage=storage)
            call.record(target.audit_subject, reason=call.reason)

    def close_locked(self, call: OperatorCall, status: str, run: RunState) -> None:
        """Close a run that has not begun, whose chain the open transaction has locked. Its start is never sent."""
        Outbox.objects.using(call.storage.alias).filter(chain=run.chain_id, destination=DESTINATION).delete()
        mirror.close_locked(run, status, {"reason": call.reason, "outside": True}, storage=call.storage)
        call.record(call.target.audit_subject, reason=call.reason)

    def redeliver(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Send a signal whose handler failed again, with its message id. Returns None if there is no such signal.

        The run accepts the id again, because the handler failed. The row for the outbox belongs to the open
        transaction.
        """
        row = inbox.take_failed(call.target.chain_id, message_id, alias=call.storage.alias)
        if row is None:
            return None
        sender = sender_from_columns(row.sender_key, row.sender_name)
        signal = {
            "name": row.name,
            "payload": codec().decode(bytes(row.body)),
            "id": message_id,
            "sender": calls.sender_data(sender),
            "headers": row.headers,
        }
        self._insert(call.target.chain_id, "signal", signal, sender=sender, storage=call.storage)
        return inbox.handled_message(row)
