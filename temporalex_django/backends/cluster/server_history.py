"""The history of a run as the server of the cluster has it, in the form of this package. No code of the run is needed.

A run tells its history only if a worker can replay it. The server has the history of every run, also of one whose task
fails. It knows less: what has no event there, such as the purpose of a timer, is absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import CanceledFailureInfo, Failure, TerminatedFailureInfo, TimeoutFailureInfo
from temporalio.bridge.proto.workflow_activation import DoUpdate, WorkflowActivation, WorkflowActivationJob

from temporalex_django.backends.cluster.ids import queue_of
from temporalex_django.backends.cluster.mirrored_run import ByHandReader
from temporalex_django.backends.cluster.names import CHAIN, DELIVERY
from temporalex_django.core.history.events import DELIVERED, HistoryEvent
from temporalex_django.core.process import RECORDED_AS, REQUESTED
from temporalex_django.errors import KeyMissing, PayloadError
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import read_failure
from temporalex_django.temporal.payloads import Payloads

#: Names of markers of this package begin with this text; the others are patches of the code.
_OWN_MARKER: Final = "__tx_"
_PATCH_MARKER: Final = "core_patch"
_PATCH_DATA: Final = "patch-data"
_PREFIX: Final = "EVENT_TYPE_"


def _completed(attributes: Any) -> dict[str, Any]:
    return {"completed": {"result": next(iter(attributes.result.payloads), None)}}


def _failed(attributes: Any) -> dict[str, Any]:
    # The server's event has what the SDK wraps in a failure of the activity.
    return {"failed": {"failure": attributes.failure}}


_TERMINATED: Final = {"failed": {"failure": Failure(terminated_failure_info=TerminatedFailureInfo())}}
_TIMED_OUT: Final = {"failed": {"failure": Failure(timeout_failure_info=TimeoutFailureInfo())}}
_CANCELLED: Final = {"cancelled": {"failure": Failure(canceled_failure_info=CanceledFailureInfo())}}
_ACTIVITY: Final = "resolve_activity"
_CHILD: Final = "resolve_child_workflow_execution"
#: The ends of activities and children, by the type of the event: the job of the SDK, and its result.
_ENDS: Final[Mapping[str, tuple[str, Callable[[Any], Mapping[str, Any]]]]] = {
    "ACTIVITY_TASK_COMPLETED": (_ACTIVITY, _completed),
    "ACTIVITY_TASK_FAILED": (_ACTIVITY, _failed),
    "ACTIVITY_TASK_TIMED_OUT": (_ACTIVITY, _failed),
    "CHILD_WORKFLOW_EXECUTION_COMPLETED": (_CHILD, _completed),
    "CHILD_WORKFLOW_EXECUTION_FAILED": (_CHILD, _failed),
    "CHILD_WORKFLOW_EXECUTION_CANCELED": (_CHILD, lambda _: _CANCELLED),
    "CHILD_WORKFLOW_EXECUTION_TERMINATED": (_CHILD, lambda _: _TERMINATED),
    "CHILD_WORKFLOW_EXECUTION_TIMED_OUT": (_CHILD, lambda _: _TIMED_OUT),
}


class _ReadablePayloads(Payloads):
    """Payloads for display: one that cannot be read is replaced by a text that says why."""

    def __init__(self, payloads: Payloads) -> None:  # no codec of its own
        self._payloads = payloads

    def decode(self, payload: Payload) -> Any:
        try:
            return self._payloads.decode(payload)
        except (PayloadError, KeyMissing, ValueError) as exc:
            return repr(UnreadablePayload(str(exc)))


def read_events(history: Iterable[Any], payloads: Payloads) -> list[HistoryEvent]:
    """Return the events of this package for ``history``, the events of the server for one run."""
    reader = _HistoryReader(_ReadablePayloads(payloads))
    events = [*history]
    scheduled = (event.activity_task_scheduled_event_attributes for event in events)
    reader.delivered = {int(each.activity_id) for each in scheduled if each.activity_type.name == DELIVERY}
    for event in events:
        reader.read(event)
    reader.finish()
    return reader.events


class _HistoryReader:
    """Reads the events of one run in their order.

    Inputs wait in ``_inputs`` until a task takes them, as they are delivered to the code. Those that no task has
    completed form the last activation, which fails.
    """

    def __init__(self, payloads: Payloads) -> None:
        self.events: list[HistoryEvent] = []
        self._payloads = payloads
        self._activations = 0
        self._inputs: list[tuple[str, dict[str, Any]]] = []
        self._start: dict[str, Any] | None = None
        self._queue = ""
        self._first_run_id = ""
        self._task_at = datetime.min.replace(tzinfo=UTC)  # when the last task began
        self._has_task = False  # if a task has completed whose activation is not recorded yet
        self._last_seq = 0
        self._seqs: dict[int, int] = {}  # numbers of commands, by the number of the server's event
        self._commands: dict[int, dict[str, Any]] = {}
        self._updates: dict[int, Mapping[str, Any]] = {}
        self._jobs = ByHandReader(payloads, lambda seq: self._commands.get(seq, {}))
        self.delivered: set[int] = set()  # numbers of messages that an activity has taken to the tables

    def read(self, event: Any) -> None:
        """Add the events that stand for one event of the server."""
        kind = EventType.Name(event.event_type).removeprefix(_PREFIX)
        attributes = getattr(event, event.WhichOneof("attributes"))
        if kind in _ENDS:
            job, result = _ENDS[kind]
            number = attributes.scheduled_event_id if job == _ACTIVITY else attributes.initiated_event_id
            self._deliver(**{job: {"seq": self._seqs[number], "result": result(attributes)}})
        elif (read := self.readers.get(kind)) is not None:
            read(self, attributes, event.event_time.ToDatetime(UTC), event.event_id)

    def finish(self) -> None:
        """Add what has come since the last completed task."""
        if self._start is not None or self._inputs:
            self._begin_activation()

    # -- activations --------------------------------------------------------------------------------------------------

    def _begin_activation(self) -> None:
        self._activations += 1
        self._has_task = False
        if self._start is not None:
            self._add("WorkflowStarted", self._start, self._task_at)
            self._start = None
        self._add("ActivationStarted", {"head": 0}, self._task_at)
        for kind, attributes in self._inputs:
            self._add(kind, attributes, self._task_at)
        self._inputs = []

    def _add(self, kind: str, attributes: dict[str, Any], at: datetime) -> None:
        self.events.append(HistoryEvent(len(self.events) + 1, max(1, self._activations), kind, at, attributes))

    def _add_output(self, kind: str, attributes: dict[str, Any]) -> None:
        if self._has_task:
            self._begin_activation()
        self._add(kind, attributes, self._task_at)

    def _input(self, attributes: Any) -> tuple[Any, dict[str, Any]]:
        """Return the input of a run or of a message, and the facts with which a run starts besides it."""
        value, facts, *_ = *map(self._payloads.decode, attributes.input.payloads), None, None
        return value, facts if isinstance(facts, dict) else {}

    def _task_started(self, _attributes: Any, at: datetime, _number: int) -> None:
        self._task_at = at

    def _task_completed(self, _attributes: Any, _at: datetime, _number: int) -> None:
        self._has_task = True
        self.finish()

    # -- inputs, which are read as the jobs of an activation ----------------------------------------------------------

    def _deliver(self, **job: Any) -> None:
        """Add the inputs for one job of the SDK."""
        inbound = self._jobs.read(WorkflowActivation(jobs=[WorkflowActivationJob(**job)]))
        jobs = [*inbound.answers, *inbound.messages, *([inbound.cancel] if inbound.cancel else ())]
        self._inputs += [(kind, attributes) for kind, attributes in jobs if kind != DELIVERED]
        self._inputs += [("TimerFired", skip) for skip in inbound.skips if isinstance(skip, dict)]

    def _started(self, attributes: Any, at: datetime, _number: int) -> None:
        args, facts = self._input(attributes)
        self._task_at, self._queue = at, attributes.task_queue.name
        self._first_run_id = attributes.first_execution_run_id
        self._start = {
            "workflow": attributes.workflow_type.name,
            "id": facts.get("id", attributes.workflow_id),
            "run_id": facts.get("run") or attributes.original_execution_run_id,
            "version": facts.get("version"),
            "args": args,
            "attempt": facts.get("attempt", 1),
            "parent": facts.get("parent"),
        }

    def _signaled(self, attributes: Any, _at: datetime, _number: int) -> None:
        chain = attributes.header.fields.get(CHAIN)
        if chain is not None and self._payloads.decode(chain) != self._first_run_id:
            return  # the run drops it, too
        signal = {"signal_name": attributes.signal_name, "input": attributes.input.payloads}
        self._deliver(signal_workflow={**signal, "headers": attributes.header.fields})

    def _cancel_requested(self, attributes: Any, _at: datetime, _number: int) -> None:
        self._deliver(cancel_workflow={"reason": attributes.cause})

    def _timer_fired(self, attributes: Any, _at: datetime, _number: int) -> None:
        if attributes.started_event_id in self._seqs:
            self._deliver(fire_timer={"seq": self._seqs[attributes.started_event_id]})

    def _child_start_failed(self, attributes: Any, _at: datetime, _number: int) -> None:
        failed = {
            "workflow_id": attributes.workflow_id,
            "workflow_type": attributes.workflow_type.name,
            "cause": attributes.cause,
        }
        seq = self._seqs[attributes.initiated_event_id]
        self._deliver(resolve_child_workflow_execution_start={"seq": seq, "failed": failed})

    def _external_failed(self, attributes: Any, _at: datetime, _number: int) -> None:
        seq, failure = self._seqs[attributes.initiated_event_id], Failure(message="no open run has the id")
        if seq not in self.delivered:
            self._deliver(resolve_signal_external_workflow={"seq": seq, "failure": failure})

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _add_command(self, kind: str, number: int, command: dict[str, Any], *, seq: int | None = None) -> None:
        """Add the command of the server's event ``number``. If the server does not number it, it follows the last one.

        The server numbers activities and timers.
        """
        self._seqs[number] = self._last_seq = self._last_seq + 1 if seq is None else seq
        self._commands[self._last_seq] = command = {"seq": self._last_seq, **command}
        self._add_output(kind, command)

    def _activity_scheduled(self, attributes: Any, _at: datetime, number: int) -> None:
        if attributes.activity_type.name == DELIVERY:
            self._seqs[number] = int(attributes.activity_id)
            return
        facts = names.CALL in attributes.header.fields and self._payloads.decode(attributes.header.fields[names.CALL])
        command: dict[str, Any] = {
            "activity": attributes.activity_type.name,
            "args": [*map(self._payloads.decode, attributes.input.payloads)],
        }
        if isinstance(facts, dict) and facts.get("kwargs"):
            command["kwargs"] = facts["kwargs"]
        if attributes.task_queue.name != self._queue:
            command["options"] = {"queue": queue_of(attributes.task_queue.name)}
        self._add_command("ActivityScheduled", number, command, seq=int(attributes.activity_id))

    def _activity_cancelled(self, attributes: Any, _at: datetime, _number: int) -> None:
        self._add_output("ActivityCancelled", {"seq": self._seqs[attributes.scheduled_event_id]})

    def _timer_started(self, attributes: Any, at: datetime, number: int) -> None:
        seq, duration = int(attributes.timer_id), attributes.start_to_fire_timeout.ToTimedelta()
        if seq < names.REST_TIMERS:
            timer = {"duration": duration.total_seconds(), "due": (at + duration).isoformat()}
            self._add_command("TimerStarted", number, timer, seq=seq)

    def _timer_cancelled(self, attributes: Any, _at: datetime, _number: int) -> None:
        if attributes.started_event_id in self._seqs:
            self._add_output("TimerCancelled", {"seq": self._seqs[attributes.started_event_id]})

    def _marker_recorded(self, attributes: Any, _at: datetime, _number: int) -> None:
        if attributes.marker_name != _PATCH_MARKER:
            return
        for payload in attributes.details[_PATCH_DATA].payloads:
            patch = json.loads(payload.data)
            if not patch["id"].startswith(_OWN_MARKER):
                self._add_output("PatchMarked", {"id": patch["id"], "deprecated": bool(patch.get("deprecated"))})

    def _update_accepted(self, attributes: Any, _at: datetime, number: int) -> None:
        request = attributes.accepted_request
        job = DoUpdate(
            id=request.meta.update_id,
            name=request.input.name,
            input=request.input.args.payloads,
            headers=request.input.header.fields,
        )
        inbound = self._jobs.read(WorkflowActivation(jobs=[WorkflowActivationJob(do_update=job)]))
        for kind, update in inbound.messages:
            update.pop("accepted", None)
            if kind == REQUESTED:
                self._add_output("SignalReceived", {**update, "name": RECORDED_AS, "payload": update.pop("request")})
            else:
                self._updates[number] = update
                self._add_output("UpdateAccepted", update)

    def _update_completed(self, attributes: Any, _at: datetime, _number: int) -> None:
        update = self._updates.get(attributes.accepted_event_id)
        if update is None:  # a request, which has no answer in a history
            return
        label, outcome = {"id": update["id"], "name": update["name"]}, attributes.outcome
        if outcome.HasField("failure"):
            self._add_output("UpdateFailed", {**label, **read_failure(outcome.failure, self._payloads)})
        else:
            result = next(map(self._payloads.decode, outcome.success.payloads), None)
            self._add_output("UpdateCompleted", {**label, "result": result})

    def _child_started(self, attributes: Any, _at: datetime, number: int) -> None:
        args, facts = self._input(attributes)
        child = {
            "workflow": attributes.workflow_type.name,
            "id": facts.get("id", attributes.workflow_id),
            "args": args,
            "version": facts.get("version"),
            "queue": queue_of(attributes.task_queue.name),
        }
        self._add_command("ChildStarted", number, child)

    def _signal_sent(self, attributes: Any, _at: datetime, number: int) -> None:
        sent = {"id": attributes.workflow_execution.workflow_id, "name": attributes.signal_name}
        self._add_command("ExternalSignalSent", number, {**sent, "payload": self._input(attributes)[0]})

    def _cancel_sent(self, attributes: Any, _at: datetime, number: int) -> None:
        self._add_command("ExternalCancelSent", number, {"id": attributes.workflow_execution.workflow_id})

    #: The method that reads an event of the server, by its type. Events of other types have no counterpart.
    readers: ClassVar[Mapping[str, Callable[[_HistoryReader, Any, datetime, int], None]]] = {
        "WORKFLOW_EXECUTION_STARTED": _started,
        "WORKFLOW_TASK_STARTED": _task_started,
        "WORKFLOW_TASK_COMPLETED": _task_completed,
        "WORKFLOW_EXECUTION_SIGNALED": _signaled,
        "WORKFLOW_EXECUTION_CANCEL_REQUESTED": _cancel_requested,
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": _update_accepted,
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED": _update_completed,
        "TIMER_STARTED": _timer_started,
        "TIMER_FIRED": _timer_fired,
        "TIMER_CANCELED": _timer_cancelled,
        "ACTIVITY_TASK_SCHEDULED": _activity_scheduled,
        "ACTIVITY_TASK_CANCEL_REQUESTED": _activity_cancelled,
        "MARKER_RECORDED": _marker_recorded,
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED": _child_started,
        "START_CHILD_WORKFLOW_EXECUTION_FAILED": _child_start_failed,
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED": _signal_sent,
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED": _external_failed,
        "REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED": _cancel_sent,
        "REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED": _external_failed,
    }
