"""Replays of runs on a cluster from their histories there: to write their rows anew, or to check new code."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer

from temporalex_django.backends.cluster.answers import is_gone, report_unavailable
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.mirrored_run import MirroredPlugin, MirroredRun, ObservedRun
from temporalex_django.core.failures import error_line
from temporalex_django.core.history.replay import suspended_place
from temporalex_django.core.human_tasks import HumanTaskChange
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal.options import CodeRunner, call

log = logging.getLogger("temporalex_django.backends")

#: The number of an event in the texts of the SDK about a mismatch.
_EVENT: Final = re.compile(r"HistoryEvent\(id: (\d+)")


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

    def note_failure(self, run_id: str, error: Exception) -> None:
        """Note the first error of a run; the SDK replays a run again that has failed."""
        self[run_id].error = self[run_id].error or error

    def leave(self, run: MirroredRun) -> None:
        """Note the outcome of a run."""
        history, executor = getattr(run, "history", None), getattr(run, "executor", None)
        if history is None or not history.events or executor is None:
            return
        outcome = self[run.get_info().run_id]
        outcome.place = suspended_place(executor)
        tasks = [HumanTaskChange(changes=(), task=task) for task in history.human_tasks.values()]
        try:
            outcome.state = run.observed((), tasks)
        except Exception as exc:  # noqa: BLE001 - the SDK would try the same again and again
            log.error("the rows of %s cannot be rebuilt: %s", run.get_info().workflow_id, error_line(exc))


async def replay(
    client: Client, executions: Sequence[WorkflowExecution], *, run_code: CodeRunner = call
) -> dict[str, ReplayedRun]:
    """Replay these runs from their histories on the cluster, and return the outcomes by their run ids.

    Runs that the cluster does not know any more are left out. One history is in memory at a time. ``run_code`` calls
    the code of the runs, and may interrupt it. Raises ``RPCError`` if the cluster refuses to give a history.
    """
    outcomes = _Outcomes()
    plugin = MirroredPlugin(outcomes, run_code=run_code)
    replayer = Replayer(workflows=[], plugins=[plugin], namespace=client.namespace)
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
    executions = [WorkflowExecution(workflow_id=cluster_id, run_id=run_id) for cluster_id, run_id in runs]
    with report_unavailable("replay"):
        return cluster_client().call(partial(replay, executions=executions, run_code=run_code), timeout=None)


async def _histories(client: Client, executions: Sequence[WorkflowExecution]) -> AsyncIterator[WorkflowHistory]:
    for execution in executions:
        handle = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id)
        try:
            yield await handle.fetch_history()
        except RPCError as exc:
            if not is_gone(exc):
                raise
