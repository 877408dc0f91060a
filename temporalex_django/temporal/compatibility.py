"""The check that the installed SDK is one that this adapter was written for.

The adapter uses parts of the SDK that are not public. So each version of it is compared with what is implemented here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.worker import WorkflowInstance, WorkflowRunner

from temporalex_django.temporal.activation import ActivationReader

#: Versions of the SDK with which the tests of this adapter pass.
VERSIONS: Final = "temporalio 1.35"
_RUNNER: Final = frozenset({"prepare_workflow", "create_instance"})
_INSTANCE: Final = frozenset({"activate", "get_serialization_context", "get_external_store_context", "get_info"})
#: Jobs that the adapter does not read: a removal from the cache is no job for a run, and no run calls Nexus.
_OTHER_JOBS: Final = frozenset({"remove_from_cache", "resolve_nexus_operation_start", "resolve_nexus_operation"})
#: Fields of commands that the adapter sets, by command.
_FIELDS: Final = {
    "start_timer": {"seq", "start_to_fire_timeout"},
    "cancel_timer": {"seq"},
    "schedule_activity": {
        "seq", "activity_id", "activity_type", "task_queue", "headers", "arguments", "schedule_to_close_timeout",
        "schedule_to_start_timeout", "start_to_close_timeout", "heartbeat_timeout", "retry_policy",
        "cancellation_type",
    },
    "request_cancel_activity": {"seq"},
    "start_child_workflow_execution": {
        "seq", "namespace", "workflow_id", "workflow_type", "task_queue", "input", "workflow_execution_timeout",
        "workflow_run_timeout", "parent_close_policy", "cancellation_type",
    },
    "cancel_child_workflow_execution": {"child_workflow_seq"},
    "signal_external_workflow_execution": {"seq", "workflow_execution", "signal_name", "args"},
    "request_cancel_external_workflow_execution": {"seq", "workflow_execution"},
    "set_patch_marker": {"patch_id", "deprecated"},
    "update_response": {"protocol_instance_id", "accepted", "rejected", "completed"},
    "respond_to_query": {"query_id", "succeeded", "failed"},
    "complete_workflow_execution": {"result"},
    "fail_workflow_execution": {"failure"},
    "cancel_workflow_execution": set[str](),
    "continue_as_new_workflow_execution": {"workflow_type", "task_queue", "arguments"},
}  # fmt: skip


class UnsupportedSdk(ImportError):
    """Raised when the adapter is imported with a version of the SDK that it is not compatible with."""


def check() -> None:
    """Raise ``UnsupportedSdk`` if the installed SDK differs from what the adapter implements. It names what differs."""
    differences = [*_differences(WorkflowRunner, WorkflowInstance, WorkflowActivationJob, WorkflowCommand)]
    if differences:
        raise UnsupportedSdk(
            f"temporalex_django.temporal is not compatible with temporalio {version('temporalio')}: "
            f"{'; '.join(differences)}. "
            f"Install a compatible version: {VERSIONS}"
        )


def _differences(runner: Any, instance: Any, job: Any, command: Any) -> Iterator[str]:
    """Yield a sentence for each difference between classes of the SDK and what is implemented here."""
    for cls, implemented in ((runner, _RUNNER), (instance, _INSTANCE)):
        yield from _compare(f"abstract method of {cls.__name__}", cls.__abstractmethods__, implemented)
    variants = {field.name for field in job.DESCRIPTOR.oneofs_by_name["variant"].fields}
    yield from _compare("job", variants, ActivationReader.readers.keys() | _OTHER_JOBS)
    fields = {field.name: field.message_type for field in command.DESCRIPTOR.oneofs_by_name["variant"].fields}
    for name, used in _FIELDS.items():
        if name not in fields:
            yield f"the command {name!r} does not exist"
        elif missing := used - set(fields[name].fields_by_name):
            yield f"the command {name!r} lacks {', '.join(sorted(missing))}"


def _compare(kind: str, present: Iterable[str], implemented: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each name that only ``present`` (the SDK) or only ``implemented`` (this adapter) has."""
    for name in sorted(set(present) - set(implemented)):
        yield f"the {kind} {name!r} is new"
    for name in sorted(set(implemented) - set(present)):
        yield f"the {kind} {name!r} does not exist"
