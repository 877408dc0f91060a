"""A turn of a worker: deliver results, advance runs and claim new activities, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from temporalex_django.authoring import activity
from temporalex_django.conf import get_settings
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling import Capacity, EagerClaim
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.recording import recorder

if TYPE_CHECKING:
    from temporalex_django.engine.contracts.storage import WorkerStorage
    from temporalex_django.engine.turn import WorkflowEngine
    from temporalex_django.liveness.leases import WorkerRow
    from temporalex_django.workers.admission import Admission
    from temporalex_django.workers.attempts import Quarantine


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
        """Store results and advance runs, in the open transaction.

        Returns the ids of ``results`` that were valid, and the waiting activities that were claimed. Activities that
        this turn schedules and claims are in ``report``. Results, runs and activities take one round trip, so the chain
        of a result that is not valid is locked without use.
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
        """Return how many due runs a turn may claim.

        ``busy_runs`` is the number of runs of which this worker holds an unstarted activity or a result. If more runs
        had activities in progress than the cache holds, each activation would have to rebuild its run first.
        """
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
        """Send the statements that claim waiting activities, at most as many as ``capacity`` allows.

        Returns a function that reads the answer and returns the claimed activities.
        """
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
        """Return those of the claimed activities that limits and switches let start; the others are released."""
        if activity.limits_by_name or self.admission.is_active:
            return self.admission.filter_claimed(tasks)
        return tasks
