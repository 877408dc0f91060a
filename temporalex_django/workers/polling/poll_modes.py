"""The ways in which a worker can do one poll: one pass of its loop, in which it looks for due work and does it.

Each way commits results of activities, and claims runs and activities as far as it may. ``Poller`` chooses one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.liveness.crash_markers import MarkedWork
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
from temporalex_django.workers.admission import Admission, select_fairly
from temporalex_django.workers.attempts import Quarantine
from temporalex_django.workers.polling.single_runs import SingleRuns
from temporalex_django.workers.polling.task_intake import TaskIntake
from temporalex_django.workers.pool import Pool
from temporalex_django.workers.turn_runner import TurnRunner

log = logging.getLogger("temporalex_django.workers")


@dataclass(slots=True)
class PollResult:
    """The effects of one poll of a worker.

    ``runs`` is the number of runs that were advanced, ``tasks`` that of activities that were claimed or moved, and
    ``results`` that of results that were stored.
    """

    runs: int = 0
    tasks: int = 0
    results: int = 0
    rebuilding: int = 0  # runs that are being rebuilt, slice by slice
    is_plain_read: bool = False  # it was a plain read that found nothing
    due_in: float | None = None  # seconds until something is due, by that read; None: nothing is known

    def __bool__(self) -> bool:
        return bool(self.runs or self.tasks or self.results or self.rebuilding)


class PollMode(Protocol):
    """One of the ways in which a worker can do a poll, such as one turn for many runs, or each run alone."""

    def exchange(self) -> PollResult:
        """Commit results of activities, claim and do due work, and return the numbers of both.

        The pool keeps a result until its commit. Raises when the database is gone.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PollParts:
    """The parts of a worker that its polls use, from the storage to the pool of activities.

    ``publish`` is called with the report of a turn that was committed; it sends signals and notifications.
    """

    storage: WorkerStorage
    engine: WorkflowEngine
    pool: Pool
    admission: Admission
    quarantine: Quarantine
    row: WorkerRow
    turn_runner: TurnRunner
    intake: TaskIntake
    single_runs: SingleRuns
    publish: Callable[[TurnReport], None]


class StoreOnly:
    """A poll that stores results of activities and claims nothing.

    It is used while an activity that may have ended a worker is on trial (``Quarantine``), and while the worker is
    drained.
    """

    def __init__(self, parts: PollParts) -> None:
        self._intake = parts.intake

    def exchange(self) -> PollResult:
        return PollResult(results=self._intake.store_results())


class PlainRead:
    """A poll that does nothing, because a read found that nothing is due for ``due_in`` seconds.

    ``due_in`` None means that nothing will be due. ``rebuilding`` is the number of runs that are being rebuilt.
    """

    def __init__(self, due_in: float | None, rebuilding: int) -> None:
        self._due_in = due_in
        self._rebuilding = rebuilding

    def exchange(self) -> PollResult:
        return PollResult(rebuilding=self._rebuilding, is_plain_read=True, due_in=self._due_in)


class TogetherTurn:
    """A poll with one turn of many runs: one transaction with results, due runs and due activities.

    Atomic activities follow after it. If the turn fails, each result and each run is tried alone (``SeparateTurns``).
    """

    def __init__(self, parts: PollParts) -> None:
        self._parts = parts

    def exchange(self) -> PollResult:
        parts = self._parts
        results = select_fairly(parts.pool.results(), parts.turn_runner.result_limit)
        report = TurnReport()
        try:
            valid_ids, tasks = parts.turn_runner.turn(results, parts.intake.capacity(), report)
        except Exception as exc:
            if parts.storage.is_connection_lost(exc):
                raise
            if recorder.is_active and parts.storage.is_transient(exc):
                recorder.record(definitions.CONFLICTS, place="turn")
            return SeparateTurns(parts, results, report.claimed_chains, exc).exchange()
        parts.intake.apply_turn(results, valid_ids, tasks)
        parts.publish(report)
        runs = report.run_count + parts.single_runs.run_atomic_phase(report.atomic_chains)
        if report.suspect_chains:
            runs += parts.single_runs.turn_announced(report.suspect_chains[:1])
        return PollResult(runs=runs, tasks=len(tasks), results=len(results), rebuilding=parts.engine.rebuild_count)


class SeparateTurns:
    """A poll that stores each result and advances each run alone, after an error rolled back the turn with all of them.

    ``results`` and ``chains`` are those of the turn that failed, and ``cause`` is the error.
    """

    def __init__(
        self, parts: PollParts, results: list[TaskResult], chains: Sequence[UUID], cause: BaseException
    ) -> None:
        self._parts = parts
        self._results = results
        self._chains = chains
        self._cause = cause

    def exchange(self) -> PollResult:
        parts = self._parts
        if not parts.storage.is_transient(self._cause):
            log.warning(
                "a turn of %s failed, retrying each run alone: %s",
                counted(len(self._chains), "run", "runs"),
                error_line(self._cause),
            )
        results, valid_ids = parts.intake.store_each(self._results)
        with parts.storage.transaction("apart"):
            tasks = parts.turn_runner.claim_tasks(parts.intake.capacity())
        parts.intake.apply_turn(results, valid_ids, tasks)
        runs = sum(parts.single_runs.turn_alone(chain) for chain in self._chains)
        return PollResult(runs=runs, tasks=len(tasks), results=len(results))


class CautiousTurns:
    """A poll that advances runs one by one, while a worker elsewhere may have died, or has died for an unknown reason.

    ``caution`` is the number of recent deaths without an explanation, plus one while a worker elsewhere may have died.
    Each run is announced on the row of this worker before its code runs (see decision 22).
    """

    def __init__(self, parts: PollParts, caution: int) -> None:
        self._parts = parts
        self._caution = caution

    def exchange(self) -> PollResult:
        parts, results = self._parts, self._parts.pool.results()
        capacity = parts.intake.cautious_capacity(self._caution)
        try:
            with parts.storage.transaction("careful ends"):
                valid_ids = parts.storage.finish_tasks(results)
                tasks = parts.turn_runner.claim_tasks(capacity)
        except Exception as exc:
            if parts.storage.is_connection_lost(exc):
                raise
            # One that cannot be stored must not keep the others.
            (results, valid_ids), tasks = parts.intake.store_each(results), []
        parts.intake.apply_turn(results, valid_ids, tasks)
        runs = 0
        if not parts.quarantine.is_on_trial:  # otherwise an activity has just started its trial
            runs = self._advance_runs()
        return PollResult(runs=runs, tasks=len(tasks), results=len(results), rebuilding=parts.engine.rebuild_count)

    def _advance_runs(self) -> int:
        """Rebuild a slice of one run and advance claimed runs, each announced; return how many were advanced."""
        parts = self._parts
        deferred_chains = parts.engine.deferred_chains[:1]
        if deferred_chains and parts.row.announce(parts.storage, [MarkedWork("chain", deferred_chains[0])]):
            parts.engine.rebuild()
        with parts.storage.transaction("careful claim"):
            claimed = parts.storage.claim(limit=parts.storage.turn_size, queues=parts.admission.queues)
        suspects = [run.chain_id for run in claimed if run.crashes][:1]
        chains = [*suspects, *(run.chain_id for run in claimed if not run.crashes)]
        if not chains and not deferred_chains:
            return 0
        return parts.single_runs.turn_announced(chains, deadline=time.monotonic() + policy.ATOMIC_PHASE_SECONDS)


class Poller:
    """Does the polls of one worker: it chooses in which of the ways (``PollMode``) each is done.

    - ``caution``: the number of recent deaths of workers without an explanation, plus one while a worker elsewhere may
      have died. Maintenance sets it (see ``liveness.recovery``).
    - ``expects_work``: True if much was done or a wakeup came. Otherwise a plain read decides whether a turn is
      worthwhile. On a database with a single writer lock (SQLite) that read comes first always, so that only a turn
      that has something to write takes the lock.
    """

    def __init__(self, parts: PollParts) -> None:
        self._parts = parts
        self._store_only = StoreOnly(parts)
        self._together = TogetherTurn(parts)
        self.caution = 0
        self.expects_work = not parts.storage.sql.writer_lock

    def poll(self) -> PollResult:
        """Look for due work once and do it; return what was done. Afterwards all claimed activities are in the pool."""
        parts = self._parts
        # First where the last turn left no capacity: activities without limits would use all of it, each time.
        limited_first = parts.admission.lacks_capacity and not parts.quarantine.has_suspects
        limited_count = 0
        if limited_first:
            limited_count = self._claim_limited()
        result = self._choose_mode().exchange()
        if not limited_first:
            limited_count = self._claim_limited()
        result.tasks += limited_count
        return result

    def _choose_mode(self) -> PollMode:
        """Return the way in which to do this poll, after rebuilding runs for a moment, which needs no transaction."""
        parts = self._parts
        if self._stores_only:
            return self._store_only
        if self.caution:
            return CautiousTurns(parts, self.caution)
        parts.engine.rebuild()
        if not self.expects_work and not parts.pool.has_results and (due_in := self.next_due()) != 0.0:
            return PlainRead(due_in, parts.engine.rebuild_count)
        return self._together

    @property
    def _stores_only(self) -> bool:
        return self._parts.quarantine.is_on_trial or self._parts.row.drained_at is not None

    def _claim_limited(self) -> int:
        """Claim activities under limits; return how many were claimed, or moved to another partition of their queue."""
        parts = self._parts
        if not parts.admission.is_active or self._stores_only:
            return 0
        if self.caution:
            capacity = parts.intake.cautious_capacity(self.caution)
        else:
            capacity = parts.intake.capacity()
        return parts.intake.claim_limited(capacity, owner=parts.row.epoch)

    def next_due(self) -> float | None:
        """Return the seconds until something is due that this worker may claim; 0.0: now, None: nothing will be due."""
        admission = self._parts.admission
        return self._parts.storage.next_due(queues=admission.queues, activity_queues=admission.unlimited_queues)
