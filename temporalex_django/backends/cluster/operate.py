"""Operations on runs on the cluster: the server does them, and the rows follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn
from uuid import UUID

from django.utils.translation import gettext_lazy as _
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import PendingActivityState, ResetReapplyExcludeType, ResetReapplyType
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice import v1 as service
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring.workflow import start_options
from temporalex_django.backends.cluster import calls, mirror, pending, reads
from temporalex_django.backends.cluster import names as own_names
from temporalex_django.backends.cluster.answers import report_unavailable, report_unwritten
from temporalex_django.backends.cluster.client import cluster_client, send
from temporalex_django.backends.cluster.runs import ClusterRun, find_on_cluster
from temporalex_django.backends.host import inside_transaction
from temporalex_django.backends.protocol import OperatorCall
from temporalex_django.core.payloads import codec
from temporalex_django.db.inserts import reopen_chain
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

#: Parts of the errors of the server for a run that is paused already, or is not paused.
_DONE_ALREADY: Final = ("already paused", "not paused")
#: Statuses with which a server answers that lacks pauses.
_LACKS_PAUSES: Final = (RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.FAILED_PRECONDITION)
_DROPPED: Final = (
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL,
    ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE,
)

Details = dict[str, Any]


def _refuse(call: OperatorCall, reason: Any) -> NoReturn:
    call.refuse(reason, closed=False)


def _raise(call: OperatorCall, error: RPCError) -> NoReturn:
    raise error


@dataclass(frozen=True, slots=True)
class ServerOperation:
    """An operation that the server performs.

    - ``prepare`` returns the request, and details of the audit row. It reads the run, and refuses what is impossible.
    - ``ask`` sends the request and returns the answer.
    - ``judge`` returns what an error of the server means for the operation, or raises.
    - ``write`` writes the row of the run after the answer, and returns further details of the audit row. It returns
      None if nothing is to be written, because the run was in the wanted state before; ``late`` is the refusal then.
    - ``undo`` takes back what ``prepare`` has written, if the server has not done the operation.

    It acts on the selected run of a call, or on the newest one of its chain (``is_for_newest``), and refuses a closed
    run, unless ``takes_closed``.
    """

    prepare: Callable[[OperatorCall, ClusterRun], tuple[Message, Details]]
    judge: Callable[[OperatorCall, RPCError], Any] = _raise
    write: Callable[[OperatorCall, Any], Details | None] | None = None
    late: Any = ""
    ask: Callable[[Client, Any], Coroutine[Any, Any, Any]] = send
    undo: Callable[[OperatorCall], None] | None = None
    is_for_newest: bool = False
    takes_closed: bool = False


def perform(call: OperatorCall) -> Any:
    """Perform an operation of ``OPERATIONS`` on the cluster, then write its rows with the audit row.

    Nothing is locked while the server is asked. Returns the id of the row of a new run, or None if there is none.

    Raises ``WorkflowClosed`` for a closed run. Raises ``ActionNotPossible`` inside a transaction, and for what the
    operation or the server refuses. Raises ``UpdateTimeout`` (code ``unknown``) if the cluster does not answer, or if
    the rows cannot be stored. Operations that query the run also raise the errors of ``reads.ask``.
    """
    operation, label = OPERATIONS[call.name], _label_of(call)
    run = _find_run(call, operation)
    request, details = operation.prepare(call, run)
    try:
        with report_unavailable(label):
            try:
                answer = cluster_client().call(lambda sdk: operation.ask(sdk, request))
            except RPCError as exc:
                answer = operation.judge(call, exc)
    except TemporalexError as exc:
        if operation.undo and exc.code != "unknown":
            operation.undo(call)
        raise
    with report_unwritten(label if operation.write else _label_of(call, "operation")), call.storage.transaction():
        written = operation.write(call, answer) if operation.write else {}
        if written is not None:
            call.record(call.target.audit_subject, reason=call.reason, **details, **written)
    if written is None:
        _refuse(call, operation.late)
    return written.get("new_run")


def _label_of(call: OperatorCall, name: str | None = None) -> str:
    return f"{name or call.name} of {call.target.workflow} {call.target.workflow_id}"


def _find_run(call: OperatorCall, operation: ServerOperation) -> ClusterRun:
    """Return where the run of an operation is. Raises ``ActionNotPossible`` inside a transaction."""
    target = call.target
    if inside_transaction(call.storage.alias):
        raise ActionNotPossible(
            f"{_label_of(call)} inside a transaction: the run lives on a Temporal cluster, which would do it at "
            "once, even if the transaction is rolled back. Call it in transaction.on_commit()"
        )
    run_id = None if operation.is_for_newest else target.selected_run_id
    run = find_on_cluster(target.chain_id, run_id=run_id, storage=call.storage)
    if run.run_id is None:
        _refuse(call, _("its start has not reached the Temporal cluster yet"))
    if target.closed and not operation.takes_closed:
        call.refuse(_("the run is already closed"), closed=True)
    return run


def _require_readable(call: OperatorCall) -> None:
    """Refuse an operation that has to read the history of a paused run: the server does not let workers read it."""
    target = call.target
    if target.paused and target.selected_run_id == target.run_id:
        _refuse(call, _("the run is paused, and a Temporal cluster does not let workers read it: unpause it first"))


def _lock_run(call: OperatorCall) -> RunState:
    """Lock the newest run of a chain, whose operation the cluster has done. Raises ``mirror.MirrorBusy`` after 5 s."""
    state = call.storage.lock_run(call.target.chain_id, wait=5.0)
    if state is None:
        raise mirror.MirrorBusy(f"the row of the chain {call.target.chain_id} is locked")
    return state


def _sender_of(call: OperatorCall) -> dict[str, Any]:
    return {} if call.by.sender is None else {"by": call.by.sender.as_dict()}


# -- pause ------------------------------------------------------------------------------------------------------------


def _prepare_pause(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    """Prepare a pause. The cluster knows whether a run to be unpaused is paused: another client may have done it."""
    is_pause = call.name == "pause"
    if is_pause and call.target.paused:
        _refuse(call, OPERATIONS["pause"].late)
    kind: Any = service.PauseWorkflowExecutionRequest if is_pause else service.UnpauseWorkflowExecutionRequest
    options = {"run_id": run.run_id, "reason": call.reason, "request_id": call.once_id}
    return calls.make_request(kind, run, **options), {}


def _judge_pause(call: OperatorCall, error: RPCError) -> None:
    """Return None if the run was paused, or not paused, before.

    Then an earlier call has done it, whose answer may have been lost, or another client: the row has to follow.
    """
    if any(text in error.message for text in _DONE_ALREADY):
        return
    if error.status in _LACKS_PAUSES or "not enabled" in error.message:
        raise ActionNotPossible(
            f"{_label_of(call)}: the Temporal cluster does not pause runs ({error.message}). Its administrator can "
            "switch it on: frontend.WorkflowPauseEnabled"
        ) from error
    raise error


def _write_pause(call: OperatorCall, answer: Message | None) -> Details | None:
    state, is_pause = _lock_run(call), call.name == "pause"
    if answer is None and bool(state.paused) == is_pause:
        return None
    if is_pause:
        write = pause_run(state, reason=call.reason, sender=call.by.sender, now=call.storage.now())
    else:
        write = mirror.clear_pause(state)
    call.storage.write([write])
    return {}


# -- timers and activities --------------------------------------------------------------------------------------------


def _prepare_skip(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    """Prepare a built-in signal, which makes the timer with the number ``call.seq`` fire now."""
    _require_readable(call)
    timers = pending_timers((event.kind, event.attributes) for event in reads.events_of(run))
    if call.seq not in timers:
        _refuse(call, absent_timer_text(timers))
    skip = calls.message_body({"seq": call.seq, **_sender_of(call)})
    request = calls.signal_request(cluster_client(), run, names.SKIP_TIMER, skip, request_id=call.once_id)
    return request, {"seq": call.seq}


def _find_pending(call: OperatorCall, run: ClusterRun) -> PendingActivityInfo:
    """Return what the server says about the open activity of the call, on which the user may operate.

    Raises ``ActionNotPossible`` without one.
    """
    for info in pending.describe_run(run, label=_label_of(call)).pending_activities:
        if info.activity_id == str(call.seq):
            call.require_activity_access([info.activity_type.name])
            return info
    _refuse(call, _("no activity with that number is open: it has ended, or was cancelled"))


def _prepare_retry(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    if call.input_values.get("input") is not None:
        _refuse(call, _("an activity on a Temporal cluster keeps its input: complete it by hand, or reset the run"))
    info = _find_pending(call, run)
    if info.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
        _refuse(call, _("an attempt is running now"))
    if info.attempt <= 1 and not info.HasField("last_failure"):
        _refuse(call, _("it has not been attempted yet"))
    options = {"run_id": run.run_id, "id": str(call.seq)}
    request = calls.make_request(service.ResetActivityRequest, run, **options)
    return request, {"seq": call.seq, "activity": info.activity_type.name}


def _find_call(call: OperatorCall, run: ClusterRun) -> dict[str, Any]:
    """Return the attributes of the open activity of the call, whose code has to allow what is done by hand."""
    _find_pending(call, run)
    _require_readable(call)
    for event in reads.events_of(run):
        if event.kind == "ActivityScheduled" and event.attributes["seq"] == call.seq:
            if not allows_overrides(event.attributes.get("options", {})):
                _refuse(call, _("the code of the activity does not allow operators to do this (by_hand=False)"))
            return event.attributes
    _refuse(call, _("the activity has ended in the meantime"))


def _prepare_completion(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    """Prepare the operator's result. The annotation of the activity must accept it: this process needs its code."""
    scheduled = _find_call(call, run)
    try:
        activity = activities.find(scheduled["activity"])
    except ActivityNotFound:
        _refuse(call, _("this process does not have the code of the activity, so it cannot check the value"))
    if isinstance(activity, StepActivity):
        _refuse(call, _("a step of a graph on a Temporal cluster cannot be completed by hand: reset the run"))
    source: Any = None  # only steps of graphs read their run
    result = activity.encode_manual_result(call.input_values.get("result"), scheduled["args"], source)
    return _end_activity(call, run, scheduled, result, digest=codec.digest(result))


def _prepare_failure(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    """Prepare the operator's message as the failure of the activity, after which there is no further attempt."""
    scheduled, message = _find_call(call, run), call.input_values["message"]
    failure = {"type": call.input_values.get("type") or "FailedByHand", "message": message}
    metadata = {own_names.FAILURE: failure}
    return _end_activity(call, run, scheduled, None, digest=codec.digest(message), **metadata)


def _end_activity(
    call: OperatorCall, run: ClusterRun, scheduled: Mapping[str, Any], result: Any, *, digest: str, **metadata: Any
) -> tuple[Message, Details]:
    """Return the request that ends an activity with a result, whose metadata names the person and ``metadata``."""
    client = cluster_client()
    encoded = {name: json.dumps(value).encode() for name, value in {**metadata, **_sender_of(call)}.items()}
    request = calls.make_request(
        service.RespondActivityTaskCompletedByIdRequest,
        run,
        run_id=run.run_id,
        activity_id=str(call.seq),
        result=Payloads(payloads=[client.payloads.encode(result, **encoded)]),
    )
    return request, {"seq": call.seq, "activity": scheduled["activity"], "digest": digest}


def _judge_end(call: OperatorCall, error: RPCError) -> NoReturn:
    if error.status is not RPCStatusCode.NOT_FOUND:
        raise error
    _refuse(call, _("a worker was faster: the activity has ended in the meantime, or an attempt is running"))


# -- reset ------------------------------------------------------------------------------------------------------------


def _prepare_reset(call: OperatorCall, run: ClusterRun) -> tuple[Message, Details]:
    """Prepare the reset to the end of an activation."""
    inputs = call.input_values
    if inputs.get("edited") is not None:
        _refuse(call, _("activities on a Temporal cluster keep their inputs: leave out the edited inputs"))
    _require_readable(call)
    state, tasks = reads.state_of(run), reads.ask(run, own_names.TASKS)
    request = calls.make_request(
        service.ResetWorkflowExecutionRequest,
        run,
        run_id=run.run_id,
        reason=f"{call.reason or 'reset'} ({call.once_id})",
        workflow_task_finish_event_id=_task_to_keep(call, state, tasks["tasks"], tasks["last"]),
        request_id=call.once_id,
        reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE,
        reset_reapply_exclude_types=_DROPPED if inputs.get("messages", REDELIVER) == DROP else (),
    )
    _reserve_id(call)
    return request, {"activation": inputs.get("to"), "run": str(call.target.selected_run_id)}


def _write_reset(call: OperatorCall, new_run_id: UUID) -> Details:
    locked = _lock_run(call)
    rows = Instance.objects.using(call.storage.alias).filter(chain=call.target.chain_id)
    row = rows.filter(cluster_run_id=new_run_id).first()  # its worker may have been faster
    if row is None:
        base, source = rows.get(pk=locked.run_id), rows.get(pk=call.target.selected_run_id)
        row = mirror.insert_next(locked, base, run_id=new_run_id, source=source, storage=call.storage)
    return {"new_run": str(row.pk)}


async def _reset_once(sdk: Client, request: service.ResetWorkflowExecutionRequest) -> UUID:
    """Reset a run, unless the same request has reset it before, and return the new run's id on the cluster."""
    if (run_id := await _find_reset(sdk, request)) is not None:
        return UUID(run_id)
    return UUID((await send(sdk, request)).run_id)


async def _find_reset(sdk: Client, request: service.ResetWorkflowExecutionRequest) -> str | None:
    """Return the run that the same request has made before, or None.

    The server does not recognize a reset by its request id. It shows the reason, which contains the id, in the history
    of the new run.
    """
    base = request.workflow_execution
    described = await send(sdk, service.DescribeWorkflowExecutionRequest(execution=base))
    new_run_id: str = described.workflow_extended_info.reset_run_id
    page = service.GetWorkflowExecutionHistoryRequest(execution=base)
    page.execution.run_id = new_run_id
    while new_run_id:
        answer = await send(sdk, page)
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
        _refuse(call, _("another open run now has its id"))


def _release_id(call: OperatorCall) -> None:
    """Take back what ``_reserve_id`` has done."""
    chains = Chain.objects.using(call.storage.alias)
    chains.filter(pk=call.target.chain_id, closed=True).update(open_key=None)


def _task_to_keep(call: OperatorCall, state: dict[str, Any], tasks: dict[str, int], last_task: int) -> int:
    """Return the number of the event of the server after which the new run begins.

    It is the end of the task of an activation. By default the last activation counts that did not close the run; 0
    means the first task, which is done again. ``tasks`` are the lengths of the server's history at the beginning of
    the task of each activation, and ``last_task`` is that of the last task.
    """
    to = call.input_values.get("to")
    if to is None:
        closed_in = max((event[1] for event in state["events"]), default=1) if state["closing"] is not None else None
        to = max((int(number) for number in tasks if int(number) != closed_in), default=1)
    if str(to + 1) in tasks:
        return tasks[str(to + 1)] + 1
    if to == max(map(int, tasks), default=0):
        return last_task + 1
    _refuse(call, _("the run has no activation with that number"))


_pause: Final = partial(
    ServerOperation, prepare=_prepare_pause, judge=_judge_pause, write=_write_pause, is_for_newest=True
)

#: Operations that the server performs, by name.
OPERATIONS: Final[dict[str, ServerOperation]] = {
    "pause": _pause(late=_("the run is already paused")),
    "unpause": _pause(late=_("the run is not paused")),
    "skip_timer": ServerOperation(prepare=_prepare_skip),
    "retry_activity": ServerOperation(prepare=_prepare_retry),
    "complete_activity": ServerOperation(prepare=_prepare_completion, judge=_judge_end),
    "fail_activity": ServerOperation(prepare=_prepare_failure, judge=_judge_end),
    "reset": ServerOperation(
        prepare=_prepare_reset, ask=_reset_once, write=_write_reset, undo=_release_id, takes_closed=True
    ),
}
