"""Turns in the caller's process: one engine a database alias, for all threads.

An executor that was advanced in a transaction which rolled back stays in the cache and is never used: its token is not
the one on the row. So a caller may roll back whatever happened here.
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

from temporalex_django.actions.targets import RunTarget
from temporalex_django.authoring.activity_context import activity_context
from temporalex_django.conf import get_settings
from temporalex_django.db import notify
from temporalex_django.db.atomic_activities import run_atomic_activity
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.permissions import DatabaseJudge
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.report import TurnReport
from temporalex_django.engine.storage import RunRecord, RunState, RunWrite
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.errors import NestingError, OutsideWorkflow
from temporalex_django.liveness.crash_markers import CrashMarker, open_marker
from temporalex_django.liveness.recovery import judge_abandoned_markers
from temporalex_django.models import ActivityTask

_engines: dict[tuple[Any, ...], WorkflowEngine] = {}
_markers: dict[tuple[int, str], CrashMarker] = {}
_lock = threading.Lock()


def engine(alias: str) -> WorkflowEngine:
    """The engine of this process.

    Outside of a caller's transaction only its first phase is used: atomic activities are left to workers, due at once.
    """
    settings = get_settings()
    sizes = settings.CACHE_SIZE, settings.CACHE_BYTES, settings.MAX_PAYLOAD_BYTES
    key = (os.getpid(), alias, *sizes, settings.UNEXPECTED_ERROR, settings.STRICT_REPLAY)
    with _lock:
        if key not in _engines:
            storage = DjangoStorage(alias)
            if not connections[alias].in_atomic_block:  # else a worker, or another process like this one, does it
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
    """Where this process notes what it runs of a database: held until the process ends."""
    key = (os.getpid(), storage.alias)
    if key not in _markers:
        _markers[key] = open_marker(storage.domain)
    return _markers[key]


def try_lock_run(target: RunTarget, *, storage: DjangoStorage, wait: float, yields: bool = False) -> RunState | None:
    """The chain under the lock of the open transaction, or None.

    Not free within ``wait`` seconds, or only for workers to take, or of a class that is switched off.

    ``yields``: see ``DjangoStorage.lock_chain``. Leaves the transaction whole. SQLite has the lock already.
    """
    if target.off:
        return None  # none of its code runs, here neither
    chains = [target.chain_id]
    runs = storage.claim(limit=1, queues=(), chains=chains)
    can_wait = not runs and wait > 0 and not storage.sql.writer_lock
    if can_wait and storage.lock_chain(target.chain_id, wait=wait, yields=yields):
        runs = storage.claim(limit=1, queues=(), chains=chains)
    return runs[0] if runs else None


def advance(
    target: RunTarget, *, storage: DjangoStorage, run: RunState | None = None, now: datetime | None = None
) -> TurnReport:
    """One activation of a run that ``try_lock_run`` gave, in the open transaction.

    After its commit signals go out and workers ring. ``run`` is what it gave, for the first activation, and ``now`` the
    database's time after that: two statements less.

    Tries a blocked run too. Never for a process without the class (``RunTarget.workflow_class``): that would block the
    run.
    """
    report = engine(storage.alias).advance(
        limit=1, queues=(), chains=[target.chain_id], force=True, locked_runs=() if run is None else [run], now=now
    )
    _follow_up(report, storage=storage)
    return report


def runs_atomic(storage: DjangoStorage) -> bool:
    """Whether ``advance_atomic`` is for this process: not under an environment, which runs activities itself."""
    return engine(storage.alias).runs_atomic


def advance_atomic(target: RunTarget, *, storage: DjangoStorage) -> TurnReport:
    """Run the atomic activities of a run that are due, and what it does next, in the open transaction.

    Writes nothing where something that they lock is not free, or the code of one is not here.
    """
    report = engine(storage.alias).advance_atomic(target.chain_id, queues=())
    _follow_up(report, storage=storage)
    return report


def evict_run(run_id: UUID, *, storage: DjangoStorage) -> None:
    """What this process has in memory of a run is out of date."""
    entry = engine(storage.alias).cache.take(run_id)
    if entry is not None:
        entry.executor.evict()


def notify_after_close(write: RunWrite, target: RunTarget, *, storage: DjangoStorage) -> None:
    """The same follow-up for a run that an action closed."""
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
    """The same for a run that another one takes up, or that takes up another one: what was copied is no news."""
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
    """Whether a worker has something to do now.

    The next run of the chain, an atomic activity, a message to another run.
    """
    run = write.run
    is_due = run.due_at is not None and run.activated_at is not None and run.due_at <= run.activated_at
    return is_due or write.next_run is not None or bool(write.messages)


def refuse_own_run(target: RunTarget, operation: str, *, storage: DjangoStorage) -> None:
    """Raises ``NestingError`` inside an atomic activity of this very run.

    Its transaction has the run locked, in the middle of a turn.
    """
    try:
        context = activity_context()
    except OutsideWorkflow:
        return
    if context.run_id != str(target.run_id) or not connections[storage.alias].in_atomic_block:
        return
    seq = context._seq  # noqa: SLF001 - the host's own
    tasks = ActivityTask.objects.using(storage.alias).filter(run_id=target.run_id, seq=seq)
    # one that runs in the transaction that scheduled it has no row; an external one always has
    if tasks.filter(atomic=False).exists():
        return
    raise NestingError(
        f"{operation} of {target.workflow} {target.workflow_id} inside an atomic activity of the same run: its transaction has the run "
        "locked. Return the value to the workflow instead; signal() and cancel() are fine"
    )
