"""The events and the failed tasks of a server, translated to those of this package, without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import Payloads as PayloadList
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent as ServerEvent
from temporalio.api.workflow.v1 import PendingWorkflowTaskInfo

from temporalex_django.backends.cluster.failing import block_mark_of, places_of
from temporalex_django.backends.cluster.server_history import read_events
from temporalex_django.present.timeline import build_rows
from temporalex_django.temporal.failures import task_failure, write_failure
from temporalex_django.temporal.payloads import Payloads

AT = datetime(2026, 1, 5, 12, tzinfo=UTC)
payloads = Payloads()


def data(*values: Any) -> dict[str, Any]:
    return {"payloads": [payloads.encode(value) for value in values]}


def history(*entries: tuple[str, Mapping[str, Any]]) -> list[ServerEvent]:
    """Events of the server with these kinds and attributes, numbered from 1, one a second."""
    events = []
    for number, (kind, attributes) in enumerate(entries, start=1):
        name = f"{kind.lower()}_event_attributes"
        event = ServerEvent(event_id=number, event_type=EventType.Value(f"EVENT_TYPE_{kind}"), **{name: attributes})  # type: ignore[arg-type]
        event.event_time.FromDatetime(AT + timedelta(seconds=number))
        events.append(event)
    return events


STARTED = ("WORKFLOW_EXECUTION_STARTED", {
    "workflow_type": {"name": "Order"}, "task_queue": {"name": "q"}, "first_execution_run_id": "first",
    "input": data({"sku": 1}, {"id": "order-1", "version": 3}),
})  # fmt: skip
TASK = [("WORKFLOW_TASK_SCHEDULED", {}), ("WORKFLOW_TASK_STARTED", {}), ("WORKFLOW_TASK_COMPLETED", {})]
FAILED_TASK = [*TASK[:2], ("WORKFLOW_TASK_FAILED", {})]


def told(*entries: Any) -> list[tuple[int, str, Any]]:
    events = read_events(history(*entries), payloads)
    assert [event.number for event in events] == [*range(1, len(events) + 1)]
    build_rows(events)
    return [(e.activation, e.kind, e.attributes) for e in events if e.kind != "ActivationStarted"]


def test_a_run_whose_first_task_fails_has_its_start() -> None:
    ((activation, kind, attributes),) = told(STARTED, *FAILED_TASK)

    assert (activation, kind) == (1, "WorkflowStarted")
    assert {"workflow": "Order", "id": "order-1", "version": 3, "args": {"sku": 1}}.items() <= attributes.items()


def test_commands_and_their_results_have_the_numbers_of_the_run() -> None:
    scheduled = {"activity_id": "1", "activity_type": {"name": "charge"}, "task_queue": {"name": "other"}}
    entries = told(
        STARTED,
        *TASK,
        ("ACTIVITY_TASK_SCHEDULED", {**scheduled, "input": data(4711)}),  # 5
        ("TIMER_STARTED", {"timer_id": "2", "start_to_fire_timeout": timedelta(seconds=60)}),
        ("START_CHILD_WORKFLOW_EXECUTION_INITIATED", {"workflow_id": "c", "workflow_type": {"name": "Child"}}),
        ("ACTIVITY_TASK_STARTED", {}),
        ("ACTIVITY_TASK_FAILED", {"scheduled_event_id": 5, "failure": write_failure(
            {"type": "ValueError", "message": "no", "attempts": 2, "timeout": None}, payloads)}),
        ("CHILD_WORKFLOW_EXECUTION_TERMINATED", {"initiated_event_id": 7}),
        *TASK,
        ("TIMER_CANCELED", {"timer_id": "2", "started_event_id": 6}),
    )  # fmt: skip

    assert [(activation, kind, attributes.get("seq")) for activation, kind, attributes in entries] == [
        (1, "WorkflowStarted", None),
        (1, "ActivityScheduled", 1),
        (1, "TimerStarted", 2),
        (1, "ChildStarted", 3),
        (2, "ActivityFailed", 1),
        (2, "ChildFailed", 3),
        (2, "TimerCancelled", 2),
    ]
    assert entries[1][2] == {"seq": 1, "activity": "charge", "args": [4711], "options": {"queue": "other"}}
    assert entries[2][2]["duration"] == 60.0
    assert (entries[4][2]["type"], entries[4][2]["attempts"]) == ("ValueError", 2)
    assert entries[5][2]["status"] == "terminated"


def test_messages_are_in_the_activation_that_takes_them_and_foreign_ones_are_dropped() -> None:
    foreign = {"fields": {"__tx_chain": payloads.encode("another")}}
    request = {"meta": {"update_id": "u"}, "input": {"name": "add", "args": data(2)}}
    patch_data = Payload(data=json.dumps({"id": "new", "deprecated": False}).encode())
    patch = {"patch-data": PayloadList(payloads=[patch_data])}
    entries = told(
        STARTED,
        *TASK,
        ("WORKFLOW_EXECUTION_SIGNALED", {"signal_name": "go", "input": data(1)}),
        ("WORKFLOW_EXECUTION_SIGNALED", {"signal_name": "go", "input": data(2), "header": foreign}),
        *TASK,
        ("MARKER_RECORDED", {"marker_name": "core_patch", "details": patch}),
        ("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", {"accepted_request": request}),  # 11
        ("WORKFLOW_EXECUTION_UPDATE_COMPLETED", {"accepted_event_id": 11, "outcome": {"success": data(3)}}),
        ("WORKFLOW_EXECUTION_CANCEL_REQUESTED", {"cause": "enough"}),
        *FAILED_TASK,
    )

    assert [(activation, kind) for activation, kind, _ in entries] == [
        (1, "WorkflowStarted"),
        (2, "SignalReceived"),
        (2, "PatchMarked"),
        (2, "UpdateAccepted"),
        (2, "UpdateCompleted"),
        (3, "CancelRequested"),
    ]
    assert entries[1][2] == {"name": "go", "payload": 1}
    assert entries[4][2] == {"id": "u", "name": "add", "result": 3}
    assert entries[5][2] == {"reason": "enough"}


def test_a_payload_that_cannot_be_read_hides_nothing_else() -> None:
    unreadable = {"payloads": [Payload(metadata={"encoding": b"binary/other"}, data=b"x")]}

    (start, signal) = told(
        STARTED, *TASK, ("WORKFLOW_EXECUTION_SIGNALED", {"signal_name": "go", "input": unreadable}), *FAILED_TASK
    )

    assert start[2]["args"] == {"sku": 1}
    assert "unreadable payload" in signal[2]["payload"]


# -- the failing task -------------------------------------------------------------------------------------------------


def failed(failure: Any, cause: str = "WORKFLOW_WORKER_UNHANDLED_FAILURE") -> ServerEvent:
    value = WorkflowTaskFailedCause.Value(f"WORKFLOW_TASK_FAILED_CAUSE_{cause}")
    return history(("WORKFLOW_TASK_FAILED", {"cause": value, "failure": failure}))[0]


def pending(attempt: int) -> PendingWorkflowTaskInfo:
    task = PendingWorkflowTaskInfo(attempt=attempt)
    task.started_time.FromDatetime(AT + timedelta(minutes=5))
    return task


def raised() -> Exception:
    try:
        raise KeyError("card 4711")
    except KeyError as exc:
        return exc


def test_the_mark_has_the_error_its_place_and_the_tries() -> None:
    error = raised()
    failure = task_failure(error).failure
    failure.stack_trace = places_of(error)
    mark = block_mark_of(failed(failure), pending(4), payloads)

    assert mark is not None
    assert (mark["code"], mark["error"], mark["attempt"]) == ("KeyError", "KeyError: 'card 4711'", 3)
    assert mark["since"] == (AT + timedelta(seconds=1)).isoformat()
    assert mark["last"] == (AT + timedelta(minutes=5)).isoformat()
    assert mark["place"].startswith("backends/test_server_history.py:")


def test_the_places_of_an_error_quote_no_message() -> None:
    places = places_of(raised())

    assert "test_server_history.py" in places
    assert "4711" not in places


def test_a_task_that_the_sdk_or_the_server_has_failed_says_why() -> None:
    by_sdk = block_mark_of(failed({"message": "[TMPRL1100] no"}, "NON_DETERMINISTIC_ERROR"), pending(2), payloads)
    by_server = block_mark_of(failed({}, "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES"), pending(2), payloads)

    assert by_sdk is not None
    assert by_server is not None
    assert (by_sdk["code"], by_sdk["error"]) == ("nondeterminism", "NondeterminismError: [TMPRL1100] no")
    assert by_server["error"] == "WorkflowTaskFailed: bad schedule activity attributes"


@pytest.mark.parametrize("cause", ["RESET_WORKFLOW", "UNHANDLED_COMMAND"])
def test_a_task_that_failed_without_an_error_of_the_code_blocks_nothing(cause: str) -> None:
    assert block_mark_of(failed({}, cause), pending(2), payloads) is None


def test_a_class_that_is_switched_off_blocks_nothing() -> None:
    failure = {"message": "off", "application_failure_info": {"type": "WorkflowSwitchedOff"}}

    assert block_mark_of(failed(failure), pending(2), payloads) is None
