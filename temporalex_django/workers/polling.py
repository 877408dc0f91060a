"""The poll of a worker: one pass of its loop, in which it looks for due work and does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Protocol
from uuid import UUID

from temporalex_django.conf import get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import counted
from temporalex_django.core.payloads.codec import error_reason
from temporalex_django.engine import activity_policy, policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.liveness.crash_markers import MarkedWork
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.liveness.recovery import block_run
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder
from temporalex_django.workers.admission import Admission, select_fairly
from temporalex_django.workers.attempts import announce_result
from temporalex_django.workers.pool import Pool, Quarantine
from temporalex_django.workers.turn_runner import TurnHandover, TurnRunner

# --- poll modes -------------------------------------------------------------------------------------------------------
#
# The ways in which a worker can do one poll: one pass of its loop, in which it looks for due work and does it.
#
# Each way commits results of activities, and claims runs and activities as far as it may. ``Poller`` chooses one.


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
        """Rebuild a slice of one run and advance claimed runs, each announced; return their number."""
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
        """Return how to poll, after rebuilding runs for a moment, which needs no transaction."""
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
        """Claim activities under limits; return how many were claimed, or moved to another partition."""
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


# --- task intake ------------------------------------------------------------------------------------------------------
#
# The exchange between a worker's pool and the tables: capacity, claimed activities, results.


class TaskIntake:
    """The exchange of activities between one worker and the tables: claims, starts and results.

    ``now`` returns the database's time.
    """

    def __init__(
        self,
        *,
        storage: WorkerStorage,
        pool: Pool,
        admission: Admission,
        quarantine: Quarantine,
        now: Callable[[], datetime],
    ) -> None:
        self._storage = storage
        self._pool = pool
        self._admission = admission
        self._quarantine = quarantine
        self._now = now

    # -- claiming -----------------------------------------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """Return how many activities the worker may claim now.

        None while an activity that may have ended a worker waits for the pool to be empty.
        """
        if self._quarantine.has_suspects:
            return Capacity()
        return self._pool.capacity()

    def cautious_capacity(self, caution: int) -> Capacity:
        """Return how many activities the worker may claim while workers die for unknown reasons.

        That is the capacity of the pool, halved for each death: ``caution`` is the number of recent deaths without an
        explanation. Only plain activities are claimed then, and at least one if the pool is empty.
        """
        threads = min(self.capacity().threads, get_settings().ACTIVITY_THREADS >> min(caution, 30))
        if not threads and not self._pool.busy:
            threads = 1
        return Capacity(threads=threads)

    def claim_limited(self, capacity: Capacity, *, owner: int) -> int:
        """Claim activities under limits, in transactions of their own, and start them.

        ``owner`` is the epoch of the worker. Returns how many were claimed or moved to another partition.
        """
        suspects = self._quarantine.is_ready
        if suspects:
            capacity = Capacity(threads=1)
        capacity.prefetch.clear()  # what waits in a pool would use up a limit that another worker could use
        capacity.prefetch_limit = 0
        tasks, moved = self._admission.claim(capacity, owner=owner, suspects=suspects)
        self.start_tasks(tasks, all_seen=suspects)
        return len(tasks) + moved

    def start_tasks(self, tasks: list[TaskState], *, all_seen: bool) -> None:
        """Start claimed activities, except those that may have ended a worker and have to wait; these are released.

        ``all_seen`` is True if every due activity could have been claimed, so that a claim without suspects shows that
        none are due.
        """
        tasks, released_keys = self._quarantine.filter_claimed(tasks, all_seen=all_seen)
        self._pool.submit(tasks)
        self._storage.release_unstarted(released_keys)

    # -- results ------------------------------------------------------------------------------------------------------

    def apply_turn(self, results: list[TaskResult], valid_ids: list[int], tasks: list[TaskState]) -> None:
        """Remove committed results from the pool and start claimed activities; call it after the commit.

        ``valid_ids`` are the ids of the activities whose result was still valid; only these are announced.
        """
        self._pool.discard_results(results)
        if results and self._admission.has_waiting:
            self._admission.reset_waits([result.task.queue for result in results])
        self.start_tasks(tasks, all_seen=not self._admission.is_active)
        self._announce(results, valid_ids)

    def store_results(self) -> int:
        """Store all results and claim nothing; return the number of results that need no other try."""
        results = self._pool.results()
        if results:
            try:
                valid_ids = self._storage.finish_tasks(results)
            except Exception as exc:
                if self._storage.is_connection_lost(exc):
                    raise
                results, valid_ids = self.store_each(results)  # one that cannot be stored must not keep the others
            self._pool.discard_results(results)
            self._announce(results, valid_ids)
        return len(results)

    def store_each(self, results: list[TaskResult]) -> tuple[list[TaskResult], list[int]]:
        """Store results one by one, each in a transaction of its own.

        Returns the results that need no other try, and the ids of those activities whose result was valid.
        """
        stored = [end for result in results if (end := self._store_result(result)) is not None]
        return [end for end, _ in stored], [end.task.id for end, valid in stored if valid]

    def _store_result(self, result: TaskResult) -> tuple[TaskResult, bool] | None:
        """Return the stored result, or a failure, and if it was valid. None: it has to be tried again."""
        task = result.task
        try:
            return result, bool(self._storage.finish_tasks([result]))
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            if self._storage.is_transient(exc):
                return None
            log.error(
                "the result of %s cannot be stored: %s",
                task.activity,
                error_line(exc),
                extra={"run_id": str(task.run_id)},
            )
            error = PayloadError(f"the result of {task.activity} cannot be stored: {error_reason(exc)}")
            result = activity_policy.failed_result(task, error, self._now(), final=True)
        try:
            return result, bool(self._storage.finish_tasks([result]))
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            return None

    def _announce(self, results: list[TaskResult], valid_ids: list[int]) -> None:
        """Send signals about valid results. An earlier attempt that timed out may be beside the valid one."""
        latest = {result.task.id: result for result in sorted(results, key=lambda result: result.task.attempt)}
        finished_ids = set(valid_ids)
        for result in results:
            if result.task.id in finished_ids and latest[result.task.id] is result:
                announce_result(result)


# --- single runs ------------------------------------------------------------------------------------------------------
#
# Runs that a worker advances in transactions of their own: with atomic activities, after a failure, or as suspects.
#
# A suspect is a run whose code may have ended a process.


class SingleRuns:
    """Advances runs of one worker that need a transaction of their own.

    ``queues`` and ``row`` are the queues and the row of the worker. ``handover`` says which atomic activities are
    running. ``publish`` is called with the report of each transaction that advanced a run.
    """

    def __init__(
        self,
        *,
        storage: WorkerStorage,
        engine: WorkflowEngine,
        row: WorkerRow,
        queues: Sequence[str],
        handover: TurnHandover,
        publish: Callable[[TurnReport], None],
    ) -> None:
        self._storage = storage
        self._engine = engine
        self._row = row
        self._queues = queues
        self._handover = handover
        self._publish = publish
        self._pauses: dict[UUID, float] = {}  # of runs whose business rows others have locked
        self.is_trying_suspects = False  # runs that ended processes are being tried

    @property
    def has_waiting(self) -> bool:
        """True if some runs wait for rows of the project's own tables that others have locked."""
        return bool(self._pauses)

    def run_atomic_phase(self, chains: Sequence[UUID]) -> int:
        """Run the due atomic activities of these runs, one run after the other, until a moment has passed.

        Returns the number of runs that were advanced. The others stay due.
        """
        if self._handover.is_last_helper:
            return 0
        deadline, advanced = time.monotonic() + policy.ATOMIC_PHASE_SECONDS, 0
        # A run whose pause is over waits for its locks, one a poll: a claim would not find it while its callers take
        # turns.
        retry_chains = [chain for chain in self._pauses if not self._storage.is_deferred(chain)][:1]
        for chain in dict.fromkeys([*retry_chains, *chains]):
            if self._handover.is_running(chain):  # the server has ended its session, and its code still runs
                self._storage.defer([chain], seconds=policy.LONGEST_LOCK_PAUSE)
            elif self._advance_atomic(chain, waits=chain in retry_chains):
                self._pauses.pop(chain, None)
                advanced += 1
            else:
                self._pause_locked(chain, is_due=chain in chains)
            if time.monotonic() > deadline:
                break
        return advanced

    def _advance_atomic(self, chain: UUID, *, waits: bool) -> bool:
        """Return True if the run was advanced, or blocked. ``waits`` waits for rows that others have locked."""
        lock_timeout = 0.0
        if waits:
            lock_timeout = policy.BUSINESS_LOCK_SECONDS
        try:
            report = self._engine.advance_atomic(chain, queues=self._queues, lock_timeout=lock_timeout)
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            return not self._defer_for_key(chain, exc) and block_run(self._storage, chain, exc)
        self._publish(report)
        return bool(report.run_count)

    def _pause_locked(self, chain: UUID, *, is_due: bool) -> None:
        """Defer a run that needs locked rows, a little longer each time; other runs come first.

        After the longest pause, a run that no claim found (``is_due`` False) is forgotten: another worker has done it,
        or a claim finds it again.
        """
        longest = policy.LONGEST_LOCK_PAUSE
        if not is_due and self._pauses.get(chain, longest) >= longest:
            self._pauses.pop(chain, None)
            return
        pause = self._pauses[chain] = min(self._pauses.get(chain, policy.CONTENDED_SECONDS / 2) * 2, longest)
        self._storage.defer([chain], seconds=pause)

    def turn_alone(self, chain: UUID) -> int:
        """Run a turn of one run, and return the number of runs that it advanced or blocked."""
        try:
            report = self._engine.turn(limit=1, queues=self._queues, chains=[chain])
        except Exception as exc:
            if self._storage.is_connection_lost(exc):
                raise
            if self._storage.is_transient(exc):
                return 0
            if self._defer_for_key(chain, exc):
                return 0
            block_run(self._storage, chain, exc)
            return 1
        self._publish(report)
        return report.run_count

    def turn_announced(self, chains: Sequence[UUID], *, deadline: float = inf) -> int:
        """Run a turn of each chain alone, after announcing it on the row of this worker.

        The code of the run may have ended a process, and the row names the run if it ends this one. A run that another
        worker has announced is left alone for a while, because that worker is running it or has died of it. After
        ``deadline`` (``time.monotonic``) no further turn starts. Returns the number of runs that were advanced.
        """
        advanced = 0
        self.is_trying_suspects = True
        try:
            for chain in chains:
                if self._row.announce(self._storage, [MarkedWork("chain", chain)]):
                    advanced += self.turn_alone(chain)
                else:
                    self._storage.defer([chain], seconds=policy.ANNOUNCED_ELSEWHERE)
                if time.monotonic() > deadline:
                    break
        finally:
            self.is_trying_suspects = False
        self._row.announce(self._storage, ())
        return advanced

    def _defer_for_key(self, chain: UUID, error: BaseException) -> bool:
        """Return True if a key is missing and the run was deferred to a worker that may have it."""
        return isinstance(error, KeyMissing) and self._engine.defer_for_key(chain)
