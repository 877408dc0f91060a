"""Turns of a worker: it runs them, or hands a run over to the process that has it in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.conf import get_settings
from temporalex_django.db.connections import worker_session
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.storage import WorkerStorage
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling import Capacity, EagerClaim
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

if TYPE_CHECKING:
    from temporalex_django.engine.turn import WorkflowEngine
    from temporalex_django.liveness.leases import WorkerRow
    from temporalex_django.workers.admission import Admission
    from temporalex_django.workers.pool import Quarantine


# --- turn runner ------------------------------------------------------------------------------------------------------
#
# A turn of a worker: deliver results, advance runs and claim new activities, in one transaction.


class TurnRunner:
    """Runs the turns of one worker: transactions that store results, advance runs and claim activities.

    ``row`` is the row of the worker. A turn that fails is rolled back and raises; the polls then try each run alone.
    """

    def __init__(
        self,
        *,
        storage: WorkerStorage,
        engine: WorkflowEngine,
        admission: Admission,
        row: WorkerRow,
        quarantine: Quarantine,
    ) -> None:
        self.storage = storage
        self.engine = engine
        self.admission = admission
        self._row = row
        self._quarantine = quarantine
        # Number of runs that recent turns completed: claiming more is not worthwhile.
        if storage.sql.writer_lock:
            self._reachable_runs = policy.FEWEST_RUNS
        else:
            self._reachable_runs = storage.turn_size

    @property
    def result_limit(self) -> int:
        """The number of runs whose results one turn takes.

        If recent turns could not advance as many runs as they may claim, a quarter is left for runs without results.
        """
        limit = min(self.storage.turn_size, self._reachable_runs)
        if limit == self.storage.turn_size:
            return limit
        return limit - limit // 4

    def turn(
        self, results: Sequence[TaskResult], capacity: Capacity, report: TurnReport
    ) -> tuple[list[int], list[TaskState]]:
        """Run one turn and commit it; return the ids of ``results`` that were valid, and the claimed activities.

        A turn stores the results of activities, advances due runs and claims new activities. ``capacity`` is that of
        the worker, from which each claimed activity is subtracted. Raises errors of the storage: nothing was committed
        then, and ``report``, which this fills in, says which runs were claimed.
        """
        turn_started_at, replayed = time.monotonic(), self.engine.replay_seconds
        with self.storage.transaction("turn"):
            started_at = time.monotonic()
            # Activities that wait come before those that this turn schedules. Where the latter are claimed as they are
            # inserted, the claim of the former is a part of this call.
            valid, tasks = self._advance_runs(results, capacity, report)
            if not self.storage.sql.claims_on_insert:
                tasks += self.claim_tasks(capacity)
            if (
                self.storage.sql.writer_lock
                and (lock_seconds := time.monotonic() - started_at) > policy.MAX_LOCK_SECONDS
            ):
                self._reachable_runs = max(
                    int(len(report.claimed_chains) * policy.MAX_LOCK_SECONDS / lock_seconds), policy.FEWEST_RUNS
                )
        if recorder.is_active and (report.claimed_chains or results or tasks):
            code_seconds = sum(write.seconds or 0.0 for write in report.writes) + self.engine.replay_seconds - replayed
            recorder.record(
                definitions.TURN_DATABASE_SECONDS, max(0.0, time.monotonic() - turn_started_at - code_seconds)
            )
        return valid, tasks + report.claimed_tasks()

    def _advance_runs(
        self, results: Sequence[TaskResult], capacity: Capacity, report: TurnReport
    ) -> tuple[list[int], list[TaskState]]:
        """Store results and advance runs; return the ids of valid results, and claimed activities.

        All takes one round trip, so the chain of a result that is not valid is locked without use.
        """
        admission = self.admission
        is_refused = None
        if activity.limits_by_name or admission.is_active:
            is_refused = admission.is_refused
        eager_claim = EagerClaim(
            owner=self._row.epoch, capacity=capacity, queues=admission.unlimited_queues, is_refused=is_refused
        )
        limit, reserved = min(self.storage.turn_size, self._reachable_runs), capacity.reserve()
        result_chains = {
            end.task.chain_id for end in results if end.outcome is not None and end.task.chain_id is not None
        }
        with self.storage.sql.pipeline():
            self.storage.sql.prefer_indexes()
            finish_results = self.storage.submit_finish(results)
            if self.storage.sql.claims_on_insert:
                claim_waiting = self._submit_claim(capacity)
            else:
                claim_waiting = list
            claim = self.storage.submit_claim(
                limit=limit, queues=admission.queues, first=result_chains, due=self._due_run_limit(capacity.busy_runs)
            )
        valid, finished_activities = finish_results()
        by_chain: dict[UUID, list[FinishedActivity]] = {}
        for finished_activity in finished_activities:
            by_chain.setdefault(finished_activity.chain_id, []).append(finished_activity)
        tasks = self._filter_claimed(claim_waiting())
        # What was reserved is for the activities that this turn schedules.
        capacity.prefetch_limit = (
            (capacity.prefetch_limit or 0)
            + reserved
            + (capacity.eager_limit if self.storage.sql.claims_on_insert else 0)
        )
        claim_runs = partial(claim, by_chain.keys())
        self.engine.advance(
            limit=limit,
            queues=admission.queues,
            eager_claim=eager_claim,
            report=report,
            finished_activities=by_chain,
            claim_runs=claim_runs,
            is_last=self.storage.sql.claims_on_insert,
        )
        if report.unstarted_count:
            self._reachable_runs = max(report.run_count + report.run_count // 8, policy.FEWEST_RUNS)
        elif len(report.claimed_chains) >= limit:
            self._reachable_runs = min(limit + limit // 4, self.storage.turn_size)
        return valid, tasks

    def _due_run_limit(self, busy_runs: int) -> int:
        """Return how many due runs to claim: more runs in progress than the cache holds would be rebuilt each time."""
        run_limit = int(get_settings().CACHE_SIZE * policy.BUSY_RUN_SHARE)
        return max(
            run_limit - busy_runs, int(policy.OTHER_RUN_SHARE * (2 * run_limit - busy_runs)), policy.MIN_OTHER_RUNS
        )

    def claim_tasks(self, capacity: Capacity) -> list[TaskState]:
        """Claim waiting activities within ``capacity``, in the open transaction or in one of their own."""
        with self.storage.join_transaction():
            with self.storage.sql.pipeline():
                get_tasks = self._submit_claim(capacity)
            return self._filter_claimed(get_tasks())

    def _submit_claim(self, capacity: Capacity) -> Callable[[], list[TaskState]]:
        suspects = self._quarantine.has_suspects
        if suspects and self._quarantine.is_ready:
            # A suspect starts alone, whatever else there is capacity for.
            capacity = Capacity(threads=1)
        if not capacity:
            return list
        return self.storage.submit_task_claim(
            capacity=capacity, queues=self.admission.unlimited_queues, owner=self._row.epoch, suspects=suspects
        )

    def _filter_claimed(self, tasks: list[TaskState]) -> list[TaskState]:
        """Return those that limits and switches let start; the others are released."""
        if activity.limits_by_name or self.admission.is_active:
            return self.admission.filter_claimed(tasks)
        return tasks


# --- turn handover ----------------------------------------------------------------------------------------------------
#
# The handover of turns to another thread while an atomic activity takes a long time.
#
# An atomic activity is part of a turn, and one thread of a worker runs all turns. That thread releases ``turn_lock``
# while it runs the code of an activity. If that takes a long time, another thread (a helper) takes the lock and runs
# turns until the first one is back. So the activity delays only its own run, and transactions that need rows which it
# has locked. Schedulers do the same when a system call does not return: they give the processor to another thread (Go's
# ``sysmon``).


log = logging.getLogger("temporalex_django.workers")


@dataclass(eq=False, slots=True)
class _RunningActivity:
    """An atomic activity that is running.

    ``thread`` is the id of its thread, and ``started_at`` the time of its start (``time.monotonic``). ``is_reported``
    is True once a warning has named it as slow.
    """

    task: TaskState
    thread: int
    started_at: float = field(default_factory=time.monotonic)
    is_reported: bool = False


class TurnHandover:
    """Lets other threads of a worker run its turns while an atomic activity keeps the worker's own thread busy.

    ``run_turns(is_relieved)`` runs turns until ``is_relieved()`` is True: until a thread that ran turns before this one
    is back. A thread has to hold ``turn_lock`` while it uses the loop's storage. At most ``max_helpers`` further
    threads run turns. Another thread has to call ``check`` several times a second.
    """

    def __init__(
        self, storage: WorkerStorage, *, max_helpers: int, run_turns: Callable[[Callable[[], bool]], None]
    ) -> None:
        self.turn_lock = threading.Lock()
        self.max_helpers = max_helpers
        self._storage = storage
        self._run_turns = run_turns
        self._turn_threads: list[int] = []  # threads that turn, the worker's own first
        self._helpers: list[threading.Thread] = []
        self._running: dict[int, _RunningActivity] = {}  # by thread

    def register_thread(self) -> None:
        """Make the calling thread the one that runs turns. Call it once, before any helper may start."""
        self._turn_threads = [threading.get_ident()]

    @property
    def busy(self) -> bool:
        """True if an atomic activity is running."""
        return bool(self._running)

    @property
    def oldest_started_at(self) -> float:
        """The time (monotonic clock) at which the longest running activity started; now if none runs."""
        return min((activity.started_at for activity in [*self._running.values()]), default=time.monotonic())

    def is_running(self, chain: UUID) -> bool:
        """Return True if this process runs an atomic activity of the chain, even if the lock of the chain is lost."""
        return any(activity.task.chain_id == chain for activity in self._running.values())

    @property
    def is_last_helper(self) -> bool:
        """True if the calling thread must not run atomic activities, because no other thread is left to run turns."""
        return len(self._turn_threads) > max(self.max_helpers, 1) and self._turn_threads[-1] == threading.get_ident()

    @contextmanager
    def running_activity(self, task: TaskState, *, releases_lock: bool) -> Iterator[None]:
        """Register an atomic activity as running in the calling thread while the block runs.

        The thread holds ``turn_lock``. With ``releases_lock`` it gives up the lock, and the storage, until the activity
        has ended.
        """
        thread = threading.get_ident()
        self._running[thread] = _RunningActivity(task, thread)
        # Where the database has a writer lock, this transaction keeps it, and no other turn could write.
        releases_lock = (
            releases_lock
            and self.max_helpers > 0
            and thread in self._turn_threads
            and not self._storage.sql.writer_lock
        )
        if releases_lock:
            transaction_state = self._storage.detach()
        else:
            transaction_state = (None, None)
        if releases_lock:
            self.turn_lock.release()
        try:
            yield
        finally:
            # Before it waits for the lock: the helper that has it now runs no further turn.
            del self._running[thread]
            if releases_lock:
                self.turn_lock.acquire()
                self._storage.attach(transaction_state)

    def check(self) -> None:
        """Start a helper if all threads that run turns have long been busy with an activity; warn of slow ones.

        It never waits.
        """
        now, running = time.monotonic(), [*self._running.values()]
        for entry in running:
            if now - entry.started_at > policy.SLOW_ATOMIC_SECONDS and not entry.is_reported:
                entry.is_reported = True
                log.warning(
                    "atomic activity %s of run %s has held its transaction for %.1f s and is still running: its run "
                    "waits, and so do others that need the rows it has locked",
                    *(entry.task.activity, entry.task.run_id, now - entry.started_at),
                )
        turn_threads, helpers = self._turn_threads, [entry for entry in self._helpers if entry.is_alive()]
        if not turn_threads or len(helpers) >= min(self.max_helpers, len(turn_threads)) or self.turn_lock.locked():
            return
        # All threads that could run turns are inside an activity, and the latest of these has run for long, too.
        if {entry.thread for entry in running} == {*turn_threads} and now - max(
            entry.started_at for entry in running
        ) > policy.HANDOVER_SECONDS:
            helper = threading.Thread(target=self._run_helper, name="temporalex-relief", daemon=True)
            self._helpers = [*helpers, helper]
            helper.start()

    def _run_helper(self) -> None:
        """Run turns until a thread that ran them before is free again."""
        own_thread = threading.get_ident()
        self._turn_threads.append(own_thread)
        try:
            with worker_session(self._storage.alias):
                self._run_turns(
                    lambda: any(
                        thread not in self._running
                        for thread in self._turn_threads[: self._turn_threads.index(own_thread)]
                    )
                )
        finally:
            self._turn_threads.remove(own_thread)

    def join(self, *, seconds: float) -> None:
        """Wait at most ``seconds`` for the helpers to end. They stop when the loop does."""
        until = time.monotonic() + seconds
        for helper in self._helpers:
            helper.join(max(0.0, until - time.monotonic()))
