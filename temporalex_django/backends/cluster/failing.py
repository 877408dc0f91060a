"""Runs on the cluster whose workflow task fails: the error in the server's history, as the mark of a blocked run."""

from __future__ import annotations

from datetime import UTC
from traceback import extract_tb
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.workflow.v1 import PendingWorkflowTaskInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.service import RPCError

from temporalex_django import errors
from temporalex_django.backends.cluster import calls
from temporalex_django.backends.cluster.answers import report_unavailable
from temporalex_django.backends.cluster.client import ClusterUnavailable, cluster_client
from temporalex_django.backends.cluster.pending import LOOK_SECONDS, describe_run
from temporalex_django.backends.cluster.runs import ClusterRun
from temporalex_django.core.failures import failure_cause, traceback_of
from temporalex_django.engine.blocked import block_mark
from temporalex_django.engine.contracts.records import BlockMark
from temporalex_django.temporal.failures import read_failure
from temporalex_django.temporal.payloads import Payloads

#: Causes of failed tasks that say nothing about the code of the run.
_HARMLESS: Final = frozenset(
    {
        *("unhandled_command", "unhandled_update", "reset_sticky_task_queue", "reset_workflow"),
        *("force_close_command", "failover_close_command", "workflow_pause_requested_before_task_started"),
    }
)
#: Errors with which a worker makes the server wait: the class is switched off, or the database is busy.
_WAITS: Final = frozenset({"WorkflowSwitchedOff", "MirrorBusy", "DatabaseBusy"})
_CODES: Final = {
    name: cls.code
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.TemporalexError)
}
#: Most events that are read to find the failed task. It is among the last ones, unless many messages follow it.
_MAX_EVENTS: Final = 200
#: Seconds for the question of a worker, which the SDK ends after 2.
_TASK_SECONDS: Final = 1.0
#: Most frames of a traceback that a failed task keeps.
_MAX_FRAMES: Final = 30


def block_of(run: ClusterRun) -> BlockMark | None:
    """Return why the workflow task of a run fails, by the history of the server; None if it does not.

    It takes one question to the server, and another one for a run whose task has failed. Raises ``UpdateTimeout`` if
    the server does not answer in time, and ``HistoryGone``.
    """
    label = f"state of {run.label}"
    task = describe_run(run, label=label, timeout=LOOK_SECONDS).pending_workflow_task
    if task.attempt < 2:
        return None
    client, kind = cluster_client(), service.GetWorkflowExecutionHistoryReverseRequest
    request = calls.make_request(kind, run, run_id=run.run_id, maximum_page_size=_MAX_EVENTS)
    with report_unavailable(label, reads=True):
        answer = client.ask(request, timeout=LOOK_SECONDS)
    for event in answer.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            return None
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            return block_mark_of(event, task, client.payloads)
    return None


def has_task(cluster_id: str, run_id: str) -> bool:
    """Return False if the server has no workflow task of a run that could fail. Returns True if it does not answer."""
    request = service.DescribeWorkflowExecutionRequest(
        execution=WorkflowExecution(workflow_id=cluster_id, run_id=run_id)
    )
    try:
        return bool(cluster_client().ask(request, timeout=_TASK_SECONDS).HasField("pending_workflow_task"))
    except (ClusterUnavailable, RPCError):
        return True


def places_of(error: BaseException) -> str:
    """Return the places in the traceback of an error, which quote nothing: the server's history shows them."""
    return "".join(
        f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n'
        for frame in extract_tb(traceback_of(error))[-_MAX_FRAMES:]
    )


def block_mark_of(event: Any, task: PendingWorkflowTaskInfo, payloads: Payloads) -> BlockMark | None:
    """Return the mark of a run whose task has failed, from the server's ``event`` and the next try of the task.

    The server records the first failure in a row. It counts the others in the attempts of ``task``.
    """
    failed = event.workflow_task_failed_event_attributes
    # The server, or an SDK, may have failed the task by itself.
    cause = WorkflowTaskFailedCause.Name(failed.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_").lower()
    kind = failed.failure.application_failure_info.type
    if not kind and cause == "non_deterministic_error":
        kind = errors.NondeterminismError.__name__
    kind = kind or "WorkflowTaskFailed"
    if cause in _HARMLESS or kind in _WAITS:
        return None
    message = read_failure(failed.failure, payloads).get("message") or cause.replace("_", " ")
    since = event.event_time.ToDatetime(UTC)
    last = max(since, (task.started_time if task.HasField("started_time") else task.scheduled_time).ToDatetime(UTC))
    mark = block_mark(_CODES.get(kind, kind), f"{kind}: {message}", tries=task.attempt - 1, now=last)
    mark["since"] = since.isoformat()
    if place := failure_cause(kind, failed.failure.stack_trace).partition(" at ")[2]:
        mark["place"] = place
    return mark
