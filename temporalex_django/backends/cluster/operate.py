"""Operations on runs on the cluster: the server does them, and the rows follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.utils.translation import gettext_lazy as _
from temporalio.api.common.v1 import Payloads as ApiPayloads
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState, ResetReapplyExcludeType, ResetReapplyType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.workflow import start_options
from temporalex_django.backends.cluster import calls, mirror, outgoing, pending, reads
from temporalex_django.backends.cluster import names as own_names
from temporalex_django.backends.cluster.answers import report_unavailable, report_unwritten
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.runs import ClusterRun, find_on_cluster, run_of
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import OperatorCall
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.payloads import codec
from temporalex_django.db.inserts import reopen_chain
from temporalex_django.db.retention import delete_chain
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import RunState
from temporalex_django.engine.operator_overrides import (
    DROP,
    REDELIVER,
    absent_timer_text,
    allows_overrides,
    pause_run,
    pending_timers,
)
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import ActionNotPossible, ActivityNotFound, TemporalexError
from temporalex_django.graph.durable_run import StepActivity
from temporalex_django.models import Chain, Instance
from temporalex_django.temporal import names

_PAUSE_SWITCH: Final = "frontend.WorkflowPauseEnabled"
#: Parts of the errors of the server for a run that is paused already, or is not paused.
_DONE_ALREADY: Final = ("already paused", "not paused")
_RUNNING: Final = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


def label_of(call: OperatorCall, name: str) -> str:
    """Return the text that names the operation ``name`` and its run in errors."""
    return f"{name} of {call.target.workflow} {call.target.workflow_id}"


def _begin(call: OperatorCall, name: str, *, newest: bool = False) -> ClusterRun:
    """Return where the selected run of a direct call is, or the newest one of its chain.

    Raises ``ActionNotPossible`` inside a transaction.
    """
    if inside_transaction(call.storage.alias):
        raise ActionNotPossible(
            f"{label_of(call, name)} inside a transaction: the run lives on a Temporal cluster, which would do it at "
            "once, even if the transaction is rolled back. Call it in transaction.on_commit()"
        )
    if newest:
        run = find_on_cluster(call.target.chain_id, storage=call.storage)
    else:
        run = run_of(call.target, storage=call.storage)
    if run.run_id is None:
        call.refuse(_("its start has not reached the Temporal cluster yet"), closed=False)
    return run


def _require_open(call: OperatorCall) -> None:
    if call.target.closed:
        call.refuse(_("the run is already closed"), closed=True)


def _require_readable(call: OperatorCall) -> None:
    """Refuse an operation that has to read the history of a paused run: the server does not let workers read it."""
    target = call.target
    if target.paused and target.selected_run_id == target.run_id:
        call.refuse(
            _("the run is paused, and a Temporal cluster does not let workers read it: unpause it first"), closed=False
        )


def _lock_run(chain_id: UUID, *, storage: DjangoStorage) -> RunState:
    """Lock the newest run of a chain, whose operation the cluster has done. Raises ``mirror.MirrorBusy`` after 5 s."""
    state = storage.lock_run(chain_id, wait=5.0)
    if state is None:
        raise mirror.MirrorBusy(f"the row of the chain {chain_id} is locked")
    return state


def _record(call: OperatorCall, **details: Any) -> None:
    with report_unwritten(label_of(call, "operation")), call.storage.transaction():
        call.record(call.target.audit_subject, reason=call.reason, **details)


# -- pause ------------------------------------------------------------------------------------------------------------


def pause(call: OperatorCall) -> None:
    """Pause the newest run of the chain on the cluster, then mark its row and write the audit row.

    Raises ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` for a paused run, inside a transaction, and
    if the cluster does not support pauses. Raises ``UpdateTimeout`` (code ``unknown``) if the cluster does not answer,
    or if the row cannot be stored.
    """
    run = _begin(call, "pause", newest=True)
    _require_open(call)
    if call.target.paused:
        call.refuse(_("the run is already paused"), closed=False)
    client = cluster_client()
    request = service.PauseWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=run.cluster_id,
        run_id=run.run_id or "",
        identity=client.identity,
        reason=call.reason,
        request_id=call.once_id,
    )
    is_late = not _call_pause(call, "pause", lambda sdk: sdk.workflow_service.pause_workflow_execution(request))
    with report_unwritten(label_of(call, "pause")), call.storage.transaction():
        state = _lock_run(run.chain_id, storage=call.storage)
        is_late = is_late and state.paused
        if not is_late:
            call.storage.write([pause_run(state, reason=call.reason, sender=call.by.sender, now=call.storage.now())])
            call.record(call.target.audit_subject, reason=call.reason)
    if is_late:
        call.refuse(_("the run is already paused"), closed=False)


def unpause(call: OperatorCall) -> None:
    """Unpause the newest run of the chain on the cluster, then clear the mark of its row and write the audit row.

    The cluster knows whether the run is paused, since another client may have paused it.
    Raises ``ActionNotPossible`` for a run that is not paused, and otherwise the errors of ``pause``.
    """
    run = _begin(call, "unpause", newest=True)
    _require_open(call)
    client = cluster_client()
    request = service.UnpauseWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=run.cluster_id,
        run_id=run.run_id or "",
        identity=client.identity,
        reason=call.reason,
        request_id=call.once_id,
    )
    is_late = not _call_pause(call, "unpause", lambda sdk: sdk.workflow_service.unpause_workflow_execution(request))
    with report_unwritten(label_of(call, "unpause")), call.storage.transaction():
        state = _lock_run(run.chain_id, storage=call.storage)
        is_late = is_late and not state.paused
        if not is_late:
            call.storage.write([mirror.clear_pause(state)])
            call.record(call.target.audit_subject, reason=call.reason)
    if is_late:
        call.refuse(_("the run is not paused"), closed=False)


def _call_pause(call: OperatorCall, name: str, make: Any) -> bool:
    """Send a request that pauses or unpauses the run. Returns False if the run was paused, or not paused, before.

    Then an earlier call has done it, whose answer may have been lost, or another client: the row has to follow.
    """
    label = label_of(call, name)
    with report_unavailable(label):
        try:
            cluster_client().call(make)
        except RPCError as exc:
            if any(text in exc.message for text in _DONE_ALREADY):
                return False
            if exc.status in (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.FAILED_PRECONDITION) or "not enabled" in (
                exc.message
            ):
                raise ActionNotPossible(
                    f"{label}: the Temporal cluster does not pause runs ({exc.message}). Its administrator can switch "
                    f"it on: {_PAUSE_SWITCH}"
                ) from exc
            raise
    return True


# -- timers and activities --------------------------------------------------------------------------------------------


def skip_timer(call: OperatorCall) -> None:
    """Make the timer with the number ``call.seq`` fire now: send the run a built-in signal, then write the audit row.

    Raises ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` if no such timer runs, or inside a
    transaction. Raises ``UpdateTimeout`` (code ``unknown``) if the cluster does not answer. It also raises the errors
    of ``reads.ask``, such as ``QueryTimeout`` if no worker answers, because it queries the run.
    """
    run = _begin(call, "skip_timer")
    _require_open(call)
    _require_readable(call)
    events = reads.events_of(run, run_id=run.run_id)
    timers = pending_timers((event.kind, event.attributes) for event in events)
    if call.seq not in timers:
        call.refuse(absent_timer_text(timers), closed=False)
    client, skip = cluster_client(), {"seq": call.seq, **_by(call)}
    request = calls.signal_request(client, run, name=names.SKIP_TIMER, payload=skip, request_id=call.once_id)
    with report_unavailable(label_of(call, "skip_timer")):
        client.call(lambda sdk: sdk.workflow_service.signal_workflow_execution(request))
    _record(call, seq=call.seq)


def _by(call: OperatorCall) -> dict[str, Any]:
    sender = calls.sender_data(call.by.sender)
    return {} if sender is None else {"by": sender}


def _find_pending(call: OperatorCall, name: str, run: ClusterRun) -> PendingActivityInfo:
    """Return what the server says about the open activity of the call. Raises ``ActionNotPossible`` without one."""
    for info in pending.describe_pending(run, label=label_of(call, name)):
        if info.activity_id == str(call.seq):
            return info
    return call.refuse(_("no activity with that number is open: it has ended, or was cancelled"), closed=False)


def retry_activity(call: OperatorCall) -> None:
    """Make the cluster retry a failed activity now, then write the audit row.

    Raises ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` if the call has a new input, if the
    activity has ended, runs now or was never attempted, or inside a transaction. Raises ``UpdateTimeout`` (code
    ``unknown``) if the cluster does not answer.
    """
    run = _begin(call, "retry_activity")
    _require_open(call)
    if call.input_values.get("input") is not None:
        call.refuse(
            _("an activity on a Temporal cluster keeps its input: complete it by hand, or reset the run"), closed=False
        )
    info = _find_pending(call, "retry_activity", run)
    call.require_activity_access([info.activity_type.name])
    if info.state == _RUNNING:
        call.refuse(_("an attempt is running now"), closed=False)
    if info.attempt <= 1 and not info.HasField("last_failure"):
        call.refuse(_("it has not been attempted yet"), closed=False)
    client = cluster_client()
    request = service.ResetActivityRequest(
        namespace=client.namespace,
        execution=calls.execution(run, run_id=run.run_id),
        identity=client.identity,
        id=str(call.seq),
    )
    with report_unavailable(label_of(call, "retry_activity")):
        client.call(lambda sdk: sdk.workflow_service.reset_activity(request))
    _record(call, seq=call.seq, activity=info.activity_type.name)


def _find_call(call: OperatorCall, name: str, run: ClusterRun) -> HistoryEvent:
    """Return the event that scheduled the open activity of the call, whose code has to allow what is done by hand."""
    info = _find_pending(call, name, run)
    call.require_activity_access([info.activity_type.name])
    _require_readable(call)
    events = reads.events_of(run, run_id=run.run_id)
    for event in events:
        if event.kind == "ActivityScheduled" and event.attributes["seq"] == call.seq:
            if not allows_overrides(event.attributes.get("options", {})):
                call.refuse(
                    _("the code of the activity does not allow operators to do this (by_hand=False)"), closed=False
                )
            return event
    return call.refuse(_("the activity has ended in the meantime"), closed=False)


def complete_activity(call: OperatorCall) -> None:
    """Complete the activity on the cluster with the operator's result, then write the audit row.

    The annotation of the activity must accept the result, so this process needs its code. Raises ``PayloadError`` for a
    result that does not fit, and ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` for a step of a
    graph, for an activity that has ended or does not allow it, and inside a transaction. Raises ``UpdateTimeout`` (code
    ``unknown``) if the cluster does not answer. It also raises the errors of ``reads.ask``, such as ``QueryTimeout`` if
    no worker answers, because it queries the run.
    """
    run = _begin(call, "complete_activity")
    _require_open(call)
    scheduled = _find_call(call, "complete_activity", run)
    name = scheduled.attributes["activity"]
    try:
        activity = activities.find(name)
    except ActivityNotFound:
        call.refuse(
            _("this process does not have the code of the activity, so it cannot check the value"), closed=False
        )
        raise
    if isinstance(activity, StepActivity):
        call.refuse(
            _("a step of a graph on a Temporal cluster cannot be completed by hand: reset the run"), closed=False
        )
    source: Any = None  # only steps of graphs read their run
    result = activity.encode_manual_result(call.input_values.get("result"), scheduled.attributes["args"], source)
    request = _completion(call, run, result)
    _end_activity(
        call, "complete_activity", lambda sdk: sdk.workflow_service.respond_activity_task_completed_by_id(request)
    )
    _record(call, seq=call.seq, activity=name, digest=codec.digest(result))


def fail_activity(call: OperatorCall) -> None:
    """Fail the activity on the cluster with the operator's message and no further attempt; then write the audit row.

    Raises ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` for an activity that has ended or does not
    allow it, and inside a transaction. Raises ``UpdateTimeout`` (code ``unknown``) if the cluster does not answer. It
    also raises the errors of ``reads.ask``, such as ``QueryTimeout`` if no worker answers, because it queries the run.
    """
    run = _begin(call, "fail_activity")
    _require_open(call)
    scheduled = _find_call(call, "fail_activity", run)
    message = call.input_values["message"]
    failure = {"type": call.input_values.get("type") or "FailedByHand", "message": message}
    request = _completion(call, run, None, **{own_names.FAILURE: failure})
    _end_activity(
        call, "fail_activity", lambda sdk: sdk.workflow_service.respond_activity_task_completed_by_id(request)
    )
    _record(call, seq=call.seq, activity=scheduled.attributes["activity"], digest=codec.digest(message))


def _completion(
    call: OperatorCall, run: ClusterRun, result: Any, **metadata: Any
) -> service.RespondActivityTaskCompletedByIdRequest:
    """Return the request that ends an activity with a result, whose metadata names the person and ``metadata``."""
    client = cluster_client()
    encoded = {name: json.dumps(value).encode() for name, value in {**metadata, **_by(call)}.items()}
    return service.RespondActivityTaskCompletedByIdRequest(
        namespace=client.namespace,
        workflow_id=run.cluster_id,
        run_id=run.run_id or "",
        activity_id=str(call.seq),
        result=ApiPayloads(payloads=[client.payloads.encode(result, **encoded)]),
        identity=client.identity,
    )


def _end_activity(call: OperatorCall, name: str, make: Any) -> None:
    with report_unavailable(label_of(call, name)):
        try:
            cluster_client().call(make)
        except RPCError as exc:
            if exc.status is not RPCStatusCode.NOT_FOUND:
                raise
            call.refuse(
                _("a worker was faster: the activity has ended in the meantime, or an attempt is running"),
                closed=False,
            )


# -- reset and delete -------------------------------------------------------------------------------------------------


def reset(call: OperatorCall) -> str:
    """Reset the run on the cluster to the end of an activation, and return the id of the row of the new run.

    Raises ``ActionNotPossible`` for edited inputs, for an unknown activation, if another open run has the id, and
    inside a transaction. Raises ``UpdateTimeout`` (code ``unknown``) if the cluster does not answer, or if the new row
    cannot be stored. It also raises the errors of ``reads.ask``, such as ``QueryTimeout`` if no worker answers, because
    it queries the run.
    """
    run = _begin(call, "reset")
    if call.input_values.get("edited") is not None:
        call.refuse(_("activities on a Temporal cluster keep their inputs: leave out the edited inputs"), closed=False)
    _require_readable(call)
    state = reads.state_of(run, run_id=run.run_id)
    known_tasks = reads.ask(run, own_names.TASKS, None, run_id=run.run_id)
    event_id = _task_to_keep(call, state, known_tasks["tasks"], known_tasks["last"])
    client = cluster_client()
    request = service.ResetWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=calls.execution(run, run_id=run.run_id),
        reason=f"{call.reason or 'reset'} ({call.once_id})",
        workflow_task_finish_event_id=event_id,
        request_id=call.once_id,
        reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE,
        reset_reapply_exclude_types=_excluded(call.input_values.get("messages", REDELIVER)),
        identity=client.identity,
    )
    _reserve_id(call)
    new_run_id = _reset_there(call, request)
    with report_unwritten(label_of(call, "reset")), call.storage.transaction():
        locked = _lock_run(run.chain_id, storage=call.storage)
        rows = Instance.objects.using(call.storage.alias).filter(chain=run.chain_id)
        row = rows.filter(cluster_run_id=new_run_id).first()  # its worker may have been faster
        if row is None:
            row = mirror.insert_next(
                locked,
                rows.get(pk=locked.run_id),
                run_id=new_run_id,
                source=rows.get(pk=call.target.selected_run_id),
                storage=call.storage,
            )
        call.record(
            call.target.audit_subject,
            reason=call.reason,
            activation=call.input_values.get("to"),
            run=str(call.target.selected_run_id),
            new_run=str(row.pk),
        )
    return str(row.pk)


def _reset_there(call: OperatorCall, request: service.ResetWorkflowExecutionRequest) -> UUID:
    """Reset a run on the cluster, unless this operation has reset it before; return the new run's id on the cluster."""

    async def reset_once(sdk: Client) -> str:
        if (run_id := await _find_reset(sdk, request)) is not None:
            return run_id
        answer = await sdk.workflow_service.reset_workflow_execution(request)
        return str(answer.run_id)

    try:
        with report_unavailable(label_of(call, "reset")):
            return UUID(cluster_client().call(reset_once))
    except TemporalexError as exc:
        if exc.code != "unknown":  # otherwise the run may be open again
            chains = Chain.objects.using(call.storage.alias)
            chains.filter(pk=call.target.chain_id, closed=True).update(open_key=None)
        raise


async def _find_reset(sdk: Client, request: service.ResetWorkflowExecutionRequest) -> str | None:
    """Return the run that the same request has made before, or None.

    The server does not recognize a reset by its request id. It shows the reason, which contains the id, in the history
    of the new run.
    """
    base = request.workflow_execution
    described = await sdk.workflow_service.describe_workflow_execution(
        service.DescribeWorkflowExecutionRequest(namespace=request.namespace, execution=base)
    )
    new_run_id: str = described.workflow_extended_info.reset_run_id
    page = service.GetWorkflowExecutionHistoryRequest(
        namespace=request.namespace,
        execution=WorkflowExecution(workflow_id=base.workflow_id, run_id=new_run_id),
    )
    while new_run_id:
        answer = await sdk.workflow_service.get_workflow_execution_history(page)
        for event in answer.history.events:
            failed = event.workflow_task_failed_event_attributes
            if failed.new_run_id == new_run_id:
                return new_run_id if failed.failure.message == request.reason else None
        page.next_page_token = answer.next_page_token
        if not page.next_page_token:
            break
    return None


def _reserve_id(call: OperatorCall) -> None:
    """Make the id of a closed run unique among open runs again. Raises ``ActionNotPossible`` if another has it."""
    target, code = call.target, call.target.workflow_class
    if not target.closed or code is None:
        return
    start = RunStart(workflow_id=target.workflow_id, args=None, **start_options(code))
    with call.storage.transaction():
        call.storage.lock_run(target.chain_id, wait=5.0)
        is_free = reopen_chain(target.chain_id, start, storage=call.storage)
    if not is_free:
        call.refuse(_("another open run now has its id"), closed=False)


def _task_to_keep(call: OperatorCall, state: dict[str, Any], tasks: dict[str, int], last_task: int) -> int:
    """Return the number of the event of the server after which the new run begins.

    It is the end of the task of an activation. By default the last activation counts that did not close the run; 0
    means the first task, which is done again. ``tasks`` are the lengths of the server's history at the beginning of
    the task of each activation, and ``last_task`` is that of the last task.
    """
    to = call.input_values.get("to")
    if to is None:
        closed_in = max((event[1] for event in state["events"]), default=1) if state["closing"] is not None else None
        candidates = [int(number) for number in tasks if int(number) != closed_in]
        to = max(candidates, default=1) + 1
    else:
        to += 1
    if str(to) in tasks:
        return tasks[str(to)] + 1
    numbers = sorted(map(int, tasks))
    if to == (numbers[-1] if numbers else 0) + 1:
        return last_task + 1
    return call.refuse(_("the run has no activation with that number"), closed=False)


def _excluded(messages: str) -> list[Any]:
    if messages != DROP:
        return []
    return [
        ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
        ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
    ]


def delete(call: OperatorCall) -> None:
    """Delete the rows of a closed chain in one transaction, with the audit row.

    A row of the outbox in the transaction deletes the runs on the cluster later.
    """
    storage, chain_id = call.storage, call.target.chain_id
    with storage.transaction():
        call.lock_run()
        rows = Instance.objects.using(storage.alias).filter(chain=chain_id)
        runs = [str(run_id) for run_id in rows.values_list("cluster_run_id", flat=True) if run_id is not None]
        cluster_id = rows.values_list("cluster_id", flat=True).first()
        call.record(call.target.audit_subject, reason=call.reason)
        delete_chain(chain_id, storage=storage)
        if runs:  # otherwise its start was never sent
            outgoing.insert(chain_id, "delete", {"cluster_id": cluster_id, "runs": runs}, storage=storage)


#: Operations that the server performs, by name.
OPERATIONS: Final[dict[str, Callable[[OperatorCall], object]]] = {
    operation.__name__: operation
    for operation in (
        *(pause, unpause, skip_timer, retry_activity, complete_activity, fail_activity),
        *(reset, delete),
    )
}
