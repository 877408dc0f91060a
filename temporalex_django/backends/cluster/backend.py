"""``ClusterBackend``: runs that live on a Temporal cluster, with rows in the tables that mirror them."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from temporalex_django.backends.cluster import calls, mirror, operate, outgoing, pending, reads
from temporalex_django.backends.cluster.client import DESTINATION
from temporalex_django.backends.cluster.ids import cluster_id
from temporalex_django.backends.cluster.requests import ClusterRequest
from temporalex_django.backends.cluster.runs import adopt
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import OperatorCall, RunQueryCall, RunTarget
from temporalex_django.conf import codec
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
from temporalex_django.db.retention import delete_chain
from temporalex_django.db.sql_columns import sender_from_columns
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import Instance, Outbox

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
        pairs = [(start, ids) for start, ids in zip(starts, results, strict=True) if isinstance(ids, StartedRun)]
        adopt([(ids.chain_id, cluster_id(start, ids.chain_id)) for start, ids in pairs], storage=storage)
        now = storage.now()
        for start, ids in pairs:
            self._insert(ids.chain_id, "start", {}, due_at=start.starts_at(now), storage=storage)
        return results

    def _insert(self, chain_id: UUID, kind: str, body: dict[str, Any], **options: Any) -> None:
        row = outgoing.insert(chain_id, kind, body, **options)
        if options.get("due_at") is None:
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
        rows = Outbox.objects.using(storage.alias).select_for_update(of=("self",))
        rows = rows.filter(chain=run.chain_id, kind=f"{DESTINATION}.start", tries=0)
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
        options: Any = {"hold_seconds": _seconds_to_hold(storage), "storage": storage}
        if kind == "cancel":
            self._insert(target.chain_id, "cancel", {"reason": body["reason"]}, **options)
            return InsertedMessage(0, True)
        signal = {"name": name, **calls.message_body(body, message_id=message_id, sender=sender, headers=headers)}
        if message_id is None:
            self._insert(target.chain_id, "signal", signal, sender=sender, **options)
            return InsertedMessage(0, True)
        with storage.transaction():
            chain_id, replaced, message = target.chain_id, None, MessageFingerprint(kind, name, body, sender)
            while not outgoing.note_message(target, message_id, message, storage=storage):
                if outgoing.forget_refused(chain_id, message_id, storage=storage):
                    continue
                replaced = delete_replaced(chain_id, message_id, message, storage=storage)
                earlier = None if replaced else find_message(chain_id, message_id, storage=storage)
                if earlier is not None:
                    earlier[1].require_same(message_id, message, exact=exact)
                    return InsertedMessage(earlier[0], False)
            self._insert(target.chain_id, "signal", signal, sender=sender, **options)
        return InsertedMessage(0, True, replaced=replaced)

    request = ClusterRequest

    # -- reads --------------------------------------------------------------------------------------------------------

    def query(self, call: RunQueryCall) -> Any:
        """Answer the query by a worker, or from the rows of the run; see ``reads.query``.

        Built-in queries, whose names begin with two underscores, are answered here. Raises ``UnknownQuery``,
        ``QueryFailed``, and ``QueryTimeout`` if no worker answers in time.
        """
        if isinstance(call.query, str) and call.query.startswith("__"):
            return call.answer_built_in()
        return reads.query(call)

    open_tasks = staticmethod(pending.open_tasks)
    history = staticmethod(reads.history)
    closing = staticmethod(reads.closing)

    # -- what operators do --------------------------------------------------------------------------------------------

    def operate(self, call: OperatorCall) -> Any:
        """Perform the operation that ``call.name`` names. See ``operate.OPERATIONS`` for those that the server does.

        The others change rows in a transaction, with the audit row. Rows of the outbox in it take them to the cluster.
        Termination closes the rows at once. A start that nobody has begun to send is never sent.
        """
        if call.name in operate.OPERATIONS:
            return operate.perform(call)
        storage, chain_id, reason = call.storage, call.target.chain_id, {"reason": call.reason}
        with storage.transaction():
            run = call.lock_run()
            call.record(call.target.audit_subject, reason=call.reason)
            if call.name == "cancel":
                self._insert(chain_id, "cancel", reason, storage=storage)
            elif call.name == "delete":
                self._delete(chain_id, storage)
            else:
                mirror.close_locked(run, "terminated", reason, storage=storage)
                if not outgoing.drop_unsent_start(chain_id, storage=storage):
                    self._insert(chain_id, "terminate", reason, storage=storage)
        return None

    def _delete(self, chain_id: UUID, storage: DjangoStorage) -> None:
        """Delete the rows of a chain. A row of the outbox deletes its runs on the cluster later."""
        rows = Instance.objects.using(storage.alias).filter(chain=chain_id)
        runs = [str(run_id) for run_id in rows.values_list("cluster_run_id", flat=True) if run_id is not None]
        cluster_id = rows.values_list("cluster_id", flat=True).first()
        delete_chain(chain_id, storage=storage)
        if runs:  # otherwise its start was never sent
            outgoing.insert(chain_id, "delete", {"cluster_id": cluster_id, "runs": runs}, storage=storage)

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
        payload = codec().decode(bytes(row.body))
        message = calls.message_body(payload, message_id=message_id, sender=sender, headers=row.headers)
        signal = {"name": row.name, **message}
        self._insert(call.target.chain_id, "signal", signal, sender=sender, storage=call.storage)
        return inbox.handled_message(row)
