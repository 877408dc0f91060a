"""Runs on a cluster rebuilt from their histories there: the code is replayed, and the rows are written as it ends."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from temporalex_django.backends.cluster.answers import is_gone
from temporalex_django.backends.cluster.ids import cluster_id_of, task_queue
from temporalex_django.backends.cluster.mirrored_run import (
    FailedTask,
    MirroredPlugin,
    MirroredRun,
    MirroredRunner,
    ObservedRun,
)
from temporalex_django.conf import codec, get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.human_tasks import HumanTaskChange
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.run import TemporalRun

log = logging.getLogger("temporalex_django.backends")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The ids of a run on the cluster, and its task queue."""

    cluster_id: str
    run_id: str
    queue: str


class _Nobody:
    """The observer of replays, which are shown to nobody."""

    def observe(self, run: ObservedRun) -> None:
        del run

    def note_failure(self, failed: FailedTask) -> None:
        del failed

    def call(self, function: Callable[[], Any]) -> Any:
        raise AssertionError(f"a replay has called {function}")


class RebuiltRun(MirroredRun):
    """A run that is only replayed. When it leaves memory, its final state is stored in ``rebuilt`` by its run id."""

    def __init__(self, options: HostOptions, info: Any, rebuilt: dict[str, ObservedRun]) -> None:
        super().__init__(options, info, _Nobody())
        self._rebuilt = rebuilt

    def evict(self) -> None:
        history = getattr(self, "history", None)
        try:
            if history is not None and history.events:
                self._rebuilt[self._info.run_id] = self.observed(
                    events=(),
                    human_tasks=[HumanTaskChange(changes=(), task=task) for task in history.human_tasks.values()],
                )
        except Exception as exc:  # noqa: BLE001 - the SDK would try the same again and again
            log.error("the rows of %s cannot be rebuilt: %s", self._info.workflow_id, error_line(exc))
        super().evict()


class _ReplayRunner(MirroredRunner):
    def __init__(self, options: HostOptions, rebuilt: dict[str, ObservedRun]) -> None:
        super().__init__(options, SandboxedWorkflowRunner(), _Nobody())
        self._rebuilt = rebuilt

    def new_run(self, det: WorkflowInstanceDetails) -> TemporalRun:
        return RebuiltRun(self.options, det.info, self._rebuilt)


class _ReplayPlugin(MirroredPlugin):
    def __init__(self, rebuilt: dict[str, ObservedRun]) -> None:
        self._rebuilt = rebuilt
        super().__init__(
            _Nobody(),
            codec=codec(),
            queue_name=task_queue,
            workflow_id=cluster_id_of,
            unexpected_error=get_settings().UNEXPECTED_ERROR,
        )

    def _make_runner(self, other: WorkflowRunner | None) -> WorkflowRunner:
        del other
        return _ReplayRunner(self.options, self._rebuilt)


async def rebuild(client: Client, executions: Sequence[Execution]) -> list[ObservedRun]:
    """Replay these runs from their histories on the cluster, and return them in the order of ``executions``.

    Runs that the cluster does not know any more are left out. Runs that cannot be replayed are logged and left out,
    too.
    """
    rebuilt: dict[str, ObservedRun] = {}
    replayer = Replayer(workflows=[], plugins=[_ReplayPlugin(rebuilt)], namespace=client.namespace)
    async with replayer.workflow_replay_iterator(_histories(client, executions)) as results:
        async for result in results:
            if result.replay_failure is not None:
                rebuilt.pop(result.history.run_id, None)
                log.error(
                    "the rows of %s cannot be rebuilt: %s",
                    result.history.workflow_id,
                    error_line(result.replay_failure),
                )
    # A replay knows no task queue.
    return [replace(rebuilt[run.run_id], queue=run.queue) for run in executions if run.run_id in rebuilt]


async def _histories(client: Client, executions: Sequence[Execution]) -> AsyncIterator[WorkflowHistory]:
    for execution in executions:
        handle = client.get_workflow_handle(execution.cluster_id, run_id=execution.run_id)
        try:
            yield await handle.fetch_history()
        except RPCError as exc:
            if not is_gone(exc):
                raise
