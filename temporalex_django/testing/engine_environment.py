"""The part of the test environments that advances runs with the workflow engine of this package."""

from __future__ import annotations

from contextlib import AbstractContextManager
from uuid import UUID

from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.contracts.task_storage import TaskStorage
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.engine.turn_report import TurnReport
from temporalex_django.testing.environment import Environment
from temporalex_django.testing.environment_base import Crash

_TURN_LIMIT = 1000


class EngineEnvironment(Environment):
    """A test environment whose runs are advanced by ``engine``, a ``WorkflowEngine``."""

    engine: WorkflowEngine

    @property
    def _tasks(self) -> TaskStorage:
        return self.engine.tasks

    def _run_turn(self) -> TurnReport | None:
        storage = self.engine.storage
        try:
            with storage.transaction():
                report = self.engine.advance(limit=_TURN_LIMIT, queues=self._queues())
                if report.run_count and self._maybe_crash("before_turn"):
                    raise Crash
        except Crash:
            return None
        return report

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
