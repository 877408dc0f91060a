"""The mirror: the rows of runs on a cluster, as each activation has left them.

A worker writes the rows of a run before the server has the completion of the activation. If the completion is lost, the
server has the activation done again, and the rows are written again. So the end of a run is undone if the activation
goes otherwise when it is done again. A write never replaces what a later activation has written, nor the row of a later
run that has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.cluster.ids import queue_of
from temporalex_django.backends.cluster.mirrored_run import ObservedRun
from temporalex_django.backends.cluster.runs import adopt
from temporalex_django.conf import codec
from temporalex_django.core.failures import error_data
from temporalex_django.core.history.events import CLOSING, HistoryEvent
from temporalex_django.core.names import TABLES
from temporalex_django.db.human_tasks import closed_with_run
from temporalex_django.db.inserts import StartedRun, insert_start, reopen_chain
from temporalex_django.db.messages import notify
from temporalex_django.db.sql_columns import RUNS, json_value
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import delete_search_attributes
from temporalex_django.engine.blocked import block_cause, block_mark_of
from temporalex_django.engine.contracts.records import (
    HumanTaskWrite,
    NewEvent,
    Outcome,
    RowChanges,
    RunRecord,
    RunState,
    RunWrite,
)
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.operator_overrides import pause_run
from temporalex_django.engine.refusals import RefusedRedelivery
from temporalex_django.engine.run_closing import closed_row, parent_messages
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import TemporalexError, WorkflowClosed, WorkflowSwitchedOff
from temporalex_django.models import Chain, HumanTask, Instance, ScheduleSlot

log = logging.getLogger("temporalex_django.backends")

#: Seconds that a write waits for the row of a chain. After that the task fails, and the server has it done again later.
_LOCK_WAIT: Final = 1.0
#: The columns of a row that decide what becomes of it. A prepared statement reads them for each activation.
_ROW: Final = RUNS.pick_columns(
    *("id", "chain_id", "cluster_run_id", "workflow", "workflow_id", "status", "attempt", "created_at"),
    *("started_at", "closed_at", "cluster_task_at", "mirrored_at", "search_attributes"),
)
#: The kind of the event that closes a run, by the status of the run after it.
_ENDS: Final = {status: kind for kind, status in CLOSING.items()}


#: Takes a report about committed rows, and sends the Django signals about them.
Announce = Callable[[TurnReport], None]


class MirrorBusy(Exception):
    """Raised if another transaction has locked the row of a chain for too long."""


def write(
    *runs: ObservedRun,
    storage: DjangoStorage,
    wait: float = _LOCK_WAIT,
    restores: bool = False,
    read_at: datetime | None = None,
    announce: Announce = notify.send_turn_signals,
) -> dict[str, MirrorBusy]:
    """Write the rows of runs together, in the open transaction or in one of its own.

    It waits at most ``wait`` seconds for the row of a chain. Raises ``MirrorBusy`` if the chain of the only run is not
    free then. Of several runs, those whose chains are not free are left out, and it returns their errors by their ids
    on the cluster.

    With ``restores``, a chain without rows gets its rows again; otherwise somebody has deleted the run. With
    ``read_at``, the time at which the state of the run was read from the cluster, rows written before it are replaced
    even if they show a later activation: the cluster may have been restored from a backup. After the commit it calls
    ``announce``, which sends the Django signals.
    """
    batch, errors = _Batch(storage, restores, read_at, announce), dict[str, MirrorBusy]()
    # Two transactions that lock chains in the same order cannot deadlock.
    ordered = sorted(runs, key=lambda run: run.facts.get("chain") or run.execution.first_execution_run_id)
    with storage.transaction("mirror"):
        batch.read(ordered, wait=wait)
        for run in ordered:
            try:
                batch.plan(run)
            except MirrorBusy as exc:
                if len(runs) == 1:
                    raise
                errors[run.run_id] = exc
        batch.store()
    return errors


def _read_row(values: Sequence[Any], alias: str) -> Instance:
    """Return the row of a run with the columns ``_ROW``. The others are read when somebody asks for them."""
    columns = _ROW.row_fields(values)
    columns["search_attributes"] = json_value(columns["search_attributes"])
    fields = Instance._meta.concrete_fields  # noqa: SLF001 - public, in spite of its name
    names = [field.attname for field in fields if field.attname in columns]
    return Instance.from_db(alias, names, [columns[name] for name in names])


@dataclass(slots=True)
class _Batch:
    """The rows of several runs, which one transaction locks, reads and writes. ``write`` explains the first fields.

    ``chains`` has the chains of the runs, by their ids on the cluster, and ``states`` those that are locked. ``rows``
    are by their ids. ``planned`` has what ``store`` writes: runs with their rows as they were before, by chain.
    """

    storage: DjangoStorage
    restores: bool
    read_at: datetime | None
    announce: Announce
    chains: dict[str, UUID | None] = field(default_factory=dict)
    states: dict[UUID, RunState] = field(default_factory=dict)
    rows: dict[UUID, Instance] = field(default_factory=dict)
    planned: dict[UUID, tuple[ObservedRun, Instance]] = field(default_factory=dict)

    def read(self, runs: Sequence[ObservedRun], *, wait: float = 0.0) -> None:
        """Lock the chains of these runs and read their rows, in two statements.

        Chains that are not free within ``wait`` seconds are left out. Runs whose start does not name their chain take
        one statement more each.
        """
        storage = self.storage
        self.chains |= {run.run_id: _chain_of(run, storage) for run in runs}
        chains = [chain for run in runs if (chain := self.chains[run.run_id]) is not None]
        if not chains:
            return
        if wait:
            locked = {chain: state for chain in chains if (state := storage.lock_run(chain, wait=wait)) is not None}
        else:
            locked = storage.lock_runs(chains)
        self.states |= locked
        by_cluster, ids = storage.sql.in_array([UUID(run.run_id) for run in runs], "uuid")
        by_key, keys = storage.sql.in_array([state.run_id for state in locked.values()], "uuid")
        sql = _ROW.select(f"where cluster_run_id {by_cluster} or id {by_key}")
        for values in storage.sql.select(sql, [ids, keys], _ROW.types):
            row = _read_row(values, storage.alias)
            self.rows[row.pk] = row

    def plan(self, run: ObservedRun) -> None:
        """Decide what becomes of the rows of a run, and let ``store`` write the rest. Raises ``MirrorBusy``."""
        chain_id = self.chains[run.run_id]
        if chain_id in self.planned:  # by an earlier run of the chain
            self.store()
            self.read([run])
        row = self._locate(run, chain_id)
        if row is None:
            return
        state = self.states[row.chain_id]
        if self._is_continuation_undone(run, row, state):
            delete_search_attributes(self.storage.sql, [state.run_id])
            self.storage.sql.execute("delete from temporalex_instance where id = %s", [state.run_id])
            state.run_id, state.activations, state.length = row.pk, run.activation, run.length
        if self._is_later(run, row, state):
            return
        if row.pk == state.run_id:
            if not row.is_open and not _is_over(run):
                # The server has refused its end, or a start has arrived after all.
                self._reopen_chain(run, state)
                Instance.objects.using(self.storage.alias).filter(pk=row.pk).update(closed_at=None, closing=None)
            self.planned[state.chain_id] = run, row
        elif run.closing is not None:
            _close_earlier(row.pk, run.closing.kind, run.closing.attributes, run.closing.at, self.storage)

    def _locate(self, run: ObservedRun, chain_id: UUID | None) -> Instance | None:
        """Return the row of a run, which is inserted if there is none.

        Returns None for an earlier run of the chain that has no row, and if somebody has deleted the chain.
        """
        if chain_id is None:
            return self._insert_chain(run, None)
        if (state := self.states.get(chain_id)) is None:
            if Chain.objects.using(self.storage.alias).filter(pk=chain_id).exists():
                name = run.execution.workflow_id
                raise MirrorBusy(f"another transaction has locked the row of the chain of {name}; try again")
            return self._insert_chain(run, chain_id) if self.restores else None
        run_id = UUID(run.run_id)
        own = (row for row in self.rows.values() if row.cluster_run_id == run_id and row.chain_id == chain_id)
        if (row := next(own, None)) is not None:
            return row
        if state.run_id in self.rows:
            return self._next_row(run, state)
        # Somebody has deleted the row of the run, and left that of the chain.
        self.storage.sql.execute("delete from temporalex_chain where id = %s", [chain_id])
        return self._insert_chain(run, chain_id)

    def _next_row(self, run: ObservedRun, state: RunState) -> Instance | None:
        """Return the row of a new run of a chain: it is inserted, or gets its id on the cluster.

        Returns None for an earlier run, which has no row.
        """
        current, run_id = self.rows[state.run_id], UUID(run.run_id)
        rows = Instance.objects.using(self.storage.alias).filter(chain=state.chain_id)
        if current.cluster_run_id is None and run.info.attempt == current.attempt:
            self._note_ids(run, current.pk, state.chain_id)
            return current
        began_after = run.now > (current.cluster_task_at or current.created_at)
        is_reset_of_earlier = run.original_run_id != run.run_id and began_after
        if run.info.attempt < current.attempt and not is_reset_of_earlier:
            return None
        # Somebody has reset the chain there, so its newest run is another one.
        self._reopen_chain(run, state)
        source = rows.filter(cluster_run_id=UUID(run.original_run_id)).first()
        return insert_next(state, current, run_id=run_id, source=source or current, storage=self.storage)

    def _insert_chain(self, run: ObservedRun, chain_id: UUID | None) -> Instance:
        """Insert the rows of a chain that has none, and return that of the run.

        Another program has started it, or they were deleted. The run is the first one of the rows, whatever its number
        in the chain. ``chain_id`` is the id of the chain (None: a new one).
        """
        storage, start = self.storage, _start_of(run)
        if "chain" not in run.facts or run.closing is not None:
            start = replace(start, scope="none")  # the cluster keeps other ids unique
        ids = insert_start(start, ids=StartedRun(chain_id or uuid7(), _row_id(run.facts)), storage=storage)
        adopt([(ids.chain_id, run.execution.workflow_id)], storage=storage)
        rows = Instance.objects.using(storage.alias)
        parent = None
        if run.execution.parent is not None:
            parent = rows.filter(cluster_run_id=UUID(run.execution.parent.run_id)).values_list("pk", flat=True).first()
        self._note_ids(run, ids.run_id, ids.chain_id, attempt=run.info.attempt, parent_run_id=parent)
        self.read([run])
        return self.rows[ids.run_id]

    def _note_ids(self, run: ObservedRun, row_id: UUID, chain_id: UUID, **columns: Any) -> None:
        """Store the ids of a run on the cluster in its row and its chain, and further ``columns`` of the row."""
        alias, first_run_id = self.storage.alias, UUID(run.execution.first_execution_run_id)
        Instance.objects.using(alias).filter(pk=row_id).update(cluster_run_id=UUID(run.run_id), **columns)
        chains = Chain.objects.using(alias).filter(pk=chain_id, cluster_first_run_id=None)
        chains.update(cluster_first_run_id=first_run_id)

    def _is_continuation_undone(self, run: ObservedRun, row: Instance, state: RunState) -> bool:
        """Return True if the server has refused the continue-as-new that the rows show.

        It has had the task done again. The next run of the chain has a row then, and never begins. A run that people
        have closed here stays closed.
        """
        if row.status != "continued_as_new" or row.pk == state.run_id:
            return False
        if row.cluster_task_at is None or run.now <= row.cluster_task_at:
            return False
        new = self.rows.get(state.run_id)
        return new is not None and new.attempt == row.attempt + 1 and new.cluster_run_id is None and new.is_open

    def _is_later(self, run: ObservedRun, row: Instance, state: RunState) -> bool:
        """Return True if the rows show something later than this activation."""
        if row.pk != state.run_id:
            return not row.is_open  # an earlier run of the chain, whose end is written already
        if row.status in ("terminated", "timed_out"):
            # Somebody has terminated it here, which the server does not know yet, or the server has timed it out.
            return True
        if self.read_at is not None and (row.mirrored_at is None or row.mirrored_at < self.read_at):
            return False
        if run.activation == state.activations and row.cluster_task_at is not None:
            # The server has had the same activation done again, by another worker.
            return bool(run.now < row.cluster_task_at)
        return run.activation < state.activations

    def _reopen_chain(self, run: ObservedRun, state: RunState) -> None:
        """Make a closed chain open, as its run is on the cluster, and its id unique among open runs again.

        If another open run has the id by now, the chain is open without it.
        """
        is_closed, state.closed = state.closed, False
        if not is_closed or "chain" not in run.facts:
            return
        if not reopen_chain(state.chain_id, _start_of(run), storage=self.storage):
            log.warning("%s %s is open on the cluster, and another open run has its id", run.info.workflow, run.info.id)

    def store(self) -> None:
        """Write the rows of the runs that were planned, in a few statements for all."""
        planned, self.planned = self.planned, {}
        if not planned:
            return
        storage, now = self.storage, self.storage.now()
        records = storage.run_records([row.pk for _, row in planned.values()])
        writes = []
        for chain_id, (run, row) in planned.items():
            write = _changes(run, row, self.states[chain_id], now)
            if run.closing is not None:
                _add_end(write, records[row.pk], run.closing, storage)
            if run.closing is not None and not _is_over(run):
                write.next_run = _continued(run, run.closing, records[row.pk])
                write.run.activated_at = write.run.next_moment(now)
            writes.append(write)
        _store(writes, storage)
        tasks = [task for write in writes for task in write.human_tasks]
        if closed_ids := [task.id for task in tasks if task.task.ending]:
            HumanTask.objects.using(storage.alias).filter(pk__in=closed_ids).update(deciding=None)
        for write, (_, row) in zip(writes, planned.values(), strict=True):
            if write.next_run is not None:  # it gets its id with its first activation
                rows = Instance.objects.using(storage.alias).filter(pk=write.next_run.run_id)
                rows.update(attempt=row.attempt + 1)
        events = [run.events for run, _ in planned.values()]
        _announce(TurnReport(run_count=len(writes), writes=writes, records=records), events, self.announce, storage)


def _chain_of(run: ObservedRun, storage: DjangoStorage) -> UUID | None:
    """Return the chain of a run: its start has named it, or else a run of it has a row. None: it has no rows."""
    if "chain" in run.facts:
        return UUID(run.facts["chain"])
    ids = {UUID(run.execution.first_execution_run_id), UUID(run.run_id)}
    row = Instance.objects.using(storage.alias).filter(cluster_run_id__in=ids).only("chain_id").first()
    return None if row is None else row.chain_id


def _start_of(run: ObservedRun) -> RunStart:
    """Return the start of a run, with the scope in which the id of a run of this project is unique."""
    try:
        unique = workflows.class_for_run(run.info.workflow, run.info.version).unique
        scope = "global" if unique is None else unique.scope
    except TemporalexError:
        scope = "none"
    return RunStart(
        workflow_id=run.info.id,
        workflow=run.info.workflow,
        version=run.info.version,
        queue=queue_of(run.execution.task_queue),
        scope=scope,
        generated=True,
        parent=run.info.parent,
        headers=run.info.headers,
        # Runs that this project has started have a parent, or facts that name their chain.
        metadata=None if "chain" in run.facts or run.info.parent else {"started_by": "another client of the cluster"},
        **{name: run.start.get(name) for name in ("args", "search_attributes", "snapshot")},
    )


def _row_id(facts: Mapping[str, Any]) -> UUID:
    """Return the id of the row of a run that starts with these facts. If they name none, it is a new one."""
    return UUID(facts["run"]) if "run" in facts else uuid7()


def _is_over(run: ObservedRun) -> bool:
    """Return True if the run has closed and does not continue as another one."""
    return run.closing is not None and run.closing.kind != "WorkflowContinuedAsNew"


def _changes(run: ObservedRun, row: Instance, state: RunState, now: datetime) -> RunWrite:
    """Return the write of what an activation may have changed, without an end. ``now`` is the time of the write."""
    state.activations, state.length = run.activation, run.length
    state.activated_at = state.next_moment(run.now)
    label: dict[str, Any] = {"run_id": row.pk, "workflow": row.workflow, "workflow_id": row.workflow_id}
    return RunWrite(
        run=state,
        instance=_columns(run, row, now),
        failed_signals=[*run.completion.failed],
        refused_redeliveries=[RefusedRedelivery(**lost._asdict(), **label, at=run.now) for lost in run.completion.lost],
        human_tasks=[
            HumanTaskWrite(**label, chain_id=state.chain_id, changes=change.changes, task=change.task)
            for change in run.human_tasks
        ],
    )


def _columns(run: ObservedRun, row: Instance, now: datetime) -> RowChanges:
    """Return the columns of the row that this activation may have changed."""
    visible = run.visible
    columns: RowChanges = {
        "status": visible.status,
        "accepts": visible.accepts,
        "waiting_for": visible.waiting_for,
        "waits": visible.waits,
        "blocked": None,
        "cause": None,
        "fault": None,
        "mirrored_at": now,
        "cluster_task_at": run.now,
    }
    if visible.published is not None:
        columns |= {"published": visible.published, "published_at": visible.published_at}
    attributes = dict(visible.search_attributes) or None
    if attributes != (row.search_attributes or None):
        columns["search_attributes"] = attributes
    if run.stores:
        columns["stored"] = visible.stored
    if row.started_at is None:
        columns["started_at"] = run.started_at
    return columns


def _add_end(write: RunWrite, record: RunRecord, end: HistoryEvent, storage: DjangoStorage) -> None:
    """Add the end of a run to its write, and what the end of a chain means for others.

    They are the senders of its messages, and a parent on the tables.
    """
    written = {task_write.id for task_write in write.human_tasks}
    write.human_tasks += closed_with_run(record.run_id, at=end.at, except_for=written, alias=storage.alias)
    write.instance |= {**closed_row(end.kind, end.attributes, end.at), "paused": None}
    status = CLOSING[end.kind]
    if status == "continued_as_new":
        return
    write.run.closed = True
    error = WorkflowClosed(f"{record.workflow} {record.workflow_id} closed ({status})")
    write.closing = Outcome(status="failed", value=error_data(error))
    if record.parent_chain is None:
        return
    if Chain.objects.using(storage.alias).filter(pk=record.parent_chain, backend=TABLES).exists():
        write.messages = parent_messages(record, status, end.attributes)


def _continued(run: ObservedRun, closing: HistoryEvent, record: RunRecord) -> RunRecord:
    """Return the run as which a run continues."""
    facts = run.next_facts or {}
    return record.successor(
        _row_id(facts),
        seed=record.seed,
        args=closing.attributes["args"],
        snapshot=facts.get("snapshot"),
        search_attributes=facts.get("search_attributes"),
        carried_messages=facts.get("carried"),
    )


def insert_next(
    state: RunState, current: Instance, *, run_id: UUID, source: Instance, storage: DjangoStorage
) -> Instance:
    """Insert the run that a reset has made of the run ``source`` of a locked chain, and return its row.

    ``current`` is the newest run so far. ``run_id`` is the id of the new run on the cluster.
    """
    record = storage.run_records([source.pk])[source.pk]
    new = record.successor(uuid7(), seed=record.seed, snapshot=record.snapshot)
    now = state.activated_at = state.next_moment(storage.now())
    state.closed = state.paused = False
    write = RunWrite(run=state, next_run=new, reset_run_id=source.pk)
    if current.is_open:
        closing = {"reason": "reset", "run_id": str(new.run_id)}
        write.instance = {**closed_row("WorkflowTerminated", closing, now), "paused": None}
        write.human_tasks = closed_with_run(current.pk, at=now, except_for=(), alias=storage.alias)
    _store([write], storage)
    if record.scheduled_for is not None:
        # A run that a schedule has seen closed is open again, so its next slot must not overlap with it.
        ScheduleSlot.objects.using(storage.alias).filter(chain_id=state.chain_id).update(running=True)
    rows = Instance.objects.using(storage.alias).filter(pk=new.run_id)
    rows.update(cluster_run_id=run_id, attempt=source.attempt)
    state.run_id, state.length, state.activations = new.run_id, 0, 0
    return rows.get()


# -- what no activation has done --------------------------------------------------------------------------------------


def close(
    chain_id: UUID, status: str, closing: dict[str, Any], *, run_id: UUID | None = None, storage: DjangoStorage
) -> bool:
    """Close a run in the open transaction, as the cluster has closed it without a worker: the newest one of its chain.

    ``status`` is that of a closed run, and ``closing`` has the attributes of the event. ``run_id`` names the row of
    another run. Returns False if the run is closed or has no row. Raises ``MirrorBusy`` after a second.
    """
    state = storage.lock_run(chain_id, wait=_LOCK_WAIT)
    if state is None:
        if Chain.objects.using(storage.alias).filter(pk=chain_id).exists():
            raise MirrorBusy(f"another transaction has locked the row of the chain {chain_id}; try again")
        return False
    if run_id is not None and run_id != state.run_id:
        return _close_earlier(run_id, _ENDS[status], closing, storage.now(), storage)
    if state.closed:
        return False
    close_locked(state, status, closing, storage=storage)
    return True


def _close_earlier(run_id: UUID, kind: str, closing: dict[str, Any], at: datetime, storage: DjangoStorage) -> bool:
    """Close the open row of a run that is not the newest of its chain. Nobody waits for it."""
    columns: dict[str, Any] = {**closed_row(kind, closing, at), "closing": codec().encode(closing)}
    rows = Instance.objects.using(storage.alias).filter(pk=run_id, closed_at=None)
    return bool(rows.update(**columns, paused=None, mirrored_at=storage.now()))


def close_locked(state: RunState, status: str, closing: dict[str, Any], *, storage: DjangoStorage) -> None:
    """Close the newest run of a chain, whose state the open transaction has locked."""
    now = state.next_moment(storage.now())
    state.activated_at, state.paused = now, False
    end = HistoryEvent(state.length + 1, max(state.activations, 1), _ENDS[status], now, closing)
    records = storage.run_records([state.run_id])
    write = RunWrite(run=state, instance={"mirrored_at": now})
    _add_end(write, records[state.run_id], end, storage)
    _store([write], storage)
    report = TurnReport(run_count=1, writes=[write], records=records)
    _announce(report, [[end]], notify.send_turn_signals, storage)


def copy_pause(chain_id: UUID, run_id: UUID, *, is_paused: bool, storage: DjangoStorage) -> bool:
    """Mark the newest run of a chain as paused, or as not paused, as it is on the cluster. Returns True if it was not.

    Does nothing if its row is locked for a second.
    """
    with storage.transaction():
        state = storage.lock_run(chain_id, wait=_LOCK_WAIT)
        if state is None or state.run_id != run_id or state.closed or state.paused == is_paused:
            return False
        if is_paused:
            write = pause_run(state, reason="on the Temporal cluster", sender=None, now=storage.now())
        else:
            write = clear_pause(state)
        storage.write([write])
    return True


def clear_pause(state: RunState) -> RunWrite:
    """Return the write that ends the pause of a locked run. Nothing is due then: the cluster continues the run."""
    state.paused = False
    return RunWrite(run=state, instance={"paused": None})


def mark_blocked(run_id: str, error: Exception, *, storage: DjangoStorage) -> None:
    """Store in the row of an open run why its workflow task fails. The next activation without error clears it."""
    if isinstance(error, WorkflowSwitchedOff):
        return
    rows = Instance.objects.using(storage.alias).filter(cluster_run_id=UUID(run_id), closed_at=None)
    for row in rows.only("pk", "blocked"):
        earlier = row.blocked or {}
        mark = block_mark_of(error, tries=earlier.get("attempt", 0) + 1, now=storage.now())
        if "since" in earlier:
            mark["since"] = earlier["since"]
        cause = block_cause(mark)
        rows.filter(pk=row.pk).update(blocked=mark, cause=cause.text, fault=cause.fault)


# -- writes -----------------------------------------------------------------------------------------------------------


def _store(writes: Sequence[RunWrite], storage: DjangoStorage) -> None:
    """Store the writes of chains that no turn takes: nothing is due, and no executor here is current."""
    for write in writes:
        run = write.run
        run.head_token = run.due_at = run.deadline = run.atomic_due = None
        write.mirrored = True
    storage.write(writes)


def _announce(
    report: TurnReport, events: Sequence[Sequence[HistoryEvent]], announce: Announce, storage: DjangoStorage
) -> None:
    """After the commit, send the Django signals about the new events, and wake callers that wait for the runs."""
    for write, added in zip(report.writes, events, strict=True):
        write.events = [
            NewEvent(number=e.number, activation=e.activation, kind=e.kind, at=e.at, attributes=e.attributes)
            for e in added
        ]
    storage.on_commit(partial(announce, report))
    storage.on_commit(partial(notify.send_notifications, report, alias=storage.alias))
