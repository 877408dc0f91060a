"""Failures on a cluster, with the attributes of our events, and back through the chain of causes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

from temporalio.api.enums.v1 import RetryState, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.workflow_completion import Failure as Failed

from temporalex_django.core.failures import child_result, describe, error_line, is_about_code
from temporalex_django.core.history.activation import Fault
from temporalex_django.core.history.events import Job
from temporalex_django.errors import NondeterminismError
from temporalex_django.temporal.payloads import Payloads

logger = logging.getLogger("temporalex_django.temporal")

_SOURCE: Final = "temporalex_django"
#: Key of the attributes in the details of a failure.
_ATTRIBUTES: Final = "temporalex"
_TIMEOUTS: Final = {
    TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE: "start_to_close",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START: "schedule_to_start",
    TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE: "schedule_to_close",
    TimeoutType.TIMEOUT_TYPE_HEARTBEAT: "heartbeat",
}


def failure_details(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a failure of the SDK: the attributes of the event or error that it stands for."""
    return {_ATTRIBUTES: dict(attributes)}


def write_failure(attributes: Mapping[str, Any], payloads: Payloads) -> Failure:
    """Return the failure of the SDK that stands for an event or error with these attributes.

    An example is the event ``WorkflowFailed``.
    """
    failure = Failure(message=str(attributes.get("message") or attributes.get("reason") or ""), source=_SOURCE)
    failure.stack_trace = attributes.get("traceback") or ""
    info = failure.application_failure_info
    info.type = attributes.get("type") or "Err"
    info.non_retryable = True
    info.details.payloads.append(payloads.encode(failure_details(attributes)))
    return failure


def task_failure(error: BaseException, *, message: str | None = None) -> Failed:
    """Return the failure of a workflow task, after which the run stays as it is and the server tries the task again.

    ``message`` replaces the message of the error, which may quote a payload: the server's history shows it.
    """
    described = describe(error)
    failure = Failure(message=described["message"] if message is None else message, source=_SOURCE)
    failure.application_failure_info.type = described["type"]
    failed = Failed(failure=failure)
    if isinstance(error, NondeterminismError):
        failed.force_cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
    return failed


def fault_data(fault: Fault) -> dict[str, Any]:
    """Return the error for the sender of an update whose validator raised because of a bug, and log it."""
    failure, reference = describe(fault.error), uuid4().hex[:12]
    label = f"the validator of the update {fault.name!r} failed"
    logger.error("%s (reference %s): %s", label, reference, error_line(fault.error))
    if is_about_code(fault.error):
        label += f" ({failure['type']}: {failure['message']})"
    message = f"{label}; see the log entry with the reference {reference}"
    cause = {"type": failure["type"], "cause": failure["message"]}
    return {"code": "update_failed", "message": message, "reference": reference, **cause}


def read_failure(failure: Failure, payloads: Payloads) -> dict[str, Any]:
    """Return the attributes from which ``write_failure`` made this failure, or such attributes for another failure.

    A failure of another program gets the attributes ``type``, ``message`` and perhaps ``details``.
    """
    for part in _causes(failure):
        if part.HasField("application_failure_info"):
            info = part.application_failure_info
            details = [*map(payloads.decode, info.details.payloads)]
            if details and isinstance(details[0], dict) and _ATTRIBUTES in details[0]:
                return dict(details[0][_ATTRIBUTES])
            foreign: dict[str, Any] = {"type": info.type or "ApplicationError", "message": part.message}
            if details:
                foreign["details"] = details[0] if len(details) == 1 else details
            return foreign
    last = [*_causes(failure)][-1]
    return {"type": last.WhichOneof("failure_info") or "Failure", "message": last.message}


def activity_job(seq: int, failure: Failure, options: Mapping[str, Any], payloads: Payloads) -> Job:
    """Return the job that delivers the failure of an activity to the run; ``seq`` is the number of its command.

    ``options`` are the options in that command, such as its timeouts.
    """
    parts = [*_causes(failure)]
    timeout = next((part for part in parts if part.HasField("timeout_failure_info")), None)
    if timeout is None:
        attributes = {"attempts": 1, "timeout": None, **read_failure(failure, payloads)}
        return Job("ActivityFailed", {"seq": seq, **attributes})
    name = _TIMEOUTS.get(timeout.timeout_failure_info.timeout_type, "start_to_close")
    earlier = parts[parts.index(timeout) + 1 :]
    attempts = read_failure(earlier[0], payloads).get("attempts", 0) + 1 if earlier else 1
    if name == "schedule_to_close" and earlier and attempts > 1:
        attempts -= 1  # no further attempt had begun
    if name == "heartbeat" and options.get("heartbeat") is None:
        # The wrapper sends heartbeats by itself, so without them its worker is gone.
        lost = {"type": "WorkerLost", "message": "its worker was lost; it is not known whether it took effect"}
        return Job("ActivityFailed", {"seq": seq, **lost, "attempts": attempts, "timeout": None})
    limit = options.get(name)
    message = f"the {name} timeout expired" if limit is None else f"the {name} timeout of {limit:g} s expired"
    timed_out = {"type": "TimeoutError", "message": message, "attempts": attempts, "timeout": name}
    return Job("ActivityTimedOut", {"seq": seq, **timed_out})


def child_job(seq: int, failure: Failure, payloads: Payloads) -> Job:
    """Return the job that tells a run that its child closed without a result; ``seq`` is the number of its command."""
    status, closing = "failed", dict[str, Any]()
    for part in _causes(failure):
        if part.HasField("terminated_failure_info"):
            status, closing = "terminated", {"reason": part.message if part.message != "terminated" else ""}
        elif part.HasField("canceled_failure_info"):
            status = "cancelled"
        elif part.HasField("timeout_failure_info"):
            status, closing = "timed_out", {"timeout": "execution_timeout"}
        elif part.HasField("application_failure_info"):
            closing = read_failure(part, payloads)
        elif part.child_workflow_execution_failure_info.retry_state == RetryState.RETRY_STATE_TIMEOUT:
            status, closing = "timed_out", {"timeout": "execution_timeout"}
        else:
            continue
        break
    kind, attributes = child_result(status, closing)
    return Job(kind, {"seq": seq, **attributes})


def _causes(failure: Failure) -> Iterator[Failure]:
    """Yield the failure and its causes, outermost first."""
    yield failure
    while failure.HasField("cause"):
        failure = failure.cause
        yield failure
