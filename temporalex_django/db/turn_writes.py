"""Writes of a turn: one statement for each table, however many runs the turn advanced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.authoring.run_columns import NextRun, names_for_next_run
from temporalex_django.authoring.run_filters import is_wait_of
from temporalex_django.conf import codec, queue_limits
from temporalex_django.core.failures import error_line
from temporalex_django.core.limits import QueuePartition
from temporalex_django.core.names import TABLES, TEMPORAL, all_names
from temporalex_django.core.payloads.search_attributes import search_rows
from temporalex_django.db.activity_tasks import ActivityTasks, earliest_moment, process_name, store_failed_attempts
from temporalex_django.db.human_tasks import audit_refused_redeliveries, audit_refused_signals, write_human_tasks
from temporalex_django.db.messages.inbox import Inboxes, write_failed_messages
from temporalex_django.db.session import StorageSession
from temporalex_django.db.sql_columns import (
    CAUSE,
    CHAINS,
    EVENTS,
    FAILURE,
    MESSAGES,
    NEW_RUN,
    OUTBOX,
    RUNS,
    SEARCH_ATTRIBUTES,
    TASKS,
    ColumnSet,
    failure_row,
    new_run_row,
)
from temporalex_django.db.start_statement import SCOPED_CHAIN, SCOPED_CHAIN_INSERT
from temporalex_django.engine.activity_policy import edited_inputs
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import NewTask, RunRecord, RunState, RunWrite, TaskState
from temporalex_django.engine.external_messages import PARENT_CLOSE_KINDS, PARENT_CLOSED, Delivery, NewChild, NewMessage
from temporalex_django.engine.ids import RunRef, parse_run_id, resolve_run, run_id_taken_error, uuid7
from temporalex_django.engine.scheduling import EagerClaim
from temporalex_django.errors import AmbiguousId, KeyMissing, PayloadError
from temporalex_django.models.runs import AWAITED_KINDS

log = logging.getLogger("temporalex_django.db")

_EVENT = EVENTS.pick_columns("run_id", "seq", "activation", "kind", "at", "attributes")
_EVENT_INSERT = _EVENT.insert
_TASK = TASKS.pick_columns(
    *(
        "chain_id",
        "run_id",
        "workflow_id",
        "workflow",
        "seq",
        "activity",
        "call",
        "options",
        "queue",
        "line",
        "run_queue",
    ),
    *("atomic", "max_attempts", "scheduled_at", "due_at", "close_at", "schedule_to_start", "start_to_close"),
    *("heartbeat_timeout", "tags", "metadata", "headers", "expires_at"),
)
_TASK_INSERT = _TASK.insert
_CLAIMED = TASKS.pick_columns(*_TASK.column_names, "owner", "attempt")
_CLAIMED_INSERT = f"{_CLAIMED.insert} returning id, run_id, seq"
_CALL = _TASK.column_names.index("call")
_COMMAND = TASKS.pick_columns("run_id", "seq")
_DUE = TASKS.pick_columns("run_id", "seq", "attempt", "due_at", *FAILURE)
_DUE_UPDATE = _DUE.update("run_id", "seq", failing_since=f"coalesce({TASKS.name}.failing_since, v.failed_at)", **CAUSE)
#: All columns of a chain that a turn writes. The queue is that of its run and never changes.
_CHAIN = CHAINS.pick_fields(RunState, chain_id="id", queue=None)
#: The kinds of waits as bits, in the order of ``AWAITED_KINDS``. NULL leaves them as they are.
_AWAITED = ("awaited", "int4")
#: Condition: the row has to leave its page anyway, because of the index of due chains, or leaves the lists for good.
_LEAVES_PAGE = (
    f"v.closed or coalesce({CHAINS.name}.due_at <> v.due_at, {CHAINS.name}.due_at is not null or v.due_at is not null)"
)
#: A wait is marked at once. The mark is removed only if the row leaves its page, so that a run that alternates between
#: messages and activities stays there.
_CHAIN_UPDATE = _CHAIN.update(
    "id",
    open_key="case when v.closed then null else open_key end",
    **{
        f"awaits_{kind}": f"case when v.awaited is null then awaits_{kind} when {_LEAVES_PAGE}"
        f" then (v.awaited & {1 << bit}) <> 0 else awaits_{kind} or (v.awaited & {1 << bit}) <> 0 end"
        for bit, kind in enumerate(AWAITED_KINDS)
    },
)
_SETTLED = MESSAGES.pick_columns("id", "outcome_status", "outcome", "answered_at")
_SETTLED_UPDATE = _SETTLED.update("id", fresh="false", settled="true")
_OUTCOME = MESSAGES.pick_columns("chain_id", "request_id", "outcome_status", "outcome", "answered_at")
_OUTCOME_UPDATE = _OUTCOME.update("chain_id", "request_id")
_CLOSED = MESSAGES.pick_columns("chain_id", "outcome_status", "outcome")
#: Condition for accepted updates. Each has a message id, so the index of message ids finds them.
_ACCEPTED = f"kind = 'update' and {MESSAGES.name}.outcome_status = 'accepted' and request_id is not null"
_CLOSED_UPDATE = _CLOSED.update("chain_id", only=f" and {_ACCEPTED}")
_WAITING = MESSAGES.pick_columns("id", "after")
_WAITING_UPDATE = _WAITING.update("id", fresh="false")
#: Columns of a run that a turn may change.
_CHANGEABLE = (
    *(
        "status",
        "published",
        "published_at",
        "stored",
        "search_attributes",
        "accepts",
        "waiting_for",
        "waits",
        "started_at",
        "closed_at",
        "closing",
        "cause",
        "fault",
        "blocked",
    ),
    *("paused", "mirrored_at", "cluster_task_at"),
)
_NEXT = RUNS.pick_columns(
    *("id", "args", "seed", "carried_messages", "snapshot", "search_attributes", "created_at"),
    previous="uuid",
    alike="bool",
)
#: Columns that the next run of a chain takes from the run before.
_COPIED = names_for_next_run(NextRun.COPIED)
#: Further columns that it takes over unless it starts from a reset.
_CONTINUED = names_for_next_run(NextRun.CONTINUED)
_NEXT_INSERT = RUNS.insert(
    {
        **{name: f"v.{name}" for name in _NEXT.column_names},
        **{name: f"o.{name}" for name in _COPIED},
        **{name: f"case when v.alike then null else o.{name} end" for name in _CONTINUED},
    },
    f"from v join {RUNS.name} o on o.id = v.previous where o.id {{key}}",
)


@cache
def _run_update(names: tuple[str, ...]) -> tuple[ColumnSet, str]:
    """Return ``(columns, statement)`` for many runs. A flag for each column says if it has a new value or stays."""
    columns = RUNS.pick_columns("id", *names, **{f"has_{name}": "bool" for name in names})
    sets = {name: f"case when v.has_{name} then v.{name} else {RUNS.name}.{name} end" for name in names}
    return columns, RUNS.update(sets, f"from v where {RUNS.name}.id = v.id and {RUNS.name}.id {{key}}")


class TurnWriter:
    """The part of a database storage that stores what a turn produced for the runs that it advanced.

    All of it runs inside the turn's transaction, on chains that the turn has locked.
    """

    def __init__(self, session: StorageSession, *, inboxes: Inboxes, tasks: ActivityTasks) -> None:
        self._session = session
        self._sql = session.sql
        self._inboxes = inboxes
        self._tasks = tasks

    def _partition(self, task: NewTask) -> str | None:
        """Return the partition in which an activity has to wait. None, as for most: it is in no partition."""
        key = task.options.get("concurrency_key")
        if (key is None and task.activity not in activity.limits_by_name) or self._session.clock is not None:
            return None  # test environments with a virtual clock have no limits
        activity_limits = activity.limits_by_name.get(task.activity)
        if key is not None and not any(
            limits.concurrency_per_key for limits in (activity_limits, queue_limits().get(task.queue)) if limits
        ):
            key = None
        partition = QueuePartition(None if activity_limits is None else task.activity, key).name
        self._session.partitioned = self._session.partitioned or partition is not None
        return partition

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced for its runs: events, activities, messages, rows of runs and chains.

        It locks the messages and activities that it names, and no rows of other runs. ``eager_claim`` chooses new
        activities to store as claimed by this worker. ``is_last`` says that no statement follows in the transaction.

        The function that it returns gives the claimed activities; call it after the commit.
        """
        # Before the pipeline, because its statements read the answers of earlier ones.
        ExternalRunWriter(self._sql, self._session.clock).write(writes)
        self._warn_unfinished_updates(writes)
        self._record_leftovers(writes)
        new: Sequence[NewTask] = ()
        if eager_claim is not None and self._sql.claims_on_insert:
            new = eager_claim.select(t for w in writes for t in w.tasks)
        seldom = [w for w in writes if _has_orm_rows(w)]
        # The commit may go with the last statements only if no statement of the ORM follows.
        with self._session.final_pipeline() if is_last and not seldom else self._sql.pipeline():
            fetch_claimed = self._write_claimed_tasks(writes, new, eager_claim)
            self._write_events(writes)
            self._write_tasks(writes, {(t.run_id, t.seq) for t in new})
            self._write_inbox(writes)
            self._write_runs(writes)
            self._write_chains(writes)
        if seldom:
            self._write_orm_rows(seldom)
        return fetch_claimed

    def _write_events(self, writes: Sequence[RunWrite]) -> None:
        events = (
            [w.run.run_id, e.number, e.activation, e.kind, e.at, e.attributes if e.encoded is None else e.encoded]
            for w in writes
            for e in w.events
        )
        self._sql.write(_EVENT.columns, _EVENT_INSERT, _EVENT.encode_rows(events))

    def _write_orm_rows(self, writes: Sequence[RunWrite]) -> None:
        """Store rows that few turns have, so the ORM is fast enough."""
        alias = self._session.alias
        audit_refused_signals([refused for w in writes for refused in w.refused_signals], alias=alias)
        audit_refused_redeliveries([message for w in writes for message in w.refused_redeliveries], alias=alias)
        write_failed_messages(writes, alias=alias)
        write_human_tasks(writes, alias=alias)
        failed = [result for w in writes for result in w.failed_attempts]
        store_failed_attempts(failed, now=self._session.now, sql=self._sql, worker=process_name())

    def _warn_unfinished_updates(self, writes: Sequence[RunWrite]) -> None:
        """Log accepted updates that get no answer, because these writes close their runs from outside."""
        for write in writes:
            if write.next_run is not None or not write.is_closed_externally:
                continue
            rows = self._sql.select(
                f"select name from temporalex_message where chain_id = %s and {_ACCEPTED} order by id",
                [write.run.chain_id],
                ("text",),
            )
            write.warn_unfinished([name for (name,) in rows])

    def _record_leftovers(self, writes: Sequence[RunWrite]) -> None:
        """Add edited inputs and unread results, which would be lost with their activities, to histories.

        Call it before the rows are deleted. A payload that cannot be read does not keep a run from closing.
        """
        for write in writes:
            if not write.loses_activities:
                continue
            try:
                write.add_lost_inputs(edited_inputs(self._tasks.tasks_of_run(write.run.run_id)))
                if write.is_closed_externally:
                    write.add_unread_results(self._inboxes.inbox([write.run.chain_id])[write.run.chain_id])
            except (KeyMissing, PayloadError) as exc:
                run_id = str(write.run.run_id)
                log.warning(
                    "edited inputs and unread results of run %s are lost: %s",
                    run_id,
                    error_line(exc),
                    extra={"run_id": run_id},
                )

    def _write_chains(self, writes: Sequence[RunWrite]) -> None:
        rows = [(*_CHAIN.values_of(w.next_state()), _awaited_kinds(w)) for w in writes]
        self._sql.write((*_CHAIN.columns, _AWAITED), _CHAIN_UPDATE, rows, key="id")

    def _write_tasks(self, writes: Sequence[RunWrite], claimed_commands: Collection[tuple[UUID, int]]) -> None:
        """Insert new activities, except those stored already; make retries due; delete cancelled and dropped ones."""
        new = [
            task_row(t, w.run.queue, self._partition(t))
            for w in writes
            for t in w.tasks
            if (t.run_id, t.seq) not in claimed_commands
        ]
        self._sql.write(_TASK.columns, _TASK_INSERT, _TASK.encode_rows(new))
        retries = [
            (w.run.run_id, seq, retry.attempt, retry.due_at, *failure_row(retry.failure))
            for w in writes
            for seq, retry in w.retried_tasks.items()
        ]
        retries += [
            (t.run_id, t.seq, t.attempt, t.due_at, *failure_row(t.failure))
            for w in writes
            for t in w.tasks
            if t.due_at is not None
        ]
        self._sql.write(_DUE.columns, _DUE_UPDATE, _DUE.encode_rows(retries), key="run_id")
        self._sql.write(
            _COMMAND.columns,
            "delete from temporalex_activity_task where run_id {key} and (run_id, seq) in (select run_id, seq from v)",
            [(w.run.run_id, seq) for w in writes for seq in w.cancelled_tasks],
            key="run_id",
        )
        dropped = [w.run.run_id for w in writes if w.drop_tasks]
        if dropped:
            test, parameter = self._sql.in_array(dropped, "uuid")
            self._sql.execute(f"delete from temporalex_activity_task where run_id {test}", [parameter])

    def _write_claimed_tasks(
        self, writes: Sequence[RunWrite], new: Sequence[NewTask], eager_claim: EagerClaim | None
    ) -> Callable[[], list[TaskState]]:
        """Insert activities as claimed by this worker, in their first attempt. Call the result after the commit."""
        if not new or eager_claim is None:
            return list
        owner, queues = eager_claim.owner, {w.run.run_id: w.run.queue for w in writes}
        rows = _CLAIMED.encode_rows((*task_row(t, queues[t.run_id], self._partition(t)), owner, 1) for t in new)
        ids = self._sql.submit_write(_CLAIMED.columns, _CLAIMED_INSERT, rows, ("int8", *_COMMAND.types))
        decode = codec().decode
        calls = [decode(stored[_CALL]) for stored in rows]  # copies, since an activity may change its arguments

        def fetch_claimed() -> list[TaskState]:
            numbers = {(run, seq): task for task, run, seq in ids()}
            return [
                t.as_state(numbers[t.run_id, t.seq], args=args, kwargs=kwargs, attempt=1, owner=owner)
                for t, (args, kwargs) in zip(new, calls, strict=True)
            ]

        return fetch_claimed

    def _write_inbox(self, writes: Sequence[RunWrite]) -> None:
        """Store outcomes of messages. Messages that are events of the history now are deleted."""
        if consumed := [i for w in writes for i in w.consumed]:
            test, parameter = self._sql.in_array(consumed, "int8")
            self._sql.execute(f"delete from temporalex_message where id {test}", [parameter])
        if parked := [i for w in writes for i in w.parked]:
            test, parameter = self._sql.in_array(parked, "int8")
            self._sql.execute(f"update temporalex_message set fresh = false where id {test}", [parameter])
        self._write_outcomes(writes)
        waiting = [(i, after) for w in writes for i, after in w.waiting.items()]
        self._sql.write(_WAITING.columns, _WAITING_UPDATE, waiting, key="id")

    def _write_outcomes(self, writes: Sequence[RunWrite]) -> None:
        """Store outcomes, and answer updates that are unfinished when their chain closes."""
        settled = ((i, o.status, o.value, w.run.activated_at) for w in writes for i, o in w.settled.items())
        self._sql.write(_SETTLED.columns, _SETTLED_UPDATE, _SETTLED.encode_rows(settled), key="id")
        outcomes = (
            (w.run.chain_id, i, o.status, o.value, w.run.activated_at) for w in writes for i, o in w.outcomes.items()
        )
        self._sql.write(_OUTCOME.columns, _OUTCOME_UPDATE, _OUTCOME.encode_rows(outcomes), key="chain_id")
        closings = [(w.run.chain_id, w.closing) for w in writes if w.closing is not None and w.leaves_messages]
        closed = ((chain, outcome.status, outcome.value) for chain, outcome in closings)
        self._sql.write(_CLOSED.columns, _CLOSED_UPDATE, _CLOSED.encode_rows(closed), key="chain_id")
        # Messages that waited behind a handler, a pause or a block are answered by a turn that finds the run closed.
        if closings:
            test, parameter = self._sql.in_array([chain for chain, _ in closings], "uuid")
            self._sql.execute(
                f"update temporalex_message set fresh = true where chain_id {test} and not settled and not fresh",
                [parameter],
            )

    def _write_runs(self, writes: Sequence[RunWrite]) -> None:
        if changes := [(w.run.run_id, w.instance) for w in writes if w.instance]:
            self._change_runs(changes)
        if successors := [(w, w.next_run) for w in writes if w.next_run is not None]:
            self._insert_next_runs(successors)

    def _change_runs(self, changes: Sequence[tuple[UUID, Mapping[str, Any]]]) -> None:
        """Store the changed columns of runs, and the rows of their search attributes."""
        names = tuple(name for name in _CHANGEABLE if any(name in values for _, values in changes))
        columns, statement = _run_update(names)
        rows = columns.encode_rows(
            [run, *map(values.get, names), *(n in values for n in names)] for run, values in changes
        )
        self._sql.write(columns.columns, statement, rows, key="id")
        if "search_attributes" in names:
            attributes = [(run, values) for run, values in changes if "search_attributes" in values]
            replace_search_attributes(
                self._sql, [(run, values["search_attributes"] or {}) for run, values in attributes]
            )

    def _insert_next_runs(self, successors: Sequence[tuple[RunWrite, RunRecord]]) -> None:
        now = max(w.run.activated_at for w, _ in successors if w.run.activated_at is not None)
        new = (
            (
                n.run_id,
                n.args,
                n.seed,
                n.carried_messages,
                n.snapshot,
                n.search_attributes,
                now,
                w.reset_run_id or w.run.run_id,
                w.reset_run_id is not None,
            )
            for w, n in successors
        )
        self._sql.write(_NEXT.columns, _NEXT_INSERT, _NEXT.encode_rows(new), key="previous")
        insert_search_attributes(
            self._sql, [(n.run_id, n.search_attributes) for _, n in successors if n.search_attributes]
        )


def _has_orm_rows(w: RunWrite) -> bool:
    """Return True if the ORM stores something, after the statements that are sent together."""
    return bool(
        w.refused_signals
        or w.refused_redeliveries
        or w.human_tasks
        or w.failed_signals
        or w.failed_attempts
        or w.is_closed_externally
    )


def _awaited_kinds(w: RunWrite) -> int | None:
    """Return one bit each for a message, a timer and a child (``AWAITED_KINDS``). None: no change."""
    if w.run.closed or w.next_run is not None:
        return 0
    if "waiting_for" not in w.instance:
        return None
    texts = w.instance["waiting_for"]
    return sum(is_wait_of(kind, texts) << bit for bit, kind in enumerate(AWAITED_KINDS))


def task_row(task: NewTask, run_queue: str, partition: str | None) -> tuple[Any, ...]:
    """Return the values of the row of a new activity, in the order of the columns that a turn inserts.

    ``run_queue`` is the queue of its run. ``partition`` is the name of the partition of the activity's own queue in
    which it waits behind activities with its key or limit; None: it is in no partition.
    """
    options = task.options
    to_start = options.get("schedule_to_start")
    total = options.get("schedule_to_close")
    close_at = None
    if total is not None:
        close_at = task.scheduled_at + timedelta(seconds=total)
    expires = None
    # Atomic activities run inside a turn of their own run, so only that turn can time them out.
    if not task.atomic:
        start_by = None
        if to_start is not None:
            start_by = task.scheduled_at + timedelta(seconds=to_start)
        expires = earliest_moment(close_at, start_by)
    return (
        *(task.chain_id, task.run_id, task.workflow_id, task.workflow, task.seq, task.activity),
        *([list(task.args), dict(task.kwargs)], dict(options), task.queue, partition, run_queue, task.atomic),
        *(int((options.get("retry") or {}).get("max_attempts") or 0), task.scheduled_at, task.scheduled_at),
        *(close_at, to_start, options.get("start_to_close"), options.get("heartbeat"), task.tags, task.metadata),
        *(task.headers, expires),
    )


# --- other runs -------------------------------------------------------------------------------------------------------
#
# The writes of a turn for other runs: new children, messages, and cancel requests to children whose parent has closed.
#
# Inserts only: a turn locks no chains but its own.


# Joins name the key of the chain, since its current run has no index. "is not null" lets prepared plans use the partial
# index.
_RUN_INSERT = NEW_RUN.insert
_MESSAGE = MESSAGES.pick_columns(
    "chain_id", "run_id", "kind", "name", "body", "request_id", "headers", "created_at", place="int4"
)
# The ids of the rows are the order of an inbox, and a join keeps none.
_MESSAGE_INSERT = MESSAGES.insert(
    {**{name: f"v.{name}" for name in _MESSAGE.column_names}, "queue": "c.queue"},
    f"from v join {CHAINS.name} c on c.id = v.chain_id where c.id {{key}} and c.backend = '{TABLES}' order by v.place on conflict do nothing",
)
#: A message to a run on a Temporal cluster, which the outbox sends.
_OUTGOING = OUTBOX.pick_columns("id", "chain_id", "destination", "kind", "body", "created_at", "due_at")
_RUN = RUNS.pick_columns("id", "workflow", "version")
_RUN_COLUMNS = f"c.id, {RUNS.pick_columns('id', 'workflow', 'status').with_alias('i')}, c.closed"


_PARENT_CLOSE = "".join(f" when '{policy}' then '{kind}'" for policy, kind in PARENT_CLOSE_KINDS.items())


class ExternalRunWriter:
    """Stores what a turn has for other runs, new children and messages, with one statement for each table.

    A turn that has nothing for other runs sends no statement. ``clock`` replaces the database's clock; None: it does
    not.
    """

    def __init__(self, sql: Dialect, clock: Callable[[], datetime] | None) -> None:
        self._sql = sql
        self._clock = clock

    def write(self, writes: Sequence[RunWrite]) -> None:
        """Store new children, then messages to other runs, so that a message of the same turn finds its child."""
        messages = [m for w in writes for m in w.messages]
        if children := [c for w in writes for c in w.children]:
            messages += self._start_children(children)
        if messages:
            self._send_messages(messages)
        if closed := [w.run.run_id for w in writes if w.close_children]:
            self._close_children(closed)

    def _start_children(self, children: Sequence[NewChild]) -> list[NewMessage]:
        """Insert runs by open key, so that turns wait in one direction only; return messages about refused ones."""
        refused = self._resolve_run_ids(child.workflow_id for child in children)
        messages, free, colliding_children = list[NewMessage](), list[NewChild](), list[NewChild]()
        for child in children:
            if child.workflow_id in refused:
                messages.append(child.refusal_message(run_id_taken_error(child.workflow_id)))
            elif self._has_open_alias(child):
                colliding_children.append(child)
            else:
                free.append(child)
        new = [(uuid7(), uuid7(), child) for child in sorted(free, key=lambda child: child.open_key or "")]
        chains = [
            (chain, run, c.queue, c.due_at(c.at), c.deadline(c.at), c.open_key, c.scope, c.workflow_id, c.workflow)
            for chain, run, c in new
        ]
        self._sql.write(SCOPED_CHAIN.columns, SCOPED_CHAIN_INSERT, chains)
        inserted_ids = self._existing_chains([chain for chain, _, _ in new])
        self._insert_first_runs([entry for entry in new if entry[0] in inserted_ids])
        colliding_children += [child for chain, _, child in new if chain not in inserted_ids]
        return messages + [child.refusal_message() for child in colliding_children]

    def _existing_chains(self, chains: Sequence[UUID]) -> set[UUID]:
        """Return the ids for which there is a row: those that an insert did not skip as a conflict."""
        test, parameter = self._sql.in_array(chains, "uuid")
        rows = self._sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
        return {row[0] for row in rows}

    def _insert_first_runs(self, new: Sequence[tuple[UUID, UUID, NewChild]]) -> None:
        runs = [
            new_run_row(
                c,
                chain,
                run,
                {"created_at": c.at, "starts_at": c.starts_at(c.at), "expires_at": c.expires_at(c.at)},
            )
            for chain, run, c in new
        ]
        self._sql.write(NEW_RUN.columns, _RUN_INSERT, runs)
        search_attributes = [(run, c.search_attributes) for _, run, c in new if c.search_attributes]
        insert_search_attributes(self._sql, search_attributes)

    def _has_open_alias(self, child: NewChild) -> bool:
        """Return True if an open run under a former name has the id. One statement; none if never renamed."""
        aliases = all_names(child.workflow)[1:]
        if not aliases or child.scope not in ("workflow", "version"):
            return False
        test, parameter = self._sql.in_array(aliases, "text")
        version = " and i.version = %s" if child.scope == "version" else ""
        rows = self._sql.select(
            f"select 1 from {RUNS.name} i join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id"
            f" where i.workflow_id = %s and i.workflow {test}{version} and c.open_key is not null limit 1",
            [child.workflow_id, parameter, *([child.version] if version else [])],
            ("int4",),
        )
        return bool(rows)

    def deliver(self, message: NewMessage) -> tuple[str, dict[str, Any]]:
        """Insert a message whose sender waits to learn if it was stored, and return ``(name, payload)`` of the answer.

        ``NewMessage.answer`` makes the answer. The caller passes it on to the sender.
        """
        answers: list[tuple[str, dict[str, Any]]] = []
        self._send_messages([message], tell=answers.append)
        return answers[0]

    def _send_messages(
        self, messages: Sequence[NewMessage], *, tell: Callable[[tuple[str, dict[str, Any]]], None] | None = None
    ) -> None:
        """Insert each message at its receiver. Senders that asked are told if it was stored, by ``tell`` if given."""
        by_id = self._resolve_ids(
            {m.workflow_id for m in messages if m.chain_id is None and m.child is None and m.workflow_id}
        )
        children = self._open_children({m.child[0] for m in messages if m.child is not None})
        now, message_rows, outgoing_rows = self._now(), list[Any](), list[Any]()
        for m in messages:
            delivery = m.check_delivery(_delivery_of(m, children, by_id))
            chain = delivery.chain_id
            if chain is not None:
                row = (chain, m.run_id, m.kind, m.name, m.payload, m.message_id, m.headers, now)
                (outgoing_rows if delivery.is_elsewhere else message_rows).append(row)
            elif m.ask is None:
                log.warning(
                    "a %s for %r found no open run", m.kind, m.workflow_id, extra={"workflow_id": m.workflow_id}
                )
            if m.ask is not None and tell is not None:
                tell(m.answer(delivery))
            elif m.ask is not None:
                name, body = m.answer(delivery)
                message_rows.append((m.ask[0], m.ask[1], "external", name, body, None, m.headers, now))
        rows = _MESSAGE.encode_rows((*row, place) for place, row in enumerate(message_rows))
        self._sql.write(_MESSAGE.columns, _MESSAGE_INSERT, rows, key="chain_id")
        self._sql.write(_OUTGOING.columns, _OUTGOING.insert, _OUTGOING.encode_rows(map(_outgoing_row, outgoing_rows)))

    def _now(self) -> datetime:
        if self._clock is not None:
            return self._clock()
        now, parameters = self._sql.now_expression(None, live=True)
        moment: datetime = self._sql.select(f"select {now}", parameters, ("timestamptz",))[0][0]
        return moment

    def _resolve_ids(self, ids: Collection[str]) -> dict[str, Delivery]:
        """Return by run id or business id the chain that receives messages, or why there is none."""
        deliveries = self._resolve_run_ids(ids)
        # For each id: the newest open run of the last workflow by name, and if another workflow has an open one. That
        # is two looks into an index.
        rows = self._sql.write_returning(
            RUNS.pick_columns("workflow_id").columns,
            "select v.workflow_id, x.chain_id, x.workflow, x.version,"
            " exists (select 1 from temporalex_instance i join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and i.workflow < x.workflow and not c.closed),"
            " exists (select 1 from temporalex_instance i where i.workflow_id = v.workflow_id), x.mirrored_at is not null"
            " from v left join temporalex_instance x on x.id = (select i.id from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = v.workflow_id and not c.closed order by i.workflow desc, i.id desc limit 1)",
            [(workflow_id,) for workflow_id in sorted(ids) if workflow_id not in deliveries],
            ("text", "uuid", "text", "int4", "bool", "bool", "bool"),
        )
        for workflow_id, chain, workflow, version, several, exists, is_elsewhere in rows:
            delivery = Delivery(chain, exists, workflow=workflow, version=version or 0, is_elsewhere=bool(is_elsewhere))
            deliveries[workflow_id] = self._resolve_ambiguous(workflow_id) if several else delivery
        return deliveries

    def _resolve_ambiguous(self, workflow_id: str) -> Delivery:
        """Return the receiver for an id of several workflows, perhaps an ``AmbiguousId`` error and no chain."""
        rows = self._sql.select(
            f"select {_RUN_COLUMNS}, i.version, c.backend <> '{TABLES}' from temporalex_instance i"
            " join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id"
            " where i.workflow_id = %s and not c.closed order by i.id desc",
            [workflow_id],
            ("uuid", "uuid", "text", "text", "bool", "int4", "bool"),
        )
        candidates = {RunRef(*row): (version, is_elsewhere) for *row, version, is_elsewhere in rows}
        try:
            run = resolve_run(workflow_id, candidates)
        except AmbiguousId as exc:
            return Delivery(None, error=exc)
        if run is None:
            return Delivery(None)
        version, is_elsewhere = candidates[run]
        return Delivery(run.chain_id, workflow=run.workflow, version=version, is_elsewhere=bool(is_elsewhere))

    def _resolve_run_ids(self, ids: Iterable[str]) -> dict[str, Delivery]:
        """Return receivers for ids that are run ids. No statement if none has that form."""
        run_ids = {run_id: text for text in ids if (run_id := parse_run_id(text)) is not None}
        if not run_ids:
            return {}
        test, parameter = self._sql.in_array(list(run_ids), "uuid")
        rows = self._sql.select(
            f"select {_RUN.with_alias('i')}, c.id, c.closed, c.backend <> '{TABLES}'"
            f" from temporalex_instance i join temporalex_chain c on c.id = i.chain_id where i.id {test}",
            [parameter],
            (*_RUN.types, "uuid", "bool", "bool"),
        )
        return {
            run_ids[run]: Delivery(
                None if closed else chain, workflow=workflow, version=version, is_elsewhere=bool(is_elsewhere)
            )
            for run, workflow, version, chain, closed, is_elsewhere in rows
        }

    def _open_children(self, runs: Iterable[UUID]) -> dict[tuple[UUID, int], UUID]:
        """Return open chains by run and number of the command that started the child."""
        run_ids = list(runs)
        if not run_ids:
            return {}
        test, parameter = self._sql.in_array(run_ids, "uuid")
        rows = self._sql.select(
            "select i.parent_run_id, i.parent_seq, c.id from temporalex_instance i"
            f" join temporalex_chain c on c.id = i.chain_id and c.run_id = i.id where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed",
            [parameter],
            ("uuid", "int4", "uuid"),
        )
        return {(run, seq): chain for run, seq, chain in rows}

    def _close_children(self, runs: Sequence[UUID]) -> None:
        """Send open children a cancel or terminate message, as their ``parent_close`` says."""
        test, parameter = self._sql.in_array(runs, "uuid")
        now, clock = self._sql.now_expression(self._clock, live=True)
        body: Any = codec().encode(dict(PARENT_CLOSED))
        self._sql.execute(
            MESSAGES.insert(
                {
                    "chain_id": "c.id",
                    "queue": "c.queue",
                    "kind": f"case i.parent_close{_PARENT_CLOSE} end",
                    "name": "''",
                    "body": "%s",
                    "created_at": now,
                },
                f"from {RUNS.name} i join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id"
                f" where i.parent_run_id {test} and i.parent_run_id is not null and not c.closed"
                f" and i.parent_close in ({', '.join(map(repr, PARENT_CLOSE_KINDS))})",
            ),
            [body, *clock, parameter],
        )


def _outgoing_row(message_row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the outbox row of a signal or a cancel request to a run on a Temporal cluster."""
    chain, _, kind, name, payload, message_id, headers, now = message_row
    body: dict[str, Any] = {"name": name, "payload": payload, "id": message_id, "sender": None, "headers": headers}
    if kind == "cancel":
        body = {"reason": (payload or {}).get("reason", "")}
    return uuid7(), chain, TEMPORAL, f"{TEMPORAL}.{kind}", body, now, now


def _delivery_of(message: NewMessage, children: dict[tuple[UUID, int], UUID], by_id: dict[str, Delivery]) -> Delivery:
    if message.child is not None:
        return Delivery(children.get(message.child))
    if message.chain_id is None:
        return by_id[message.workflow_id or ""]
    return Delivery(message.chain_id)


# --- search attributes ------------------------------------------------------------------------------------------------
#
# Writes of search attributes: two statements for all that a turn sets, and none if it sets nothing.


RunAttributes = Sequence[tuple[UUID, Mapping[str, Any]]]

_ROW = SEARCH_ATTRIBUTES.pick_columns("run_id", "name", "place", "text", "moment", number="text")
_INSERT = SEARCH_ATTRIBUTES.insert(
    {
        **{name: f"v.{name}" for name in _ROW.column_names},
        "number": "cast(v.number as numeric)",
        "workflow": "o.workflow",
    },
    f"from v join {RUNS.name} o on o.id = v.run_id where o.id {{key}}",
)


def insert_search_attributes(sql: Dialect, runs: RunAttributes) -> None:
    """Insert the search attributes of new runs, whose rows exist already.

    ``runs`` are pairs of a run id and its attributes by name.
    """
    rows = [
        (run, attribute.name, attribute.place, attribute.text, attribute.moment, attribute.number)
        for run, attributes in runs
        for attribute in search_rows(attributes)
    ]
    sql.write(_ROW.columns, _INSERT, rows, key="run_id")


def replace_search_attributes(sql: Dialect, runs: RunAttributes) -> None:
    """Replace all search attributes of these runs; ``runs`` are pairs of a run id and its attributes by name."""
    delete_search_attributes(sql, [run for run, _ in runs])
    insert_search_attributes(sql, runs)


def delete_search_attributes(sql: Dialect, runs: Sequence[UUID]) -> None:
    """Delete all search attributes of these runs."""
    if runs:
        test, parameter = sql.in_array(runs, "uuid")
        sql.execute(f"delete from {SEARCH_ATTRIBUTES.name} where run_id {test}", [parameter])
