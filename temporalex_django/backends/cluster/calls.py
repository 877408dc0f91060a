"""Requests to the cluster in its own protocol, which carry the ids and headers that the SDK's client does not offer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import Header, Memo, Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import (
    QueryRejectCondition,
    UpdateWorkflowExecutionLifecycleStage,
    WorkflowIdConflictPolicy,
    WorkflowIdReusePolicy,
)
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, UpdateRef, WaitPolicy
from temporalio.api.workflowservice import v1 as service

from temporalex_django.backends.cluster import names as own_names
from temporalex_django.backends.cluster.client import ClusterClient
from temporalex_django.backends.cluster.runs import ClusterRun
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.temporal import names

_COMPLETED = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


def execution(run: ClusterRun, *, run_id: str | None = None) -> WorkflowExecution:
    """Return the address of a run for requests: the run ``run_id``, or the newest run with its cluster id for None."""
    return WorkflowExecution(workflow_id=run.cluster_id, run_id=run_id or "")


def headers(client: ClusterClient, **values: Any) -> Header:
    """Return a ``Header`` with the encoded ``values`` that are not None. Their names are in ``temporal.names``."""
    fields: Mapping[str, Payload] = {
        name: client.payloads.encode(value) for name, value in values.items() if value is not None
    }
    return Header(fields=fields)


def start_request(
    client: ClusterClient,
    *,
    cluster_id: str,
    chain_id: str,
    row_id: str,
    workflow: str,
    queue: str,
    args: Any,
    facts: Mapping[str, Any],
    execution_timeout: float | None,
    run_timeout: float | None,
) -> service.StartWorkflowExecutionRequest:
    """Return the request that starts a run. It takes effect once: ``row_id`` is its id for the server."""
    request = service.StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=cluster_id,
        workflow_type=WorkflowType(name=workflow),
        task_queue=TaskQueue(name=queue),
        input=Payloads(payloads=[client.payloads.encode(args), client.payloads.encode(dict(facts))]),
        identity=client.identity,
        request_id=row_id,
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        memo=Memo(fields={own_names.STARTED_BY: client.payloads.encode(chain_id)}),
    )
    if execution_timeout is not None:
        request.workflow_execution_timeout.FromTimedelta(timedelta(seconds=execution_timeout))
    if run_timeout is not None:
        request.workflow_run_timeout.FromTimedelta(timedelta(seconds=run_timeout))
    return request


def signal_request(
    client: ClusterClient,
    run: ClusterRun,
    *,
    name: str,
    payload: Any,
    request_id: str,
    message_id: str | None = None,
    sender: Any = None,
    message_headers: Headers | None = None,
) -> service.SignalWorkflowExecutionRequest:
    """Return the request that sends a signal to the newest run of a chain. Runs of another chain drop it."""
    return service.SignalWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=execution(run),
        signal_name=name,
        input=Payloads(payloads=[client.payloads.encode(payload)]),
        identity=client.identity,
        request_id=request_id,
        header=headers(
            client,
            **{
                own_names.CHAIN: run.first_run_id,
                names.MESSAGE_ID: message_id,
                names.SENDER: sender,
                names.HEADERS: message_headers,
            },
        ),
    )


def cancel_request(
    client: ClusterClient, run: ClusterRun, *, reason: str, request_id: str
) -> service.RequestCancelWorkflowExecutionRequest:
    """Return the request that asks the newest run of a chain to end."""
    return service.RequestCancelWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=execution(run),
        identity=client.identity,
        request_id=request_id,
        first_execution_run_id=run.first_run_id or "",
        reason=reason,
    )


def terminate_request(
    client: ClusterClient, run: ClusterRun, *, reason: str
) -> service.TerminateWorkflowExecutionRequest:
    """Return the request that ends the newest run of a chain at once."""
    return service.TerminateWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=execution(run),
        identity=client.identity,
        first_execution_run_id=run.first_run_id or "",
        reason=reason,
    )


def update_request(
    client: ClusterClient,
    run: ClusterRun,
    *,
    name: str,
    payload: Any,
    update_id: str,
    sender: Any = None,
    message_headers: Headers | None = None,
) -> service.UpdateWorkflowExecutionRequest:
    """Return the request that sends an update to the newest run of a chain, and waits for its outcome."""
    return service.UpdateWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=execution(run),
        first_execution_run_id=run.first_run_id or "",
        wait_policy=WaitPolicy(lifecycle_stage=_COMPLETED),
        request=Request(
            meta=Meta(update_id=update_id, identity=client.identity),
            input=Input(
                name=name,
                args=Payloads(payloads=[client.payloads.encode(payload)]),
                header=headers(client, **{names.SENDER: sender, names.HEADERS: message_headers}),
            ),
        ),
    )


def poll_request(client: ClusterClient, sent: UpdateRef) -> service.PollWorkflowExecutionUpdateRequest:
    """Return the request that waits for the outcome of an update that was sent before.

    ``sent`` is the address in the server's answer to it, which names the run that has taken it.
    """
    return service.PollWorkflowExecutionUpdateRequest(
        namespace=client.namespace,
        update_ref=sent,
        identity=client.identity,
        wait_policy=WaitPolicy(lifecycle_stage=_COMPLETED),
    )


def query_request(
    client: ClusterClient, run: ClusterRun, *, name: str, args: Any, run_id: str | None
) -> service.QueryWorkflowRequest:
    """Return the request that queries a run: the one with that id on the cluster, or the newest one."""
    return service.QueryWorkflowRequest(
        namespace=client.namespace,
        execution=execution(run, run_id=run_id),
        query=WorkflowQuery(
            query_type=name,
            query_args=Payloads(payloads=[] if args is None else [client.payloads.encode(args)]),
        ),
        query_reject_condition=QueryRejectCondition.QUERY_REJECT_CONDITION_NONE,
    )


def sender_data(sender: Sender | None) -> Any:
    """Return a sender as plain data for a header, or None for code."""
    return None if sender is None else sender.as_dict()
