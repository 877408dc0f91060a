"""The plugin with which clients, workers and replayers of the SDK run the workflows of this package."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from datetime import timedelta
from typing import Final

from temporalio import workflow as sdk
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from temporalex_django.core.messages.sender import Judge
from temporalex_django.core.payloads.codec import PayloadCodec
from temporalex_django.temporal import compatibility
from temporalex_django.temporal.activities import ActivityRunner, HeaderInterceptor
from temporalex_django.temporal.options import CodeRunner, HostOptions, call
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.temporal.run import TemporalRun
from temporalex_django.temporal.runner import AnyWorkflow, TemporalRunner

compatibility.check()

#: Without its worker a run is answered by another one after this time. The default of the SDK is 10 seconds.
STICKY_TIMEOUT: Final = timedelta(seconds=2)


class TemporalexPlugin(SimplePlugin):
    """The plugin for ``Client.connect(..., plugins=[...])``; workers take it from their client. Replayers need it, too.

    - ``codec`` writes payloads, as the setting ``PAYLOAD_CODEC`` does.
    - ``judge(key, permission, message)`` returns True if the user with this key has the permission. Without it, a
      message in the name of a person may do nothing that needs a permission.
    - ``queue_name(queue)`` returns the task queue of the cluster for a queue of this package.
    - ``workflow_id(id)`` returns the id of the cluster for a business id.
    - ``unexpected_error`` is the setting of that name.
    - ``run_code(function)`` calls workflow code, and may interrupt it (``options.CodeRunner``).
    - ``executor`` has the threads of activities that are plain functions.
    """

    def __init__(
        self,
        *,
        codec: PayloadCodec | None = None,
        judge: Judge | None = None,
        queue_name: Callable[[str], str] = str,
        workflow_id: Callable[[str], str] = str,
        unexpected_error: str = "fail",
        run_code: CodeRunner = call,
        executor: Executor | None = None,
    ) -> None:
        payloads = Payloads(codec)
        options = HostOptions(
            payloads=payloads,
            judge=judge,
            queue_name=queue_name,
            workflow_id=workflow_id,
            unexpected_error=unexpected_error,
            run_code=run_code,
        )
        self.options = options
        super().__init__(
            "temporalex_django",
            data_converter=payloads.data_converter,
            interceptors=[HeaderInterceptor()],
            activities=[ActivityRunner(options, executor).definition()],
            workflows=[AnyWorkflow],
            workflow_runner=self._make_runner,
        )

    def _make_runner(self, other: WorkflowRunner | None) -> WorkflowRunner:
        return TemporalRunner(self.new_run, other or SandboxedWorkflowRunner())

    def new_run(self, info: sdk.Info) -> TemporalRun:
        """Return the run (workflow instance) of this package for the information ``info`` that the SDK has about it."""
        return TemporalRun(self.options, info)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Return the configuration of a worker with the parts of this package."""
        config = super().configure_worker(config)
        config["sticky_queue_schedule_to_start_timeout"] = STICKY_TIMEOUT
        return config
