"""Each error of a handle on each backend: the same type and the same attributes, wherever the run lives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import override_settings

from temporalex_django import (
    Err,
    Ok,
    Reply,
    RetryPolicy,
    Stop,
    Unique,
    Workflow,
    WorkflowHandle,
    activity,
    api,
    errors,
    query,
    update,
)
from temporalex_django.backends.protocol import RunBackend
from temporalex_django.conf import get_settings
from temporalex_django.errors import TemporalexError
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.fleet.switches import SwitchOff
from temporalex_django.operations.human_tasks.operations import Claim
from temporalex_django.operations.registry import STEERING
from temporalex_django.testing import drain
from tests.support.people import stored
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

START = "temporalex_django.start_instance"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"


@activity(retry=RetryPolicy(initial_interval=3600.0))
def refuse_in_matrix(number: int) -> int:
    raise ConnectionError("the gateway does not answer")


def judge_number(number: int, total: int) -> Any:
    return Err("negative") if number < 0 else Ok(None)


def divide(number: int, total: int) -> Any:
    return Reply(total // number, total)


def fail_signal(payload: Any, total: int) -> Any:
    raise LookupError(payload)


class ErrorMatrix(Workflow):
    signals = ("stop", "break")

    @query("total")
    @staticmethod
    def total(state: Any) -> Any:
        return state["total"]

    @query("broken")
    @staticmethod
    def broken(state: Any) -> Any:
        raise KeyError("nothing")

    async def run(self, args: Any) -> Any:
        api.publish_state({"total": 0})
        if args == "fail":
            return Err({"code": 7})
        if args == "sleep":
            await api.sleep(timedelta(days=1))
        if args == "charge":
            await refuse_in_matrix(5)
        if args == "ask":
            await api.approval("Pay?", users=["ann", "bob"])
        if args == "four-eyes":
            await api.approval("Pay?", users=["ann", "bob"], four_eyes=True)
        return Ok(
            await api.phase(
                0,
                signal={"stop": lambda _, total: Stop(total), "break": fail_signal},
                update={"divide": update(divide, validator=judge_number)},
            )
        )


class OtherMatrix(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class TypedMatrix(Workflow):
    async def run(self, args: int) -> Any:
        return Ok(args)


class FirstOfPair(OtherMatrix):
    unique = Unique(key="pair", scope="workflow")


class SecondOfPair(OtherMatrix):
    unique = Unique(key="pair", scope="workflow")


class ShortMatrix(Workflow):
    execution_timeout = timedelta(seconds=1)

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Case(NamedTuple):
    """``provoke`` makes ``method`` of the backend raise ``error``, whose attributes are then as in ``attributes``."""

    method: str
    error: type[TemporalexError]
    provoke: Callable[[], Any]
    attributes: dict[str, Any] = {}


def started(args: Any = None, **options: Any) -> Any:
    handle = ErrorMatrix.start(args, id="matrix", **options)
    drain()
    return handle


def closed() -> Any:
    handle = started()
    handle.terminate("over")
    return handle


def person(name: str, *permissions: str) -> Any:
    return stored(name, *permissions)


def start_without_permission() -> Any:
    return ErrorMatrix.start(id="matrix", by=person("eve"))


def taken_message() -> Any:
    handle = started()
    handle.update("divide", 2, id="once")
    return handle.update("other", 2, id="once")


def taken_signal() -> Any:
    handle = started("sleep")
    handle.signal("stop", 2, id="once")
    return handle.signal("break", 2, id="once")


def switched_off() -> Any:
    handle = started()
    SwitchOff("workflow", "ErrorMatrix", reason="maintenance").execute()
    return handle.update("divide", 2)


def paused() -> Any:
    handle = started()
    handle.pause()
    return handle.update("divide", 2)


def decided_twice() -> Any:
    handle, ann = started("ask"), person("ann")
    task = handle.human_tasks()[0]
    handle.decide("approved", by=ann)
    return handle.decide("approved", task=str(task.id), by=ann)


def claimed_by_another() -> Any:
    handle, ann, bob = started("ask"), person("ann"), person("bob")
    Claim(HumanTask.objects.get(), by=Actor(user=bob)).execute()
    return handle.decide("approved", by=ann)


def started_by_decider() -> Any:
    ann = person("ann", START)
    handle = ErrorMatrix.start("four-eyes", id="matrix", by=ann)
    drain()
    return handle.decide("approved", by=ann)


def ambiguous() -> Any:
    FirstOfPair.start("1")
    SecondOfPair.start("1")
    return WorkflowHandle("pair::1").signal("go")


def timed_out() -> Any:
    handle = ShortMatrix.start(id="matrix")

    def has_closed() -> bool:
        drain()
        return bool(handle.describe().status == "timed_out")

    if get_settings().BACKEND == "tables":  # workers look for it
        wait_for(has_closed)
    return handle.result(timeout=20)


def failed_by_result() -> Any:
    return started("fail").result(timeout=20)


def cancelled() -> Any:
    handle = started("sleep")
    handle.cancel("enough")
    drain()
    return handle.result(timeout=20)


def wrong_settings() -> Any:
    with override_settings(TEMPORALEX={"NO_SUCH_SETTING": 1}):
        return ErrorMatrix.start(id="matrix")


CASES: list[Case] = [
    Case("start", errors.AlreadyRunning, lambda: started() and started(), {"pending": False}),
    Case("start", errors.AlreadyEnded, lambda: closed() and started(on_closed="reject")),
    Case("start", errors.InvalidId, lambda: ErrorMatrix.start(id="a/b")),
    Case("start", errors.InvalidStart, lambda: ErrorMatrix.start(id="m", start_delay=-1)),
    Case("start", errors.InvalidHeaders, lambda: ErrorMatrix.start(id="m", headers={"a": 1})),
    Case("start", errors.PayloadError, lambda: TypedMatrix.start("seven", id="m")),
    Case("start", errors.ActionNotPermitted, start_without_permission),
    Case("start", errors.UnknownVersion, lambda: ErrorMatrix.start(id="m", version=9)),
    Case("start", errors.NotConfigured, wrong_settings),
    Case("start_many", errors.PayloadError, lambda: TypedMatrix.start_many([1, "seven"])),
    Case("send", errors.UnknownSignal, lambda: started().signal("unknown"), {"known": ["break", "stop"]}),
    Case("send", errors.WorkflowClosed, lambda: closed().signal("stop")),
    Case("send", errors.PayloadError, lambda: started().signal("stop", object())),
    Case("send", errors.MessageIdTaken, taken_signal),
    Case("send", errors.InvalidHeaders, lambda: started().signal("stop", headers={"a": "x" * 5_000})),
    Case("send", errors.AmbiguousId, ambiguous),
    Case("send", errors.WorkflowNotFound, lambda: ErrorMatrix.handle("nobody").signal("stop")),
    Case(
        "request",
        errors.NotAccepting,
        lambda: started().update("unknown"),
        {"accepts": {"signals": ["stop", "break"], "updates": ["divide"]}},
    ),
    Case("request", errors.UpdateRejected, lambda: started().update("divide", -1), {"reason": "negative"}),
    Case("request", errors.UpdateFailed, lambda: started().update("divide", 0)),
    Case("request", errors.UpdateTimeout, lambda: started().update("divide", 2, mode="worker", timeout=0.0)),
    Case("request", errors.WorkflowClosed, lambda: closed().update("divide", 1)),
    Case("request", errors.MessageIdTaken, taken_message),
    Case("request", errors.WorkflowSwitchedOff, switched_off),
    Case("request", errors.RunPaused, paused),
    Case("request", errors.HumanTaskClosed, decided_twice),
    Case("request", errors.HumanTaskClaimed, claimed_by_another),
    Case("request", errors.HumanTaskNotFound, lambda: started().decide("approved", by=person("ann"))),
    Case("request", errors.FourEyes, started_by_decider),
    Case("request", errors.ActionNotPermitted, lambda: started("ask").decide("approved", by=person("eve"))),
    Case("request", errors.ResumeRefused, lambda: started().resume("go")),
    Case("query", errors.UnknownQuery, lambda: started().query("unknown")),
    Case("query", errors.QueryFailed, lambda: started().query("broken")),
    Case("closing", errors.WorkflowFailed, failed_by_result, {"reason": {"code": 7}}),
    Case("closing", errors.WorkflowTerminated, lambda: closed().result(timeout=20), {"reason": "over"}),
    Case("closing", errors.WorkflowCancelled, cancelled),
    Case("closing", errors.WorkflowTimedOut, timed_out),
    Case("closing", errors.ResultTimeout, lambda: started().result(timeout=0.05)),
    Case("send", errors.NotCancellable, lambda: FirstOfPair.start("1").terminate() or FirstOfPair.cancel("1")),
    Case("terminate", errors.WorkflowClosed, lambda: closed().terminate()),
    Case("pause", errors.WorkflowClosed, lambda: closed().pause()),
    Case("unpause", errors.ActionNotPossible, lambda: started().unpause()),
    Case("skip_timer", errors.ActionNotPossible, lambda: started("sleep").skip_timer(9)),
    Case("retry_activity", errors.ActionNotPossible, lambda: started("charge").retry_activity(9)),
    Case("complete_activity", errors.PayloadError, lambda: started("charge").complete_activity(1, "no number")),
    Case("fail_activity", errors.ActionNotPossible, lambda: started("charge").fail_activity(9, "no")),
    Case("reset", errors.ActionNotPossible, lambda: started().reset(to=99)),
    Case("redeliver", errors.ActionNotPossible, lambda: started().redeliver()),
    Case("discard", errors.ActionNotPossible, lambda: started().discard()),
    Case("delete", errors.ActionNotPossible, lambda: started().delete()),
    Case("history", errors.WorkflowNotFound, lambda: ErrorMatrix.handle("nobody").history()),
]

#: Errors that no call of a handle raises, each with where they come from instead.
NOT_OF_HANDLES = {
    "error": "the base class",
    "activity_failure": "code of a run gets it from an activity",
    "activity_not_found": "a worker that lacks the code raises it",
    "application": "code of the project raises it",
    "changed": "REST and the admin compare versions of a run",
    "child_workflow_failure": "code of a run gets it from a child",
    "deadlock": "code that loops gets it",
    "determinism_violation": "the guard raises it in code of a run",
    "engine_changed": "a replay raises it",
    "engine_not_found": "engines without Django raise it",
    "form_changed": "the forms of the admin and of pages compare what a person saw",
    "idempotency_key_reused": "REST raises it",
    "outcome_unknown": "REST and the admin raise it",
    "interceptor_failed": "an interceptor of the project raises it",
    "judging_failed": "a check of permissions raises it",
    "key_missing": "a payload codec of the project raises it",
    "nesting": "code of a run that calls an operation gets it",
    "nondeterminism": "a replay raises it",
    "not_awaited": "code of a run gets it",
    "outside_workflow": "a primitive that is called elsewhere raises it",
    "retry_later": "an activity raises it",
    "schedule_invalid": "schedules are rows on both backends",
    "schedule_not_found": "schedules are rows on both backends",
    "task_cancelled": "code of a background task gets it",
    "task_not_found": "background tasks are rows on both backends",
    "unexpected": "code of a run raises it",
    "unknown_workflow": "a process that lacks the class raises it",
    "worker_not_found": "operations on workers raise it",
    "workflow_definition": "a wrong class raises it when it is defined",
}
#: Errors of the tables alone, each with what a cluster does instead.
NOT_ON_A_CLUSTER = {
    "blocked": "a task that fails is tried again, and an update of it waits until its timeout",
    "too_many_updates": "the client sends ten updates of a run at a time, and the others wait",
}
#: Errors of a cluster alone, each with what the tables do instead.
NOT_ON_THE_TABLES = {
    "query_timeout": "a run answers from its rows, without a worker",
    "history_gone": "the history is deleted together with the rows of the run",
}
#: Methods that raise nothing of their own.
WITHOUT_ERRORS = {
    "open_tasks": "descriptions and pages catch what it raises, and say that the cluster has not answered",
    "flush": "it raises what the sent row was refused with, which is an error of start or send",
    "replace_input": "a debounced start raises the errors of start",
    "cancel": "a request is sent as a message; a graph is closed as by terminate",
    "close_locked": "it cancels a run that has not begun, whose chain is locked",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method} {case.error.code}")
def test_a_call_raises_the_same_error_on_both_backends(case: Case) -> None:
    with pytest.raises(case.error) as caught:
        case.provoke()
    assert type(caught.value) is case.error
    for name, value in case.attributes.items():
        assert getattr(caught.value, name) == value


def test_the_table_has_each_error_and_each_method() -> None:
    codes = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    raised = {case.error.code for case in CASES}
    others = NOT_OF_HANDLES.keys() | NOT_ON_A_CLUSTER.keys() | NOT_ON_THE_TABLES.keys()
    assert codes == raised | others
    assert not raised & others
    methods = {name for name, _ in inspect.getmembers(RunBackend, inspect.isfunction) if not name.startswith("_")}
    operations = {name for name, action in STEERING.items() if action.cluster_refusal() is None}
    assert (methods | operations) - {"operate"} == {case.method for case in CASES} | WITHOUT_ERRORS.keys()
