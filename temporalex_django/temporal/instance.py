"""The parts of a workflow instance of the SDK that say what the run is, and run nothing."""

from __future__ import annotations

from typing import Any

from temporalio import workflow as sdk
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo, WorkflowSerializationContext
from temporalio.worker import WorkflowInstance


class InstanceFacts(WorkflowInstance):
    """The base of a workflow instance of the SDK: it answers questions about the run from its ``info``.

    ``_thread_id`` is the thread that executes an activation, or executed the last one.
    """

    def __init__(self, info: sdk.Info) -> None:
        self._info = info
        self._thread_id: int | None = None

    def get_info(self) -> sdk.Info:
        return self._info

    def get_thread_id(self) -> int | None:
        """Return the id of the thread that executes the activation, or has executed the last one.

        The SDK interrupts code there that does not reach a wait. None: there was no activation yet.
        """
        return self._thread_id

    def get_serialization_context(self, command_info: Any) -> WorkflowSerializationContext:
        del command_info  # a payload codec of the SDK gets the same context for all payloads of the run
        return WorkflowSerializationContext(namespace=self._info.namespace, workflow_id=self._info.workflow_id)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        del command_info
        info = self._info
        target = StorageDriverWorkflowInfo(
            id=info.workflow_id, run_id=info.run_id, type=info.workflow_type, namespace=info.namespace
        )
        return StorageDriverStoreContext(target=target)
