"""Turns that run in the process of a caller, such as a web server, instead of in a worker.

A process has one engine for each database alias, which its threads share. The caller's transaction may be rolled back
after a turn: the executor that has advanced is then never used again, because its head token differs from the one in
the row (see decision 5).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import connections

from temporalex_django.authoring.activity_context import activity_context
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import get_settings
from temporalex_django.core.names import TABLES
from temporalex_django.db.atomic_activities import run_atomic_activity
from temporalex_django.db.human_tasks import DatabaseJudge
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.messages import notify
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import RunRecord, RunState, RunWrite
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import NestingError, OutsideWorkflow
from temporalex_django.liveness.crash_markers import CrashMarker, open_marker
from temporalex_django.liveness.recovery import judge_abandoned_markers
from temporalex_django.models import ActivityTask

_engines: dict[tuple[Any, ...], WorkflowEngine] = {}
_markers: dict[tuple[int, str], CrashMarker] = {}
_lock = threading.Lock()


def engine(alias: str) -> WorkflowEngine:
    """Return the engine with which this process runs turns for a database; it is created at the first call.

    Its turns run atomic activities only if they are called in the caller's transaction. Otherwise the turns leave these
    activities to workers, for which they are due at once.
    """
    if (host_engine := host().engine(alias)) is not None:
        return host_engine
    settings = get_settings()
    sizes = settings.CACHE_SIZE, settings.CACHE_BYTES, settings.MAX_PAYLOAD_BYTES
    # Settings are part of the key, so tests that override them get another engine. The pid is part of it because a
    # forked process must not use the executors of its parent.
    key = (os.getpid(), alias, *sizes, settings.UNEXPECTED_ERROR, settings.STRICT_REPLAY)
    with _lock:
        if key not in _engines:
            storage = host().storage(alias)
            # In a caller's transaction this would be rolled back with it. A worker or another process judges the
            # markers then.
            if not connections[alias].in_atomic_block:
                judge_abandoned_markers(storage)
            _engines[key] = WorkflowEngine(
                storage,
                storage,
                cache_size=settings.CACHE_SIZE,
                cache_bytes=settings.CACHE_BYTES,
                payload_limit=settings.MAX_PAYLOAD_BYTES,
                deadlock_timeout=settings.DEADLOCK_TIMEOUT,
                unexpected_error=settings.UNEXPECTED_ERROR,
                strict_replay=settings.STRICT_REPLAY,
                on_activate=crash_marker(storage).record_chain,
                make_judge=partial(DatabaseJudge, alias),
                perform=run_atomic_activity,
                backend=TABLES,
            )
        return _engines[key]


def crash_marker(storage: DjangoStorage) -> CrashMarker:
    """Return the marker in which this process records which run's code it executes, in case that code ends the process.

    There is one marker for each database. The process keeps it until it ends; other processes then read it.
    """
    key = (os.getpid(), storage.alias)
    if key not in _markers:
        _markers[key] = open_marker(storage.domain)
    return _markers[key]


def try_lock_run(target: RunTarget, *, storage: DjangoStorage, wait: float, yields: bool = False) -> RunState | None:
    """Lock the chain of a run in the open transaction and return its state; None if that is not possible.

    It is None if the lock was not free within ``wait`` seconds, if only workers may claim the run, or if its class is
    switched off. With ``yields`` the call gives up as soon as a worker that has the chain waits for a row of this
    transaction.

    The transaction stays usable in any case. On SQLite the transaction has the lock of the whole database already, so
    this call never waits.
    """
    if target.off:
        # The class is switched off, so its code runs in no process.
        return None
    chains = [target.chain_id]
    runs = storage.claim(limit=1, queues=(), chains=chains)
    # Try without waiting first: most locks are free, and the wait costs a savepoint and a setting.
    can_wait = not runs and wait > 0 and not storage.sql.writer_lock
    if can_wait and storage.lock_chain(target.chain_id, wait=wait, yields=yields):
        runs = storage.claim(limit=1, queues=(), chains=chains)
    if runs:
        return runs[0]
    return None


def advance(
    target: RunTarget, *, storage: DjangoStorage, run: RunState | None = None, now: datetime | None = None
) -> TurnReport:
    """Activate a run once in the open transaction, after ``try_lock_run`` has locked its chain, and report the changes.

    After the commit, Django signals are sent and workers are notified. To save two statements, pass the state that
    ``try_lock_run`` returned as ``run``, and the time of the database after the lock as ``now``. Both are valid for the
    first activation only.

    A blocked run is tried again. Never call this in a process that lacks the class (``RunTarget.workflow_class`` is
    None), because that would block the run.
    """
    report = engine(storage.alias).advance(
        limit=1, queues=(), chains=[target.chain_id], force=True, locked_runs=() if run is None else [run], now=now
    )
    _follow_up(report, storage=storage)
    return report


def runs_atomic(storage: DjangoStorage) -> bool:
    """Return True if the turns of this process run atomic activities.

    It is False while a test environment is active, which claims them like any other activity.
    """
    return engine(storage.alias).runs_atomic


def advance_atomic(target: RunTarget, *, storage: DjangoStorage) -> TurnReport:
    """Run the due atomic activities of a run and activate it with their results, in the open transaction.

    Returns a report of what was written. The report is empty if a row that an activity locks is not free, or if this
    process lacks the code of an activity.
    """
    report = engine(storage.alias).advance_atomic(target.chain_id, queues=())
    _follow_up(report, storage=storage)
    return report


def evict_run(run_id: UUID, *, storage: DjangoStorage) -> None:
    """Remove a run from the cache of this process, because its row has changed; the next turn replays its history."""
    entry = engine(storage.alias).cache.take(run_id)
    if entry is not None:
        entry.executor.evict()


def notify_after_close(write: RunWrite, target: RunTarget, *, storage: DjangoStorage) -> None:
    """Evict a run that an operation has closed; after the commit, send its Django signals and notify workers.

    ``write`` contains the changes that closed it, and ``target`` is its chain.
    """
    run_record = RunRecord(
        run_id=write.run.run_id,
        workflow_id=target.workflow_id,
        workflow=target.workflow,
        version=target.version,
        args=None,
        seed=0,
    )
    evict_run(write.run.run_id, storage=storage)
    _follow_up(TurnReport(run_count=1, writes=[write], records={write.run.run_id: run_record}), storage=storage)


def notify_after_reset(writes: Sequence[RunWrite], target: RunTarget, *, storage: DjangoStorage) -> None:
    """Evict the runs that a reset or fork has written; after the commit, send Django signals and notify workers.

    ``writes`` are the changes of these runs, and ``target`` is the chain whose queue is notified. Events that were
    copied from the other run are not announced again.
    """
    for write in writes:
        evict_run(write.run.run_id, storage=storage)
    _follow_up(TurnReport(run_count=len(writes), writes=list(writes)), storage=storage)
    notify_on_commit(alias=storage.alias, queues=[target.queue])


def _follow_up(report: TurnReport, *, storage: DjangoStorage) -> None:
    host().record_turn(report)
    if not report.writes:
        return
    storage.on_commit(partial(notify.send_turn_signals, report))
    queues = {task.queue for write in report.writes for task in write.tasks}
    queues |= {write.run.queue for write in report.writes if _is_due_now(write)}
    if queues:
        notify_on_commit(alias=storage.alias, queues=queues)


def _is_due_now(write: RunWrite) -> bool:
    """Return True for a next run, an atomic activity, a message to another run, or a due time that has passed."""
    run = write.run
    is_due = run.due_at is not None and run.activated_at is not None and run.due_at <= run.activated_at
    return is_due or write.next_run is not None or bool(write.messages)


def refuse_own_run(target: RunTarget, operation: str, *, storage: DjangoStorage) -> None:
    """Raise ``NestingError`` if the caller is an atomic activity of the run that it wants to operate on.

    The transaction of such an activity holds the lock of the run in the middle of a turn. ``operation`` names the call
    in the message.
    """
    try:
        context = activity_context()
    except OutsideWorkflow:
        return
    if context.run_id != str(target.run_id) or not connections[storage.alias].in_atomic_block:
        return
    seq = context._seq  # noqa: SLF001 - the host's own
    tasks = ActivityTask.objects.using(storage.alias).filter(run_id=target.run_id, seq=seq)
    # An external activity always has a row, and its transaction is its own. An atomic activity that runs in the
    # transaction which scheduled it has no row.
    if tasks.filter(atomic=False).exists():
        return
    raise NestingError(
        f"{operation} of {target.workflow} {target.workflow_id} was called inside an atomic activity "
        "of the same run, whose transaction has locked the run. Return the value to the workflow "
        "instead. signal() and cancel() are allowed"
    )
