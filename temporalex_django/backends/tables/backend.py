"""``TablesBackend``: runs that live on the tables of this package, which workers advance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.backends.host import host, inside_transaction
from temporalex_django.backends.protocol import (
    ActivityCall,
    OperatorCall,
    RequestCall,
    ResetCall,
    RunQueryCall,
    RunTarget,
)
from temporalex_django.backends.tables import inline_turn
from temporalex_django.backends.tables.requests import TablesRequest
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.history.events import CLOSED_STATUSES, HistoryEvent
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.payloads import codec as payloads
from temporalex_django.db.activity_tasks import open_tasks
from temporalex_django.db.graph_storage import TaskSource
from temporalex_django.db.inserts import (
    InsertedMessage,
    StartedRun,
    insert_many,
    insert_message,
    insert_start,
    notify_on_commit,
)
from temporalex_django.db.messages import inbox
from temporalex_django.db.messages.inbox import HandledMessage
from temporalex_django.db.paced_starts import replace_waiting_input
from temporalex_django.db.retention import delete_chain
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import operator_overrides, policy
from temporalex_django.engine import reset as apply
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.operator_overrides import (
    immediate_retry,
    input_digests,
    operator_completion,
    operator_failure,
    pause_run,
    retry_atomic,
    unpause_run,
    with_edited_input,
)
from temporalex_django.engine.refusals import nothing_published_error
from temporalex_django.engine.run_closing import CLOSERS
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import AlreadyRunning, QueryFailed
from temporalex_django.models import ActivityTask, ScheduleSlot


class TablesBackend:
    """The backend of runs whose state is in the tables of this package, and not on a Temporal cluster.

    The methods are documented in ``backends.protocol.RunBackend``.
    """

    name = "tables"

    def flush(self, chain_id: UUID, *, storage: DjangoStorage) -> None:
        """Do nothing: workers find in the database what was written, so nothing has to be sent."""

    # -- starts and messages ------------------------------------------------------------------------------------------

    def start(self, start: RunStart, *, storage: DjangoStorage) -> StartedRun:
        """Insert a chain that is due when its run begins, and that run. See ``insert_start``."""
        return insert_start(start, storage=storage)

    def start_many(self, starts: Sequence[RunStart], *, storage: DjangoStorage) -> list[StartedRun | AlreadyRunning]:
        """Insert the chains and runs of these starts. See ``insert_many``."""
        return insert_many(starts, storage=storage)

    def replace_input(self, start: RunStart, sender: Sender | None, *, storage: DjangoStorage) -> StartedRun | None:
        """Give the run that waits to begin the input of a debounced start. See ``replace_waiting_input``."""
        return replace_waiting_input(start, sender, storage=storage)

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
        """Insert a signal or a cancel request into the inbox of the chain, and notify its workers after the commit."""
        inserted = insert_message(
            target.chain_id,
            kind=kind,
            name=name,
            body=body,
            request_id=message_id,
            sender=sender,
            headers=headers,
            exact=exact,
            storage=storage,
        )
        notify_on_commit(alias=storage.alias, queues=[target.queue])
        return inserted

    def request(self, call: RequestCall) -> TablesRequest:
        """Return the message of ``call``, an update, a resume or a decision. Nothing is sent before its ``begin``."""
        return TablesRequest(call)

    # -- reads --------------------------------------------------------------------------------------------------------

    def query(self, call: RunQueryCall) -> Any:
        """Answer a query from the published state, after a turn that takes unread messages if that is possible."""
        return TablesQuery(call).answer()

    def open_tasks(self, target: RunTarget, *, limit: int, storage: DjangoStorage) -> list[ActivityTask]:
        """Return the first activities of the selected run that have no result yet, by number."""
        return open_tasks(target.selected_run_id, limit=limit, alias=storage.alias)

    def history(self, target: RunTarget, *, storage: DjangoStorage, timeout: float | None = None) -> list[HistoryEvent]:
        """Return the events of the selected run, oldest first."""
        del timeout  # they are rows
        return storage.histories({target.selected_run_id: 0})[target.selected_run_id]

    def closing(self, target: RunTarget, *, storage: DjangoStorage) -> tuple[str, Any] | None:
        """Return ``(status of the last run, attributes of its closing event)``; None while the chain is open.

        One read.
        """
        return read_closing(target.chain_id, storage=storage)

    # -- what operators do --------------------------------------------------------------------------------------------

    def close(self, call: OperatorCall, status: str) -> None:
        """Lock the run, close it as "terminated" or "cancelled", and write the audit row."""
        with call.storage.transaction():
            self.close_locked(call, status, call.lock_run())

    def close_locked(self, call: OperatorCall, status: str, run: RunState) -> None:
        """Close the run, whose state ``run`` the open transaction has locked, and write the audit row.

        After the commit, workers are notified and Django signals are sent.
        """
        target, storage = call.target, call.storage
        run_record = storage.closing_record(run.run_id)
        write = CLOSERS[status](run, reason=call.reason, now=storage.now(), record=run_record)
        storage.write([write])
        call.record(target.audit_subject, reason=call.reason)
        inline_turn.notify_after_close(write, target, storage=storage)

    def pause(self, call: OperatorCall) -> None:
        """Lock the run and pause it."""
        with call.storage.transaction():
            run = call.lock_run()
            now = call.storage.now()
            call.storage.write([pause_run(run, reason=call.reason, sender=call.by.sender, now=now)])
            call.record(call.target.audit_subject, reason=call.reason)

    def unpause(self, call: OperatorCall) -> bool:
        """Lock the run and let it continue. Returns True if it stays blocked, because its workers crashed."""
        with call.storage.transaction():
            run = call.lock_run()
            blocked = call.storage.block_reason(run.run_id)
            stays_blocked = blocked is not None and blocked["code"] == CRASH
            call.storage.write([unpause_run(run, blocked=blocked, now=call.storage.now())])
            call.record(call.target.audit_subject, reason=call.reason)
            notify_on_commit(alias=call.storage.alias, queues=[run.queue])
        return stays_blocked

    def skip_timer(self, call: OperatorCall) -> None:
        """Lock the run and deliver its timer in the next turn."""
        assert call.seq is not None
        with call.storage.transaction():
            run = call.lock_run()
            call.storage.write([operator_overrides.skip_timer(run, call.seq, sender=call.by.sender)])
            call.record(call.target.audit_subject, reason=call.reason, seq=call.seq)
            notify_on_commit(alias=call.storage.alias, queues=[run.queue])

    def retry_activity(self, call: ActivityCall) -> None:
        """Lock the run and make its activity due, with its new input if there is one."""
        with call.storage.transaction():
            run = call.lock_run()
            task, digests = call.load_task(run), {}
            if "input" in call.input_values:
                args, kwargs = call.find_activity(task).parse_edited_input(call.input_values["input"], task.args)
                digests["input"] = input_digests(task.args, task.kwargs, {"args": args, "kwargs": kwargs})
                task = with_edited_input(task, args, kwargs, sender=call.by.sender)
                call.storage.edit_task(task)
            now = call.storage.now()
            call.finish_task(immediate_retry(task, now=now), run, **digests)
            # No worker claims an atomic activity: turns of the run execute it, so the run itself must be due.
            if task.atomic:
                call.storage.write([retry_atomic(run, now=now)])

    def complete_activity(self, call: ActivityCall) -> None:
        """Lock the run, and end the activity that ``call`` names with the result that a person gives."""
        with call.storage.transaction():
            run = call.lock_run()
            task = call.load_task(run)
            # Check the value here, where the operator can correct it; later it would block or fail the run.
            result = call.find_activity(task).encode_manual_result(
                call.input_values.get("result"), task.args, TaskSource(task)
            )
            limit = get_settings().MAX_PAYLOAD_BYTES
            call.finish_task(
                operator_completion(task, result, sender=call.by.sender, limit=limit),
                run,
                digest=payloads.digest(result),
            )

    def fail_activity(self, call: ActivityCall) -> None:
        """Lock the run, and end the activity that ``call`` names with the failure that a person gives."""
        with call.storage.transaction():
            run = call.lock_run()
            error_type, message = call.input_values.get("type") or "FailedByHand", call.input_values["message"]
            result = operator_failure(call.load_task(run), type=error_type, message=message, sender=call.by.sender)
            call.finish_task(result, run, digest=payloads.digest(message))

    def reset(self, call: ResetCall) -> str:
        """Replay the history, then lock the chain and continue it with a new run, whose id is returned."""
        target, storage = call.target, call.storage
        # The replay runs code of users, so it comes before the lock (see decision 42).
        call.check_replay()
        with storage.transaction():
            run = call.lock_run()
            plan, code = call.plan(run)
            call.reopen_chain(run, plan, code)
            new_run_id = uuid7()
            writes = apply.reset(storage, run, plan, run_id=new_run_id)
            call.record_plan(plan, new_run_id)
            # A run that a schedule has seen closed is open again, so its next slot must not overlap with it.
            if plan.record.scheduled_for is not None:
                ScheduleSlot.objects.using(storage.alias).filter(chain_id=target.chain_id).update(running=True)
            inline_turn.notify_after_reset(writes, target, storage=storage)
        return str(new_run_id)

    def redeliver(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Put a failed message (a signal whose handler failed) at the end of the inbox of its chain again."""
        target, alias = call.target, call.storage.alias
        notify_on_commit(alias=alias, queues=[target.queue])
        return inbox.redeliver(target.chain_id, message_id, alias=alias)

    def discard(self, call: OperatorCall, message_id: str) -> HandledMessage | None:
        """Mark a failed message (a signal whose handler failed) as discarded, so that it is not delivered again."""
        return inbox.discard(call.target.chain_id, message_id, alias=call.storage.alias)

    def delete(self, call: OperatorCall) -> None:
        """Lock the chain and delete it with all that belongs to it."""
        with call.storage.transaction():
            call.lock_run()
            call.record(call.target.audit_subject, reason=call.reason)
            delete_chain(call.target.chain_id, storage=call.storage)


def read_closing(chain_id: UUID, *, storage: DjangoStorage) -> tuple[str, Any] | None:
    """Return ``(status, attributes of the closing event)`` of the last run of a chain; None while it is open.

    One read.
    """
    rows = storage.sql.select(
        "select i.status, i.closing from temporalex_chain c join temporalex_instance i on i.id = c.run_id"
        " where c.id = %s and c.closed",
        [chain_id],
        ("text", "bytea"),
    )
    if not rows:
        return None
    status, closing = rows[0]
    return status, None if closing is None else codec().decode(closing)


# --- queries ----------------------------------------------------------------------------------------------------------
#
# Queries that the published state in the row of a run answers.


#: Facts about a run, as ``RowQuery._read_row`` returns them.
_Row = tuple[str, bytes | None, bool, bool, int, datetime | None]


class RowQuery:
    """A query that is answered from the rows of a run, in this process.

    ``answer()`` computes the answer from the state that the run has published. ``call`` is the operation that asks.
    """

    def __init__(self, call: RunQueryCall) -> None:
        self.call = call
        self.target, self.storage = call.target, call.storage

    def answer(self) -> Any:
        """Return the answer from the rows as they are. Raises ``UnknownWorkflow`` if this process lacks the class."""
        return self._answer(self._find_class(), self._read_row())

    def _find_class(self) -> type[Workflow]:
        return host().find_class(self.target.chain_id, self.target.workflow, self.target.version)

    def _answer(self, cls: type[Workflow], row: _Row) -> Any:
        if isinstance(self.call.query, str) and self.call.query.startswith("__"):
            return self.call.answer_built_in()
        if row[5] is not None:
            raise nothing_published_error(self.target.workflow, self.target.workflow_id, starts_at=row[5])
        published = None
        if row[1] is not None:
            published = codec().decode(row[1])
        # In the gap after a continue-as-new, the state of the previous run is the best answer (see decision 13).
        if published is None and self.target.pinned is None and row[0] not in CLOSED_STATUSES:
            published = self._previous_state()
        return self._call(cls, row, published)

    def _call(self, cls: type[Workflow], row: _Row, published: Any) -> Any:
        """Call the query function of the class with the published state."""
        del row
        return cls.answer(self.call.query, self.call.args, published)

    def _read_row(self) -> _Row:
        """Read six facts from the rows of the run and its chain, in one statement.

        These are the status, the published state as bytes, True if the run is blocked, and True if it has unread
        messages. Then come the number of processes in a row that died while they ran its code, and the time at which it
        begins if that is later than now.
        """
        run = "c.run_id" if self.target.pinned is None else "%s"
        pinned = [] if self.target.pinned is None else [self.target.pinned]
        now, clock = self.storage.sql.now_expression(self.storage.clock)
        rows = self.storage.sql.select(
            "select i.status, i.published, i.blocked is not null,"  # noqa: S608 - one of two constants
            " exists (select 1 from temporalex_message m where m.chain_id = c.id and not m.settled and m.fresh), c.crashes,"
            f" case when i.status = 'pending' and i.starts_at > {now} then i.starts_at end"
            f" from temporalex_chain c join temporalex_instance i on i.id = {run} where c.id = %s",
            [*clock, *pinned, self.target.chain_id],
            ("text", "bytea", "bool", "bool", "int4", "timestamptz"),
        )
        status, published, blocked, has_undelivered, crashes, starts_at = rows[0]
        return status, published, blocked, has_undelivered, crashes, starts_at

    def _previous_state(self) -> Any:
        """Return the published state of the run that continued as this one, or None if there is none.

        It answers queries until the new run has published a state. The state of a run that was reset is not used,
        because it describes what no longer happened.
        """
        rows = self.storage.sql.select(
            "select o.id, o.published, o.status from temporalex_instance o where o.chain_id = %s order by o.id desc limit 2",
            [self.target.chain_id],
            ("uuid", "bytea", "text"),
        )
        runs: list[tuple[UUID, bytes | None, str]] = [(row[0], row[1], row[2]) for row in rows]
        if len(runs) < 2 or runs[1][1] is None or runs[1][2] != "continued_as_new":
            return None
        return codec().decode(runs[1][1])


class TablesQuery(RowQuery):
    """A query to a run that lives on the tables. Its state in the row may be older than its messages."""

    def answer(self) -> Any:
        """Return the answer, after a turn of the run if it has unread messages or has not begun to run."""
        inline_turn.refuse_own_run(self.target, "query()", storage=self.storage)
        cls = self._find_class()
        row = self._read_row()
        if self._may_advance(row) and self._advance_run():
            row = self._read_row()
        return self._answer(cls, row)

    def _call(self, cls: type[Workflow], row: _Row, published: Any) -> Any:
        # The query runs code of the class too, and may end this process as turns have ended others.
        if row[4] >= policy.MOST_CRASHES:
            raise QueryFailed(
                f"{self.target.workflow} {self.target.workflow_id} cannot answer queries: {row[4]} processes "
                "in a row died while running its code. Terminate it, or fix its code and move it"
            )
        with inline_turn.crash_marker(self.storage).record_work("run", self.target.run_id):
            return super()._call(cls, row, published)

    def _may_advance(self, row: _Row) -> bool:
        """Return True if the published state in ``row`` is stale and a turn in this process may update it.

        ``row`` is the tuple that ``_read_row`` returns. The state is stale if the run has unread messages, or has not
        had its first turn.
        """
        status, _, blocked, has_undelivered, _, starts_at = row
        if starts_at is not None:
            return False
        is_stale = has_undelivered or (status == "pending" and not blocked)
        may_run = self.call.fresh and host().runs_turns and self.target.workflow_class is not None
        return is_stale and may_run and status not in CLOSED_STATUSES

    def _advance_run(self) -> bool:
        """Run a turn, so that the published state includes unread messages; return True if it may have changed.

        No turn runs if the lock of the chain is not free in time. Returns False if the caller's transaction has a fixed
        snapshot, because it could not see the change.
        """
        in_transaction = inside_transaction(self.storage.alias)
        if in_transaction and self.storage.sql.fixed_snapshot():
            # The snapshot of the transaction may be older than the row that it would lock. Answer from the row instead.
            return False
        try:
            with self.storage.savepoint() if in_transaction else self.storage.transaction():
                run = inline_turn.try_lock_run(self.target, storage=self.storage, wait=get_settings().UPDATE_LOCK_WAIT)
                if run is None or run.closed:
                    return True
                inline_turn.advance(self.target, storage=self.storage)
        except DatabaseError as exc:
            if in_transaction or not self.storage.is_transient(exc):
                raise
        return True
