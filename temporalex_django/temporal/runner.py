"""The workflow runner of the SDK for the runs of this package; other workflows are left to another runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import workflow as sdk
from temporalio.common import RawValue
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner


@sdk.defn(dynamic=True)
class AnyWorkflow:
    """The placeholder under which a worker of the SDK takes the runs of every class of this package."""

    @sdk.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Do nothing: the runner never calls it."""


class TemporalRunner(WorkflowRunner):
    """Creates the workflow instances of runs. The runner ``other`` creates those of workflows written with the SDK.

    ``new_run`` returns the run (workflow instance) of this package for the information that the SDK has about it.
    """

    def __init__(self, new_run: Callable[[sdk.Info], WorkflowInstance], other: WorkflowRunner) -> None:
        self._new_run = new_run
        self._other = other

    def prepare_workflow(self, defn: Any) -> None:
        if defn.cls is not AnyWorkflow:
            self._other.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        if det.defn.cls is not AnyWorkflow:
            return self._other.create_instance(det)
        return self._new_run(det.info)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        self._other.set_worker_level_failure_exception_types(types)
