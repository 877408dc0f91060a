"""The part of the test environments that advances runs with the workflow engine of this package."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial
from uuid import UUID

from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.storage import TaskStorage
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import ClaimedRuns, TurnReport
from temporalex_django.testing.environment import Environment
from temporalex_django.testing.environment_base import Crash

TURN_LIMIT = 1000


class EngineEnvironment(Environment):
    """A test environment whose runs are advanced by ``engine``, a ``WorkflowEngine``."""

    engine: WorkflowEngine

    @property
    def _tasks(self) -> TaskStorage:
        return self.engine.tasks

    def __init__(self) -> None:
        super().__init__()
        #: The result of an activity that the next turn stores and delivers, as the turns of a worker do.
        self._finished: TaskResult | None = None

    def _run_turn(self) -> TurnReport | None:
        storage, result = self.engine.storage, self._finished
        valid_ids: list[int] = []
        try:
            with storage.transaction():
                activities: list[FinishedActivity] = []
                if result is not None:
                    valid_ids, activities = self._tasks.finish_undelivered([result])
                chains = {activity.chain_id: [activity] for activity in activities}
                report = self.engine.advance(
                    limit=TURN_LIMIT,
                    queues=(),
                    finished_activities=chains,
                    claim_runs=partial(self._claim_runs, chains.keys()),
                )
                if report.run_count and self._maybe_crash("before_turn"):
                    raise Crash
        except Crash:
            return None
        self._finished = None
        # Only a result that counts: the attempt may have closed or cancelled its own run.
        if result is not None and valid_ids:
            with self._commit_point():
                self._announce_attempt(result.task, result)
        return report

    def _claim_runs(self, chains: Collection[UUID]) -> ClaimedRuns:
        """Claim the runs that have work, for a turn that delivers results to ``chains``."""
        return self.engine.storage.claim(limit=TURN_LIMIT, queues=self._queues(), first=chains)

    def _store_result(self, result: TaskResult) -> None:
        task = result.task
        # A simulated death of the worker comes between the result and its turn. What an atomic activity wrote is
        # committed with its result.
        if result.outcome is None or task.chain_id is None or task.atomic or self._crash_points:
            super()._store_result(result)
        else:
            self._finished = result

    def _forget_runs(self) -> None:
        self.engine.cache.clear()

    def evict_run(self, run_id: UUID) -> None:
        entry = self.engine.cache.take(run_id)
        if entry is not None:
            # No code of the run is run for this, see decision 29.
            entry.executor.evict()
        self.errors.pop(run_id, None)
        self._drive()

    def _attempt_savepoint(self, task: TaskState) -> AbstractContextManager[None]:
        del task
        return self.engine.storage.savepoint()
