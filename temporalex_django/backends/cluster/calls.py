"""Requests to the cluster in its own protocol, which carry the ids and headers that the SDK's client does not offer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from temporalio.api.common.v1 import Header, Memo, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import (
    UpdateWorkflowExecutionLifecycleStage,
    WorkflowIdConflictPolicy,
    WorkflowIdReusePolicy,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice import v1 as service

from temporalex_django.backends.cluster import names as own_names
from temporalex_django.backends.cluster.client import ClusterClient
from temporalex_django.backends.cluster.runs import ClusterRun
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.temporal import names

R = TypeVar("R", bound=Message)

#: A request about an update waits until the run has answered it.
WAIT_POLICY: Final = WaitPolicy(
    lifecycle_stage=UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
)


def execution(run: ClusterRun, *, run_id: str | None = None) -> WorkflowExecution:
    """Return the address of a run for requests: the run ``run_id``, or the newest run with its cluster id for None."""
    return WorkflowExecution(workflow_id=run.cluster_id, run_id=run_id or "")


def make_request(kind: type[R], run: ClusterRun, *, run_id: str | None = None, **fields: Any) -> R:
    """Return a request of the class ``kind`` about a run: ``fields``, and what the class has of the common fields.

    The common fields are the address of the run, and the first run of its chain. ``run_id`` selects the run by its id
    on the cluster; None means the newest run with its cluster id.
    """
    address = execution(run, run_id=run_id)
    common = {
        "execution": address,
        "workflow_execution": address,
        "workflow_id": address.workflow_id,
        "run_id": address.run_id,
        "first_execution_run_id": run.first_run_id or "",
    }
    return kind(**{name: common[name] for name in common.keys() & kind.DESCRIPTOR.fields_by_name.keys()}, **fields)


def payloads_of(client: ClusterClient, *values: Any) -> Payloads:
    """Return the encoded ``values`` as arguments."""
    return Payloads(payloads=[client.payloads.encode(value) for value in values])


def _header(client: ClusterClient, message: Mapping[str, Any], **values: Any) -> Header:
    """Return the header of a message, with further ``values``. Values that are None are left out."""
    values |= {names.SENDER: message["sender"], names.HEADERS: message["headers"]}
    return Header(fields={name: client.payloads.encode(value) for name, value in values.items() if value is not None})


def start_request(
    client: ClusterClient,
    run: ClusterRun,
    *,
    row_id: str,
    queue: str,
    args: Any,
    facts: Mapping[str, Any],
    execution_timeout: float | None,
    run_timeout: float | None,
) -> service.StartWorkflowExecutionRequest:
    """Return the request that starts a run. It takes effect once: ``row_id`` is its id for the server."""
    request = make_request(
        service.StartWorkflowExecutionRequest,
        run,
        workflow_type=WorkflowType(name=run.workflow),
        task_queue=TaskQueue(name=queue),
        input=payloads_of(client, args, dict(facts)),
        request_id=row_id,
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        memo=Memo(fields={own_names.STARTED_BY: client.payloads.encode(str(run.chain_id))}),
    )
    if execution_timeout is not None:
        request.workflow_execution_timeout.FromTimedelta(timedelta(seconds=execution_timeout))
    if run_timeout is not None:
        request.workflow_run_timeout.FromTimedelta(timedelta(seconds=run_timeout))
    return request


def message_body(
    payload: Any, *, message_id: str | None = None, sender: Sender | None = None, headers: Headers | None = None
) -> dict[str, Any]:
    """Return a message as plain data: the body of its row in the outbox, from which its request is made."""
    return {"payload": payload, "id": message_id, "sender": sender and sender.as_dict(), "headers": headers}


def signal_request(
    client: ClusterClient, run: ClusterRun, name: str, message: Mapping[str, Any], *, request_id: str
) -> service.SignalWorkflowExecutionRequest:
    """Return the request that sends a signal to the newest run of a chain. Runs of another chain drop it.

    ``message`` is made by ``message_body``.
    """
    ids = {own_names.CHAIN: run.first_run_id, names.MESSAGE_ID: message["id"]}
    return make_request(
        service.SignalWorkflowExecutionRequest,
        run,
        signal_name=name,
        input=payloads_of(client, message["payload"]),
        request_id=request_id,
        header=_header(client, message, **ids),
    )


def update_request(
    client: ClusterClient, run: ClusterRun, name: str, message: Mapping[str, Any]
) -> service.UpdateWorkflowExecutionRequest:
    """Return the request that sends an update to the newest run of a chain, and waits for its outcome.

    ``message`` is made by ``message_body``.
    """
    update = Request(
        meta=Meta(update_id=message["id"], identity=client.identity),
        input=Input(name=name, args=payloads_of(client, message["payload"]), header=_header(client, message)),
    )
    return make_request(service.UpdateWorkflowExecutionRequest, run, wait_policy=WAIT_POLICY, request=update)
