"""Turns in the caller's process, with one engine per database alias for all threads.

A transaction may roll back after it has advanced an executor. The executor then stays in the cache and is never used
again, because its token differs from the one on the row (see decision 5). So a caller may roll back anything here.
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
from temporalex_django.conf import get_settings
from temporalex_django.db.atomic_activities import run_atomic_activity
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.messages import notify
from temporalex_django.db.people.deciders import DatabaseJudge
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import RunRecord, RunState, RunWrite
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import NestingError, OutsideWorkflow
from temporalex_django.liveness.crash_markers import CrashMarker, open_marker
from temporalex_django.liveness.recovery import judge_abandoned_markers
from temporalex_django.models import ActivityTask
from temporalex_django.operations.run_lookup import RunTarget

_engines: dict[tuple[Any, ...], WorkflowEngine] = {}
_markers: dict[tuple[int, str], CrashMarker] = {}
_lock = threading.Lock()


def engine(alias: str) -> WorkflowEngine:
    """Return the engine of this process.

    Outside of a caller's transaction only its first phase is used. Atomic activities are left to workers, and are due
    at once.
    """
    settings = get_settings()
    sizes = settings.CACHE_SIZE, settings.CACHE_BYTES, settings.MAX_PAYLOAD_BYTES
    # Settings are part of the key, so tests that override them get another engine. The pid is part of it because a
    # forked process must not use the executors of its parent.
    key = (os.getpid(), alias, *sizes, settings.UNEXPECTED_ERROR, settings.STRICT_REPLAY)
    with _lock:
        if key not in _engines:
            storage = DjangoStorage(alias)
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
            )
        return _engines[key]


def crash_marker(storage: DjangoStorage) -> CrashMarker:
    """Return the crash marker in which this process records what it runs for a database.

    The marker is held until the process ends.
    """
    key = (os.getpid(), storage.alias)
    if key not in _markers:
        _markers[key] = open_marker(storage.domain)
    return _markers[key]


def try_lock_run(target: RunTarget, *, storage: DjangoStorage, wait: float, yields: bool = False) -> RunState | None:
    """Lock the chain in the open transaction and return its state, or None.

    It is None if the lock was not free within ``wait`` seconds, if only workers may claim the run, or if its class is
    switched off. For ``yields`` see ``DjangoStorage.lock_chain``.

    The transaction stays usable in any case. On SQLite, the transaction has the lock already.
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
    return runs[0] if runs else None


def advance(
    target: RunTarget, *, storage: DjangoStorage, run: RunState | None = None, now: datetime | None = None
) -> TurnReport:
    """Activate once a run that ``try_lock_run`` returned, in the open transaction.

    After the commit, Django signals are sent and workers are notified. ``run`` is the state that ``try_lock_run``
    returned, for the first activation. ``now`` is the time of the database after that. Together they save two
    statements.

    A blocked run is tried as well. Never call this in a process without the class (``RunTarget.workflow_class``),
    because that would block the run.
    """
    report = engine(storage.alias).advance(
        limit=1, queues=(), chains=[target.chain_id], force=True, locked_runs=() if run is None else [run], now=now
    )
    _follow_up(report, storage=storage)
    return report


def runs_atomic(storage: DjangoStorage) -> bool:
    """Return True if this process may call ``advance_atomic``.

    It may not under a test environment, which runs activities itself.
    """
    return engine(storage.alias).runs_atomic


def advance_atomic(target: RunTarget, *, storage: DjangoStorage) -> TurnReport:
    """Run the due atomic activities of a run, and what the run does next, in the open transaction.

    Writes nothing if a row that they lock is not free, or if this process lacks the code of one of them.
    """
    report = engine(storage.alias).advance_atomic(target.chain_id, queues=())
    _follow_up(report, storage=storage)
    return report


def evict_run(run_id: UUID, *, storage: DjangoStorage) -> None:
    """Evict the executor of a run from memory, because it is out of date."""
    entry = engine(storage.alias).cache.take(run_id)
    if entry is not None:
        entry.executor.evict()


def notify_after_close(write: RunWrite, target: RunTarget, *, storage: DjangoStorage) -> None:
    """Evict a run that an action has closed.

    After the commit, Django signals are sent and workers are notified, as after a turn.
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
    """Evict the runs of a reset or fork.

    After the commit, Django signals are sent and workers are notified. Events that were copied from the other run are
    not announced again.
    """
    for write in writes:
        evict_run(write.run.run_id, storage=storage)
    _follow_up(TurnReport(run_count=len(writes), writes=list(writes)), storage=storage)
    notify_on_commit(alias=storage.alias, queues=[target.queue])


def _follow_up(report: TurnReport, *, storage: DjangoStorage) -> None:
    if not report.writes:
        return
    storage.on_commit(partial(notify.send_turn_signals, report))
    queues = {task.queue for write in report.writes for task in write.tasks}
    queues |= {write.run.queue for write in report.writes if _is_due_now(write)}
    if queues:
        notify_on_commit(alias=storage.alias, queues=queues)


def _is_due_now(write: RunWrite) -> bool:
    """Return True if a worker has something to do now.

    This is the next run of the chain, an atomic activity, or a message to another run.
    """
    run = write.run
    is_due = run.due_at is not None and run.activated_at is not None and run.due_at <= run.activated_at
    return is_due or write.next_run is not None or bool(write.messages)


def refuse_own_run(target: RunTarget, operation: str, *, storage: DjangoStorage) -> None:
    """Raise ``NestingError`` inside an atomic activity of this very run.

    Its transaction holds the lock of the run, in the middle of a turn.
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
