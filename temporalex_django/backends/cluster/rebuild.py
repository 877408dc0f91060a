"""Runs on a cluster that are replayed from their histories there: to write their rows anew, or to check new code."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from temporalex_django.backends.cluster.answers import is_gone, report_unavailable
from temporalex_django.backends.cluster.client import cluster_client
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
from temporalex_django.core.history.replay import suspended_place
from temporalex_django.core.human_tasks import HumanTaskChange
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal.options import CodeRunner, HostOptions, call
from temporalex_django.temporal.run import TemporalRun

log = logging.getLogger("temporalex_django.backends")

#: The number of an event in the texts of the SDK about a mismatch.
_EVENT: Final = re.compile(r"HistoryEvent\(id: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The ids of a run on the cluster, and its task queue."""

    cluster_id: str
    run_id: str
    queue: str


@dataclass(slots=True, kw_only=True)
class ReplayedRun:
    """The outcome of the replay of a run with the code of this process.

    ``state`` is the run after its last event; None if the replay has not reached it. ``error`` is the reason why the
    code does not match the history, or None. ``place`` is the file and line (``path:line``) where the code waits then.
    """

    state: ObservedRun | None = None
    error: Exception | None = None
    place: str | None = None


class _Outcomes(defaultdict[str, ReplayedRun]):
    """The outcomes of replays by the run id on the cluster; the observer of the runs that are replayed."""

    def __init__(self) -> None:
        super().__init__(ReplayedRun)

    def observe(self, run: ObservedRun) -> None:
        """Do nothing: a replay changes nothing that others see."""

    observe_soon = observe

    def note_failure(self, failed: FailedTask) -> None:
        """Note the first error of a run; the SDK replays a run again that has failed."""
        self[failed.run_id].error = self[failed.run_id].error or failed.error

    def call(self, function: Callable[[], Any]) -> Any:
        raise AssertionError(f"a replay has called {function}")


class _ReplayOnlyRun(MirroredRun):
    """A run that is only replayed. When it leaves memory, its outcome is noted."""

    def __init__(self, options: HostOptions, info: Any, outcomes: _Outcomes) -> None:
        super().__init__(options, info, outcomes)
        self._outcome = outcomes[info.run_id]

    def evict(self) -> None:
        history, executor = getattr(self, "history", None), getattr(self, "executor", None)
        if history is not None and history.events and executor is not None:
            self._outcome.place = suspended_place(executor)
            try:
                self._outcome.state = self.observed(
                    events=(),
                    human_tasks=[HumanTaskChange(changes=(), task=task) for task in history.human_tasks.values()],
                )
            except Exception as exc:  # noqa: BLE001 - the SDK would try the same again and again
                log.error("the rows of %s cannot be rebuilt: %s", self._info.workflow_id, error_line(exc))
        super().evict()


class _ReplayRunner(MirroredRunner):
    def __init__(self, options: HostOptions, outcomes: _Outcomes) -> None:
        super().__init__(options, SandboxedWorkflowRunner(), outcomes)
        self._outcomes = outcomes

    def new_run(self, det: WorkflowInstanceDetails) -> TemporalRun:
        return _ReplayOnlyRun(self.options, det.info, self._outcomes)


class _ReplayPlugin(MirroredPlugin):
    def __init__(self, outcomes: _Outcomes, run_code: CodeRunner) -> None:
        self._outcomes = outcomes
        super().__init__(
            outcomes,
            codec=codec(),
            queue_name=task_queue,
            workflow_id=cluster_id_of,
            unexpected_error=get_settings().UNEXPECTED_ERROR,
            run_code=run_code,
        )

    def _make_runner(self, other: WorkflowRunner | None) -> WorkflowRunner:
        del other
        return _ReplayRunner(self.options, self._outcomes)


async def replay(
    client: Client, executions: Sequence[Execution], *, run_code: CodeRunner = call
) -> dict[str, ReplayedRun]:
    """Replay these runs from their histories on the cluster, and return the outcomes by their run ids.

    Runs that the cluster does not know any more are left out. One history is in memory at a time. ``run_code`` calls
    the code of the runs, and may interrupt it. Raises ``RPCError`` if the cluster refuses to give a history.
    """
    outcomes = _Outcomes()
    replayer = Replayer(workflows=[], plugins=[_ReplayPlugin(outcomes, run_code)], namespace=client.namespace)
    async with replayer.workflow_replay_iterator(_histories(client, executions)) as results:
        async for result in results:
            outcome = outcomes[result.history.run_id]
            if result.replay_failure is not None and outcome.error is None:
                outcome.error = _mismatch(str(result.replay_failure), outcome.place)
    return dict(outcomes)


def _mismatch(message: str, place: str | None) -> NondeterminismError:
    """Return the error for a run whose commands the SDK has compared with the history; it names the event in a text."""
    event = _EVENT.search(message)
    return NondeterminismError(message, place=place, event=int(event[1]) if event else None)


def replay_runs(runs: Sequence[tuple[str, str]], *, run_code: CodeRunner) -> dict[str, ReplayedRun]:
    """Replay runs, each named by its id and its run id on the cluster; see ``replay``.

    Raises ``UpdateTimeout`` if the cluster does not answer, and ``ActionNotPossible`` if it refuses.
    """
    executions = [Execution(cluster_id=cluster_id, run_id=run_id, queue="") for cluster_id, run_id in runs]
    with report_unavailable("replay"):
        return cluster_client().call(partial(replay, executions=executions, run_code=run_code), timeout=None)


async def rebuild(client: Client, executions: Sequence[Execution]) -> list[ObservedRun]:
    """Replay these runs from their histories on the cluster, and return them in the order of ``executions``.

    Runs that the cluster does not know any more are left out. Runs that cannot be replayed are logged and left out,
    too.
    """
    outcomes = await replay(client, executions)
    rebuilt = []
    for execution in executions:
        outcome = outcomes.get(execution.run_id, ReplayedRun())
        if outcome.error is not None:
            log.error("the rows of %s cannot be rebuilt: %s", execution.cluster_id, error_line(outcome.error))
        elif outcome.state is not None:
            rebuilt.append(replace(outcome.state, queue=execution.queue))  # a replay knows no task queue
    return rebuilt


async def _histories(client: Client, executions: Sequence[Execution]) -> AsyncIterator[WorkflowHistory]:
    for execution in executions:
        handle = client.get_workflow_handle(execution.cluster_id, run_id=execution.run_id)
        try:
            yield await handle.fetch_history()
        except RPCError as exc:
            if not is_gone(exc):
                raise
