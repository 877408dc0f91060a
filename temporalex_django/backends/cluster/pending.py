"""The open activities of a run on the cluster, as rows of the tables for display."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice import v1 as service

from temporalex_django.backends.cluster import calls
from temporalex_django.backends.cluster.answers import report_unavailable
from temporalex_django.backends.cluster.client import CALL_SECONDS, cluster_client
from temporalex_django.backends.cluster.ids import identity_of, queue_of
from temporalex_django.backends.cluster.names import DELIVERY
from temporalex_django.backends.cluster.runs import ClusterRun, run_of
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.conf import codec
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models import ActivityTask, Worker
from temporalex_django.temporal.failures import read_failure
from temporalex_django.temporal.payloads import Payloads

#: Seconds in which the server has to answer: somebody waits for a page.
LOOK_SECONDS: Final = 2.0
_WAITING: Final = frozenset(
    {PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED, PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED}
)


def describe_run(
    run: ClusterRun, *, label: str, timeout: float | None = CALL_SECONDS
) -> service.DescribeWorkflowExecutionResponse:
    """Return a run as the cluster describes it; ``label`` names the call in errors.

    ``timeout`` is in seconds. Raises ``UpdateTimeout`` if the cluster does not answer, ``HistoryGone`` if it no longer
    has the run, and ``ActionNotPossible`` if it refuses.
    """
    request = calls.make_request(service.DescribeWorkflowExecutionRequest, run, run_id=run.run_id)
    with report_unavailable(label, reads=True):
        answer: service.DescribeWorkflowExecutionResponse = cluster_client().ask(request, timeout=timeout)
    return answer


def open_tasks(target: RunTarget, *, limit: int, storage: DjangoStorage) -> list[ActivityTask]:
    """Return the first ``limit`` activities of the selected run without a result, by number, as unsaved rows.

    The rows have no arguments, because the cluster does not report them. Raises ``UpdateTimeout`` if it does not answer
    within ``LOOK_SECONDS``.
    """
    run = run_of(target, storage=storage)
    if run.run_id is None:
        return []
    described = describe_run(run, label=f"activities of {run.label}", timeout=LOOK_SECONDS)
    infos = described.pending_activities
    own = [info for info in infos if info.activity_id.isdecimal() and info.activity_type.name != DELIVERY]
    own = sorted(own, key=lambda info: int(info.activity_id))[:limit]
    owners, payloads = _owners(own, alias=storage.alias), cluster_client().payloads
    return [_row(info, target, owners, payloads) for info in own]


def _owners(infos: list[PendingActivityInfo], *, alias: str) -> dict[str, int]:
    """Return the epochs of the workers that run these activities, by their identities. At most one read."""
    if all(info.state in _WAITING for info in infos):
        return {}
    return {identity_of(pk): epoch for pk, epoch in Worker.objects.using(alias).values_list("pk", "epoch")}


def _row(info: PendingActivityInfo, target: RunTarget, owners: dict[str, int], payloads: Payloads) -> ActivityTask:
    is_waiting = info.state in _WAITING
    scheduled_at = _time(info, "scheduled_time") or _time(info, "last_started_time") or datetime.now(UTC)
    row = ActivityTask(
        chain_id=target.chain_id,
        run_id=target.selected_run_id,
        workflow_id=target.workflow_id,
        workflow=target.workflow,
        seq=int(info.activity_id),
        activity=info.activity_type.name,
        queue=queue_of(info.activity_options.task_queue.name),
        run_queue=target.queue,
        # The server counts the attempt that comes next; a row has the last one.
        attempt=info.attempt - 1 if is_waiting else info.attempt,
        atomic=False,  # a worker takes it, as any other
        max_attempts=info.maximum_attempts,
        scheduled_at=scheduled_at,
        due_at=_time(info, "next_attempt_schedule_time") or scheduled_at,
        owner=None if is_waiting else owners.get(info.last_worker_identity, 0),
        started_at=None if is_waiting else _time(info, "last_started_time"),
        beat_at=_time(info, "last_heartbeat_time"),
        expires_at=_time(info, "expiration_time"),
    )
    if info.heartbeat_details.payloads:
        row.heartbeat = info.heartbeat_details.payloads[0].data
    if info.HasField("last_failure"):
        row.failure = codec().encode(_failure_data(info.last_failure, payloads))
        row.failed_at = _time(info, "last_attempt_complete_time") or scheduled_at
        row.failed_attempt = max(1, info.attempt - 1)
    return row


def _time(info: PendingActivityInfo, name: str) -> datetime | None:
    return getattr(info, name).ToDatetime(UTC) if info.HasField(name) else None  # type: ignore[arg-type] # a name of a field


def _failure_data(failure: Failure, payloads: Payloads) -> dict[str, Any]:
    """Return the failure of an attempt as its row has it. The innermost cause has the traceback of the code."""
    try:
        attributes = read_failure(failure, payloads)
    except (PayloadError, KeyMissing, ValueError) as exc:
        attributes = {"type": type(exc).__name__, "message": "the details of the failure cannot be read here"}
    traceback = failure.stack_trace
    while failure.HasField("cause"):
        failure = failure.cause
        traceback = failure.stack_trace or traceback
    data = {"type": attributes.get("type") or "Failure", "message": attributes.get("message") or ""}
    if attributes.get("details") is not None:
        data["details"] = attributes["details"]
    return {**data, "traceback": traceback or None}
