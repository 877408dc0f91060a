"""The workflow runner of the SDK for the runs of this package; other workflows are left to another runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow as sdk
from temporalio.common import RawValue
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.run import TemporalRun


@sdk.defn(dynamic=True)
class AnyWorkflow:
    """The placeholder under which a worker of the SDK takes the runs of every class of this package."""

    @sdk.run
    async def run(self, args: Sequence[RawValue]) -> None:
        """Do nothing: the runner never calls it."""


class TemporalRunner(WorkflowRunner):
    """Creates the workflow instances of runs. The runner ``other`` creates those of workflows written with the SDK."""

    def __init__(self, options: HostOptions, other: WorkflowRunner) -> None:
        self.options = options
        self._other = other

    def prepare_workflow(self, defn: Any) -> None:
        if defn.cls is not AnyWorkflow:
            self._other.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        if det.defn.cls is not AnyWorkflow:
            return self._other.create_instance(det)
        return self.new_run(det)

    def new_run(self, det: WorkflowInstanceDetails) -> TemporalRun:
        """Return the run (workflow instance) of this package for the details ``det`` that the SDK passes."""
        return TemporalRun(self.options, det.info)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        self._other.set_worker_level_failure_exception_types(types)
