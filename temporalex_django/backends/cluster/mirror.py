"""The mirror: the rows of runs on a cluster, as each activation has left them.

A worker writes the rows of a run before the server has the completion of the activation. If the completion is lost, the
server has the activation done again, and the rows are written again. So the end of a run is undone if the activation
goes otherwise when it is done again. A write never replaces what a later activation has written, nor the row of a later
run that has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.cluster.ids import queue_of
from temporalex_django.backends.cluster.mirrored_run import FailedTask, ObservedRun
from temporalex_django.backends.cluster.runs import adopt
from temporalex_django.conf import codec
from temporalex_django.core.failures import error_data, run_failure_cause
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
from temporalex_django.engine.run_closing import parent_messages
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import TemporalexError, WorkflowClosed, WorkflowSwitchedOff
from temporalex_django.models import Chain, HumanTask, Instance, ScheduleSlot
from temporalex_django.temporal.start_facts import StartFacts

log = logging.getLogger("temporalex_django.backends")

#: Seconds that a write waits for the row of a chain. After that the task fails, and the server has it done again later.
_LOCK_WAIT = 1.0
#: The columns of a row that decide what becomes of it. A prepared statement reads them for each activation.
_ROW = RUNS.pick_columns(
    *("id", "chain_id", "cluster_run_id", "workflow", "workflow_id", "status", "attempt", "created_at"),
    *("started_at", "closed_at", "cluster_task_at", "mirrored_at", "search_attributes"),
)


class MirrorBusy(Exception):
    """Raised if another transaction has locked the row of a chain for too long."""


def lock_order(run: ObservedRun) -> str:
    """Return the sort key for runs that one transaction locks, so that two transactions cannot deadlock."""
    return run.facts.get("chain") or run.first_run_id


def _read_row(values: Sequence[Any], alias: str) -> Instance:
    """Return the row of a run with the columns ``_ROW``. The others are read when somebody asks for them."""
    columns = _ROW.row_fields(values)
    columns["search_attributes"] = json_value(columns["search_attributes"])
    fields = Instance._meta.concrete_fields  # noqa: SLF001 - public, in spite of its name
    names = [field.attname for field in fields if field.attname in columns]
    return Instance.from_db(alias, names, [columns[name] for name in names])


class Batch:
    """The rows of several runs, which one transaction reads and writes together.

    ``announce`` sends the Django signals after the commit.
    """

    def __init__(
        self, storage: DjangoStorage, *, announce: Callable[[TurnReport], None] = notify.send_turn_signals
    ) -> None:
        self.storage = storage
        self._announce = announce
        self.states: dict[UUID, RunState] = {}
        self.rows: dict[UUID, Instance] = {}
        self._planned: dict[UUID, _Planned] = {}  # by chain

    def read(self, runs: Sequence[ObservedRun], *, wait: float = 0.0) -> None:
        """Lock the chains of these runs and read their rows, in two statements.

        Chains that are not free within ``wait`` seconds are left out. Runs whose start does not name their chain take
        one statement more each.
        """
        chains = [chain for run in runs if (chain := _chain_of(run, self.storage)) is not None]
        if not chains:
            return
        if wait:
            states = {
                chain: state for chain in chains if (state := self.storage.lock_run(chain, wait=wait)) is not None
            }
        else:
            states = self.storage.lock_runs(chains)
        newest = [state.run_id for state in states.values()]
        (by_cluster, ids), (by_key, keys) = (
            self.storage.sql.in_array(values, "uuid") for values in ([UUID(run.run_id) for run in runs], newest)
        )
        sql = _ROW.select(f"where cluster_run_id {by_cluster} or id {by_key}")
        self.states.update(states)
        for values in self.storage.sql.select(sql, [ids, keys], _ROW.types):
            row = _read_row(values, self.storage.alias)
            self.rows[row.pk] = row

    def has_planned(self, chain_id: UUID | None) -> bool:
        """Return True if ``store`` will write rows of this chain."""
        return chain_id in self._planned

    def plan(self, run: ObservedRun, row: Instance, state: RunState) -> None:
        """Let ``store`` write the rows of a run, which is the newest one of its chain."""
        state.activations, state.length = run.activation, run.length
        state.activated_at = state.next_moment(run.now)
        self._planned[state.chain_id] = _Planned(run, row, RunWrite(run=state))

    def store(self) -> None:
        """Write the rows of the runs that were planned, in a few statements for all."""
        planned, self._planned = [*self._planned.values()], {}
        if not planned:
            return
        storage, now = self.storage, self.storage.now()
        records = storage.run_records([plan.row.pk for plan in planned])
        for plan in planned:
            plan.fill(records[plan.row.pk], now, storage)
        _store([plan.write for plan in planned], storage)
        tasks = [task for plan in planned for task in plan.write.human_tasks]
        if closed_ids := [task.id for task in tasks if task.task.ending]:
            HumanTask.objects.using(storage.alias).filter(pk__in=closed_ids).update(deciding=None)
        for plan in planned:
            if plan.run.closing is not None and not plan.is_over:
                _insert_continued(plan.run, plan.row, plan.write.run, plan.run.closing, storage)
            _announce(plan.write, records[plan.row.pk], plan.run.events, storage, self._announce)


def write(
    run: ObservedRun,
    *,
    storage: DjangoStorage,
    wait: float = _LOCK_WAIT,
    restores: bool = False,
    read_at: datetime | None = None,
    announce: Callable[[TurnReport], None] = notify.send_turn_signals,
    batch: Batch | None = None,
) -> None:
    """Write the rows of a run, in the open transaction or in one of its own.

    It waits at most ``wait`` seconds for the row of the chain. With ``restores``, a chain without rows gets its rows
    again; otherwise somebody has deleted the run. With ``read_at``, the time at which the state of the run was read
    from the cluster, rows written before it are replaced even if they show a later activation: the cluster may have
    been restored from a backup. After the commit it calls ``announce``, which sends the Django signals. With ``batch``,
    which has read the rows, ``Batch.store`` writes them. Raises ``MirrorBusy``.
    """
    if batch is not None:
        _plan(run, batch, restores=restores, read_at=read_at)
        return
    with storage.transaction("mirror alone"):
        batch = Batch(storage, announce=announce)
        batch.read([run], wait=wait)
        _plan(run, batch, restores=restores, read_at=read_at)
        batch.store()


def _plan(run: ObservedRun, batch: Batch, *, restores: bool, read_at: datetime | None) -> None:
    """Decide what becomes of the rows of a run, and let ``batch`` write what is left to do."""
    storage, chain_id = batch.storage, _chain_of(run, batch.storage)
    if batch.has_planned(chain_id):  # an earlier run of the chain
        batch.store()
        batch.read([run])
    state = None if chain_id is None else batch.states.get(chain_id)
    if state is None:
        if chain_id is not None and Chain.objects.using(storage.alias).filter(pk=chain_id).exists():
            raise MirrorBusy(f"another transaction has locked the row of the chain of {run.cluster_id}; try again")
        if "chain" in run.facts and not restores:
            return
        state = _insert_chain(run, storage)
        batch.rows[state.run_id] = Instance.objects.using(storage.alias).get(pk=state.run_id)
    row = _row_of(run, state, batch)
    if row is None:
        return
    if _is_continuation_undone(row, state, run, storage):
        _delete_next(row, state, run, storage)
    if _is_later(row, state, run) and not _is_outdated(row, state, read_at):
        return
    if row.pk == state.run_id:
        _reopen(run, row, state, storage)
        batch.plan(run, row, state)
    elif run.closing is not None:
        _close_earlier(row.pk, run.closing.kind, run.closing.attributes, run.closing.at, storage)


def _chain_of(run: ObservedRun, storage: DjangoStorage) -> UUID | None:
    """Return the chain of a run: its start has named it, or else a run of it has a row. None: it has no rows."""
    if "chain" in run.facts:
        return UUID(run.facts["chain"])
    ids = {UUID(run.first_run_id), UUID(run.run_id)}
    rows = Instance.objects.using(storage.alias).filter(cluster_run_id__in=ids)
    chain: UUID | None = rows.values_list("chain_id", flat=True).first()
    return chain


def _insert_chain(run: ObservedRun, storage: DjangoStorage, *, chain_id: UUID | None = None) -> RunState:
    """Insert the rows of a chain that has none: another program has started it, or they were deleted.

    The run is the first one of the rows, whatever its number in the chain. ``chain_id`` is the id of the chain (None:
    that with which it was started, or a new one).
    """
    is_ours = "chain" in run.facts
    ids = StartedRun(chain_id or (UUID(run.facts["chain"]) if is_ours else uuid7()), _row_id(run.facts) or uuid7())
    start = RunStart(
        workflow_id=run.info.id,
        workflow=run.info.workflow,
        version=run.info.version,
        args=run.start.get("args"),
        queue=queue_of(run.queue),
        scope=_scope_of(run) if is_ours and run.closing is None else "none",  # the cluster keeps other ids unique
        generated=True,
        parent=run.info.parent,
        search_attributes=run.start.get("search_attributes"),
        snapshot=run.start.get("snapshot"),
        headers=run.info.headers,
        # Runs that this project has started have a parent, or facts that name their chain.
        metadata=None if is_ours or run.info.parent else {"started_by": "another client of the cluster"},
    )
    started = insert_start(start, ids=ids, storage=storage)
    adopt([(started.chain_id, run.cluster_id)], storage=storage)
    rows = Instance.objects.using(storage.alias)
    parent = None
    if run.parent_run_id is not None:
        parent = rows.filter(cluster_run_id=UUID(run.parent_run_id)).values_list("pk", flat=True).first()
    rows.filter(pk=started.run_id).update(
        cluster_run_id=UUID(run.run_id), attempt=run.info.attempt, parent_run_id=parent
    )
    Chain.objects.using(storage.alias).filter(pk=started.chain_id).update(cluster_first_run_id=UUID(run.first_run_id))
    state = storage.lock_run(started.chain_id, wait=_LOCK_WAIT)
    assert state is not None
    return state


def _row_id(facts: StartFacts) -> UUID | None:
    """Return the id of the row of a run that starts with these facts, or None if they name none."""
    return UUID(facts["run"]) if "run" in facts else None


def _scope_of(run: ObservedRun) -> str:
    """Return the scope in which the id of a run of this project is unique."""
    try:
        cls = workflows.class_for_run(run.info.workflow, run.info.version)
    except TemporalexError:
        return "none"
    return "global" if cls.unique is None else cls.unique.scope


def _row_of(run: ObservedRun, state: RunState, batch: Batch) -> Instance | None:
    """Return the row of the run. The row of a new run of the chain is inserted, or gets its id on the cluster.

    Returns None for an earlier run of the chain that has no row.
    """
    storage, run_id = batch.storage, UUID(run.run_id)
    own = (row for row in batch.rows.values() if row.cluster_run_id == run_id and row.chain_id == state.chain_id)
    if (row := next(own, None)) is not None:
        return row
    rows, current = Instance.objects.using(storage.alias).filter(chain=state.chain_id), batch.rows.get(state.run_id)
    if current is None:  # somebody has deleted the row of the run, and left that of the chain
        storage.sql.execute("delete from temporalex_chain where id = %s", [state.chain_id])
        restored = _insert_chain(run, storage, chain_id=state.chain_id)
        for name in ("run_id", "length", "activations"):
            setattr(state, name, getattr(restored, name))
        return rows.get(pk=restored.run_id)
    if current.cluster_run_id is None and run.info.attempt == current.attempt:
        rows.filter(pk=current.pk).update(cluster_run_id=run_id)
        Chain.objects.using(storage.alias).filter(pk=state.chain_id, cluster_first_run_id=None).update(
            cluster_first_run_id=UUID(run.first_run_id)
        )
        return current
    if run.info.attempt < current.attempt and not _is_reset_of_earlier(run, current):
        return None
    # Somebody has reset the chain there, so its newest run is another one.
    _reopen_chain(run, state, storage)
    source = rows.filter(cluster_run_id=UUID(run.original_run_id)).first()
    return insert_next(state, current, run_id=run_id, source=source or current, storage=storage)


def _is_reset_of_earlier(run: ObservedRun, current: Instance) -> bool:
    """Return True for the run of a reset of an earlier run of the chain, which has begun after the row ``current``."""
    return run.original_run_id != run.run_id and run.now > (current.cluster_task_at or current.created_at)


def mark_blocked(failed: FailedTask, *, storage: DjangoStorage) -> None:
    """Store in the row of an open run why its workflow task fails. The next activation without error clears it."""
    if isinstance(failed.error, WorkflowSwitchedOff):
        return
    rows = Instance.objects.using(storage.alias).filter(cluster_run_id=UUID(failed.run_id), closed_at=None)
    for row in rows.only("pk", "blocked"):
        earlier = row.blocked or {}
        mark = block_mark_of(failed.error, tries=earlier.get("attempt", 0) + 1, now=storage.now())
        if "since" in earlier:
            mark["since"] = earlier["since"]
        cause = block_cause(mark)
        rows.filter(pk=row.pk).update(blocked=mark, cause=cause.text, fault=cause.fault)


def insert_next(
    state: RunState,
    current: Instance,
    *,
    run_id: UUID | None,
    source: Instance | None,
    storage: DjangoStorage,
    row_id: UUID | None = None,
    **options: Any,
) -> Instance:
    """Insert the next run of a locked chain, after a continue-as-new or a reset, and return its row.

    ``current`` is the newest run so far. ``source`` is the run that was reset, or None after a continue-as-new.
    ``run_id`` is the id of the new run on the cluster, or None until that is known. ``row_id`` is the id of its row
    (None: a new one). ``options`` are further values of its record.
    """
    template = source or current
    record = storage.run_records([template.pk])[template.pk]
    new = record.successor(row_id or uuid7(), **{"seed": record.seed, "snapshot": record.snapshot, **options})
    state.activated_at = state.next_moment(storage.now())
    state.closed = False
    write = RunWrite(run=state, next_run=new, reset_run_id=None if source is None else source.pk)
    if source is not None and current.is_open:
        write.instance = {
            **_closed_columns("WorkflowTerminated", {"reason": "reset", "run_id": str(new.run_id)}, state.activated_at),
            "paused": None,
        }
        write.human_tasks = closed_with_run(current.pk, at=state.activated_at, except_for=(), alias=storage.alias)
    _store([write], storage)
    if source is not None and record.scheduled_for is not None:
        # A run that a schedule has seen closed is open again, so its next slot must not overlap with it.
        ScheduleSlot.objects.using(storage.alias).filter(chain_id=state.chain_id).update(running=True)
    attempt = current.attempt + 1 if source is None else source.attempt
    rows = Instance.objects.using(storage.alias).filter(pk=new.run_id)
    rows.update(cluster_run_id=run_id, attempt=attempt)
    state.run_id, state.length, state.activations = new.run_id, 0, 0
    return rows.get()


def _is_later(row: Instance, state: RunState, run: ObservedRun) -> bool:
    """Return True if the rows show something later than this activation."""
    if row.pk != state.run_id:
        return not row.is_open  # an earlier run of the chain, whose end is written already
    if row.status in ("terminated", "timed_out"):
        # Somebody has terminated it here, which the server does not know yet, or the server has timed it out.
        return True
    if run.activation == state.activations and row.cluster_task_at is not None:
        return bool(
            run.now < row.cluster_task_at
        )  # the server has had the same activation done again, by another worker
    return run.activation < state.activations


def _is_outdated(row: Instance, state: RunState, read_at: datetime | None) -> bool:
    """Return True if the newest row of a chain was written before the cluster was read at ``read_at``.

    What people or the server have ended stays ended: the request to the cluster may still be on its way.
    """
    if read_at is None or row.pk != state.run_id or row.status in ("terminated", "timed_out"):
        return False
    return row.mirrored_at is None or row.mirrored_at < read_at


def _is_continuation_undone(row: Instance, state: RunState, run: ObservedRun, storage: DjangoStorage) -> bool:
    """Return True if the server has refused the continue-as-new that the rows show, and has had the task done again.

    The next run of the chain has a row then, and never begins. A run that people have closed here stays closed.
    """
    if row.status != "continued_as_new" or row.pk == state.run_id:
        return False
    if row.cluster_task_at is None or run.now <= row.cluster_task_at:
        return False
    rows = Instance.objects.using(storage.alias)
    return rows.filter(pk=state.run_id, attempt=row.attempt + 1, cluster_run_id=None, closed_at=None).exists()


def _delete_next(row: Instance, state: RunState, run: ObservedRun, storage: DjangoStorage) -> None:
    """Delete the row of the newest run of a chain, and make the run before it, which is ``row``, the newest one."""
    delete_search_attributes(storage.sql, [state.run_id])
    storage.sql.execute("delete from temporalex_instance where id = %s", [state.run_id])
    state.run_id, state.activations, state.length = row.pk, run.activation, run.length


def _reopen_chain(run: ObservedRun, state: RunState, storage: DjangoStorage) -> None:
    """Make a closed chain open, as its run is on the cluster, and its id unique among open runs again.

    If another open run has the id by now, the chain is open without it.
    """
    if not state.closed:
        return
    state.closed = False
    if "chain" not in run.facts:
        return
    start = RunStart(
        workflow_id=run.info.id, workflow=run.info.workflow, version=run.info.version, args=None, scope=_scope_of(run)
    )
    if not reopen_chain(state.chain_id, start, storage=storage):
        log.warning("%s %s is open on the cluster, and another open run has its id", run.info.workflow, run.info.id)


def _reopen(run: ObservedRun, row: Instance, state: RunState, storage: DjangoStorage) -> None:
    """Open the rows of a run again, if the server has refused its end, or a start has arrived after all."""
    if not row.is_open and not _is_over(run):
        _reopen_chain(run, state, storage)
        Instance.objects.using(storage.alias).filter(pk=row.pk).update(closed_at=None, closing=None)


def _is_over(run: ObservedRun) -> bool:
    """Return True if the run has closed and does not continue as another one."""
    return run.closing is not None and run.closing.kind != "WorkflowContinuedAsNew"


@dataclass(slots=True)
class _Planned:
    """The write of a run, whose rows are locked, and its row as it was before."""

    run: ObservedRun
    row: Instance
    write: RunWrite

    @property
    def is_over(self) -> bool:
        return _is_over(self.run)

    def fill(self, record: RunRecord, now: datetime, storage: DjangoStorage) -> None:
        """Add what the activation has changed. ``record`` is that of the run, and ``now`` the time of the write."""
        run, row, write = self.run, self.row, self.write
        closing = run.closing
        write.instance = {**_columns(run, row), "mirrored_at": now, "cluster_task_at": run.now}
        write.failed_signals = [*run.failed_signals]
        write.refused_redeliveries = [
            RefusedRedelivery(
                **lost._asdict(), run_id=row.pk, workflow=row.workflow, workflow_id=row.workflow_id, at=run.now
            )
            for lost in run.lost
        ]
        write.human_tasks = [
            HumanTaskWrite(
                run_id=row.pk,
                chain_id=write.run.chain_id,
                workflow=row.workflow,
                workflow_id=row.workflow_id,
                changes=change.changes,
                task=change.task,
            )
            for change in run.human_tasks
        ]
        if closing is None:
            return
        except_for = {task_write.id for task_write in write.human_tasks}
        write.human_tasks += closed_with_run(row.pk, at=closing.at, except_for=except_for, alias=storage.alias)
        if self.is_over:
            write.run.closed = True
            _add_end(write, record, CLOSING[closing.kind], closing.attributes, storage)


def _insert_continued(
    run: ObservedRun, row: Instance, state: RunState, closing: HistoryEvent, storage: DjangoStorage
) -> None:
    """Insert the row of the run as which this one continues. It gets its id with its first activation."""
    facts = run.next_facts or {}
    insert_next(
        state,
        Instance.objects.using(storage.alias).get(pk=row.pk),
        run_id=None,
        source=None,
        storage=storage,
        row_id=_row_id(facts),
        args=closing.attributes["args"],
        snapshot=facts.get("snapshot"),
        search_attributes=facts.get("search_attributes"),
        carried_messages=facts.get("carried"),
    )


def _columns(run: ObservedRun, row: Instance) -> RowChanges:
    """Return the columns of the row that this activation may have changed."""
    visible, closing = run.visible, run.closing
    columns: RowChanges = {
        "status": visible.status,
        "published": visible.published,
        "published_at": visible.published_at,
        "accepts": visible.accepts,
        "waiting_for": visible.waiting_for,
        "waits": visible.waits,
        "blocked": None,
        "cause": None,
        "fault": None,
    }
    if visible.published is None:
        del columns["published"], columns["published_at"]
    attributes = dict(visible.search_attributes) or None
    if attributes != (row.search_attributes or None):
        columns["search_attributes"] = attributes
    if run.stores:
        columns["stored"] = visible.stored
    if row.started_at is None:
        columns["started_at"] = run.started_at
    if closing is not None:
        columns |= _closed_columns(closing.kind, closing.attributes, closing.at)
        columns["paused"] = None
    return columns


def _closed_columns(kind: str, attributes: dict[str, Any], at: datetime) -> RowChanges:
    status = CLOSING[kind]
    cause = run_failure_cause(attributes) if status == "failed" else None
    return {
        "status": status,
        "waiting_for": [],
        "waits": [],
        "accepts": {"signals": [], "updates": []},
        "closed_at": at,
        "closing": attributes,
        "blocked": None,
        "cause": None if cause is None else cause.text,
        "fault": None if cause is None else cause.fault,
    }


def close(chain_id: UUID, status: str, closing: dict[str, Any], *, storage: DjangoStorage) -> None:
    """Close the newest run of a chain in the open transaction, as the cluster has closed it without a worker.

    ``status`` is that of a closed run, and ``closing`` has the attributes of the event. Does nothing if it is closed.
    Raises ``MirrorBusy``.
    """
    state = storage.lock_run(chain_id, wait=_LOCK_WAIT)
    if state is None and Chain.objects.using(storage.alias).filter(pk=chain_id).exists():
        raise MirrorBusy(f"another transaction has locked the row of the chain {chain_id}; try again")
    if state is None or state.closed:
        return
    close_locked(state, status, closing, storage=storage)


def close_run(run_id: UUID, status: str, closing: dict[str, Any], *, storage: DjangoStorage) -> bool:
    """Close the row of a run in the open transaction, after the cluster has closed the run without a worker.

    Returns False if the run is closed or has no row, or if another transaction keeps its chain locked for a second.
    """
    rows = Instance.objects.using(storage.alias).filter(pk=run_id, closed_at=None)
    chain_id = rows.values_list("chain_id", flat=True).first()
    state = None if chain_id is None else storage.lock_run(chain_id, wait=_LOCK_WAIT)
    if state is None:
        return False
    if state.run_id == run_id:
        if state.closed:
            return False
        close_locked(state, status, closing, storage=storage)
        return True
    kind = next(kind for kind, name in CLOSING.items() if name == status)
    _close_earlier(run_id, kind, closing, storage.now(), storage)
    return True


def _close_earlier(run_id: UUID, kind: str, closing: dict[str, Any], at: datetime, storage: DjangoStorage) -> None:
    """Close the row of a run that is not the newest of its chain. Nobody waits for it."""
    columns: dict[str, Any] = {**_closed_columns(kind, closing, at), "paused": None}
    columns["closing"] = codec().encode(closing)
    Instance.objects.using(storage.alias).filter(pk=run_id).update(**columns, mirrored_at=storage.now())


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


def close_locked(state: RunState, status: str, closing: dict[str, Any], *, storage: DjangoStorage) -> None:
    """Close the newest run of a chain, whose state the open transaction has locked."""
    kind = next(kind for kind, name in CLOSING.items() if name == status)
    now = state.next_moment(storage.now())
    state.activated_at, state.closed, state.paused = now, True, False
    record = storage.run_records([state.run_id])[state.run_id]
    write = RunWrite(run=state, instance={**_closed_columns(kind, closing, now), "paused": None, "mirrored_at": now})
    write.human_tasks = closed_with_run(state.run_id, at=now, except_for=(), alias=storage.alias)
    _add_end(write, record, status, closing, storage)
    _store([write], storage)
    event = HistoryEvent(state.length + 1, max(state.activations, 1), kind, now, closing)
    _announce(write, record, [event], storage)


def _add_end(write: RunWrite, record: RunRecord, status: str, closing: dict[str, Any], storage: DjangoStorage) -> None:
    """Add what the end of a chain means for others: its senders, and a parent on the tables."""
    error = WorkflowClosed(f"{record.workflow} {record.workflow_id} closed ({status})")
    write.closing = Outcome(status="failed", value=error_data(error))
    if record.parent_chain is None:
        return
    if Chain.objects.using(storage.alias).filter(pk=record.parent_chain, backend=TABLES).exists():
        write.messages = parent_messages(record, status, closing)


def _store(writes: Sequence[RunWrite], storage: DjangoStorage) -> None:
    """Store the writes of chains that no turn takes: nothing is due, and no executor here is current."""
    for write in writes:
        run = write.run
        run.head_token = run.due_at = run.deadline = run.atomic_due = None
        write.mirrored = True
    storage.write(writes)


def _announce(
    write: RunWrite,
    record: RunRecord,
    events: Sequence[HistoryEvent],
    storage: DjangoStorage,
    announce: Callable[[TurnReport], None] = notify.send_turn_signals,
) -> None:
    """After the commit, send the Django signals about the new events, and wake callers that wait for the run."""
    new = [
        NewEvent(number=e.number, activation=e.activation, kind=e.kind, at=e.at, attributes=e.attributes)
        for e in events
    ]
    announced = RunWrite(run=write.run, events=new, instance=write.instance, human_tasks=write.human_tasks)
    announced.closing = write.closing
    report = TurnReport(run_count=1, writes=[announced], records={record.run_id: record})
    storage.on_commit(partial(announce, report))
    storage.on_commit(partial(notify.send_notifications, report, alias=storage.alias))
