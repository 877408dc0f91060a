"""The first tries of people who come from elsewhere: each is answered where it happens, with what to write instead.

A row is a try and the parts that its answer has. A part that begins with "next: " is the next step.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from temporalex_django import (
    Approval,
    Async,
    ContinueAsNew,
    Err,
    Escalation,
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Schedule,
    Stop,
    Unique,
    WaitForEvent,
    Workflow,
    activity,
    api,
    errors,
    query,
    signal,
    update,
)
from temporalex_django.testing import WorkflowEnvironment

Row = tuple[str, Callable[[], Any], type[BaseException], tuple[str, ...]]


@activity
def double(number: int) -> int:
    return 2 * number


@activity
def price() -> Decimal:
    return Decimal("1.50")


@activity(retry=RetryPolicy(max_attempts=3, initial_interval=60))
def refused() -> None:
    raise OSError("the bank is closed")


def flow(run: Any, **attributes: Any) -> type[Workflow]:
    return type("FirstTry", (Workflow,), {"run": run, **attributes})


def ran(body: Callable[[], Awaitable[Any]], args: Any = None) -> Any:
    """The result of a run whose code is ``body``."""

    async def run(self: Any, args: Any) -> Any:
        return await body()

    return WorkflowEnvironment().start(flow(run), args).result()


def updated(*, args: Any = 1, name: str = "pay", **handlers: Any) -> Any:
    """The answer to an update of a run whose phase has these handlers."""

    async def body() -> Any:
        return Ok(await api.phase({}, update=handlers))

    async def run(self: Any, args: Any) -> Any:
        return await body()

    return WorkflowEnvironment().start(flow(run)).update(name, args)


async def quiet(self: Any, args: Any) -> Any:
    return Ok(args)


def returning(value: Any) -> Callable[[], Awaitable[Any]]:
    async def body() -> Any:
        return value

    return body


def calling(call: Callable[[], Any]) -> Callable[[], Any]:
    """A run that makes a call and waits for nothing."""

    async def body() -> Any:
        return Ok(call())

    return lambda: ran(body)


def awaiting(call: Callable[[], Any]) -> Callable[[], Any]:
    async def body() -> Any:
        return Ok(await call())

    return lambda: ran(body)


def answered(rows: list[Row]) -> list[str]:
    """What is wrong with the answers to these tries."""
    wrong = []
    for title, attempt, kind, parts in rows:
        try:
            value = attempt()
        except BaseException as exc:
            missing = [part for part in parts if part not in str(exc)]
            if not isinstance(exc, kind) or missing:
                wrong.append(f"{title}: {type(exc).__name__}: {exc} (missing: {missing})")
        else:
            wrong.append(f"{title}: nothing was raised, the value is {value!r}")
    return wrong


# -- definitions -------------------------------------------------------------------------------------------------------


def define(**attributes: Any) -> Callable[[], Any]:
    return lambda: flow(quiet, **attributes)


def method_as_activity() -> None:
    class Mailer:
        @activity
        def send(self, address: str) -> None: ...


def class_method_as_activity() -> None:
    class Mailer:
        @activity
        def send(cls, address: str) -> None: ...  # noqa: N805 - what people write


def generator_as_activity() -> None:
    @activity
    def rows() -> Any:
        yield 1


def query_with_self() -> None:
    class Asked(Workflow):
        @query("state")
        def state(self, state: Any) -> Any:
            return state

        run = quiet


def query_as_class_method() -> None:
    class Asked(Workflow):
        @query("state")
        @classmethod
        def state(cls, state: Any) -> Any:
            return state

        run = quiet


def query_below_staticmethod() -> None:
    class Asked(Workflow):
        @staticmethod
        @query("state")
        def state(state: Any) -> Any:
            return state

        run = quiet


def async_query() -> None:
    class Asked(Workflow):
        @query("state")
        @staticmethod
        async def state(state: Any) -> Any:
            return state

        run = quiet


def handle_query_with_self() -> None:
    class Asked(Workflow):
        def handle_query(self, name: str, args: Any, state: Any) -> Any: ...  # type: ignore[override]

        run = quiet


def plain_run(self: Any, args: Any) -> Any: ...


async def run_without_input(self: Any) -> Any: ...


async def run_with_two(self: Any, a: Any, b: Any) -> Any: ...


async def run_of_callable(self: Any, args: Callable[[], int]) -> Any: ...


async def run_with_options(self: Any, **options: Any) -> Any: ...


async def run_with_names(self: Any, *, order: int) -> Any: ...


def with_order(self: Any, order: int) -> None: ...


def unreadable(fn: Callable[[], int]) -> None: ...


def signal_method() -> None:
    class Paid(Workflow):
        @signal  # type: ignore[arg-type]
        def paid(self, amount: int) -> None: ...

        run = quiet


def update_method() -> None:
    class Paid(Workflow):
        @update  # type: ignore[arg-type]
        async def pay(self, amount: int) -> int:
            return amount

        run = quiet


class Handlers:
    def pay(self, amount: int) -> Any:
        return Stop(amount)


def answering(**options: Any) -> Callable[[], Any]:
    return lambda: update(lambda _, s: Reply(1, s), **options)


REFUSED = errors.WorkflowDefinitionError
DEFINITIONS: list[Row] = [
    ("run is a plain def", lambda: flow(plain_run), REFUSED, ("run must be an `async def`",)),
    ("run without input", lambda: flow(run_without_input), REFUSED, ("(self, args)",)),
    ("run with two inputs", lambda: flow(run_with_two), REFUSED, ("(self, args)",)),
    ("an input that nothing fits", lambda: flow(run_of_callable), REFUSED, ("Callable", "pass plain data")),
    ("a parameter that nothing fits", lambda: activity(unreadable), REFUSED, ("'fn'", "pass plain data")),
    ("signals are a text", define(signals="payment"), REFUSED, ("must be a tuple of names", "('paid',)")),
    ("a misspelt attribute", define(task_que="slow"), REFUSED, ("did you mean 'task_queue'",)),
    (
        "an activity is a method",
        method_as_activity,
        REFUSED,
        ("Mailer.send", "test_first_tries.py:", "a function outside of the class"),
    ),
    ("an activity is a class method", class_method_as_activity, REFUSED, ("a function outside of the class",)),
    ("an activity is a lambda", lambda: activity(lambda n: n), REFUSED, ("test_first_tries.py:", "activity(name=")),
    ("an activity is a class", lambda: activity(SimpleNamespace), REFUSED, ("decorate a function",)),
    ("an activity is a partial", lambda: activity(functools.partial(print)), REFUSED, ("write a `def`",)),
    ("an activity is a generator", generator_as_activity, REFUSED, ("rows", "return a list")),
    ("an activity is decorated twice", lambda: activity(double), REFUSED, ("an activity already",)),
    ("the name is the function", lambda: activity("shop.charge"), REFUSED, ("@activity(name='shop.charge')",)),  # type: ignore[call-overload]
    ("a query has self", query_with_self, REFUSED, ("'state'", "test_first_tries.py:", "write @staticmethod")),
    ("a query is a class method", query_as_class_method, REFUSED, ("write @staticmethod",)),
    ("a query is below @staticmethod", query_below_staticmethod, REFUSED, ("over @staticmethod",)),
    ("a query is async", async_query, REFUSED, ("write a plain `def`",)),
    ("handle_query has self", handle_query_with_self, REFUSED, ("(name, args, state)", "static method")),
    ("a signal handler is a method", signal_method, REFUSED, ("test_first_tries.py:", "outside of the class")),
    ("an update handler is a method", update_method, REFUSED, ("takes (self, amount", "api.phase(state,")),
    ("the name of a signal", lambda: signal("paid"), REFUSED, ('signal={"name": handler}',)),  # type: ignore[arg-type]
    ("an answer whose type is a text", answering(returns="Order"), REFUSED, ("the type of the answer", "'Order'")),
    ("an answer whose type is a reply", answering(returns=Reply[int, dict]), REFUSED, ("the type of the answer",)),
    ("update(name=)", answering(name="pay"), TypeError, ("the name in the phase",)),
    ("update(check=)", answering(check=print), TypeError, ("validator=",)),
    ("no run", lambda: type("Empty", (Workflow,), {}), REFUSED, ("async def run(self, args)", "abstract=True")),
    ("run takes options", lambda: flow(run_with_options), REFUSED, ("run must take (self, args)",)),
    ("run takes names", lambda: flow(run_with_names), REFUSED, ("run must take (self, args)",)),
    ("a class with arguments", define(__init__=with_order), REFUSED, ("__init__ must take self alone", "run")),
    ("a class with retries", define(max_retries=3), REFUSED, ("RetryPolicy(...) at its activities",)),
    ("a class with cron", define(cron="0 2 * * *"), REFUSED, ("Schedule(",)),
    ("a class with a permission", define(permission="shop.pay"), REFUSED, ("'start_permission'",)),
    ("a key with a capital", lambda: Unique("Order"), REFUSED, ("lower-case letters and digits",)),
    (
        "six fields of cron",
        lambda: Schedule("x", flow(quiet), cron="0 30 2 * * *"),
        errors.ScheduleInvalid,
        ("leave out the seconds",),
    ),
    (
        "half a time zone",
        lambda: Schedule("x", flow(quiet), cron="30 2 * * *", tz="Berlin"),
        errors.ScheduleInvalid,
        ("'Europe/Berlin'",),
    ),
]

# -- options -----------------------------------------------------------------------------------------------------------


def policy(**options: Any) -> Callable[[], Any]:
    return lambda: RetryPolicy(**options)


def options(**chosen: Any) -> Callable[[], Any]:
    return lambda: activity(**chosen)


def started(**chosen: Any) -> Callable[[], Any]:
    return lambda: WorkflowEnvironment().start(flow(quiet), **chosen)


def phase(**options: Any) -> Callable[[], Any]:
    return calling(lambda: api.phase({}, **options))


def open_run() -> Any:
    return WorkflowEnvironment().start(flow(quiet))


FAILED, OUTSIDE = errors.WorkflowFailed, errors.OutsideWorkflow
ATTEMPTS = "retry=RetryPolicy(max_attempts=...)"
OPTIONS: list[Row] = [
    *(
        (f"@activity({name}=)", options(**{name: 3}), TypeError, (ATTEMPTS,))
        for name in ("retries", "max_retries", "max_attempts")
    ),
    ("@activity(timeout=)", options(timeout=3), TypeError, ("start_to_close=", "schedule_to_close=")),
    ("@activity(bind=)", options(bind=True), TypeError, ("activity_context()",)),
    ("@activity(time_limit=)", options(time_limit=3), TypeError, ("start_to_close=",)),
    ("@activity(task_queue=)", options(task_queue="slow"), TypeError, ("queue=",)),
    ("@activity(labell=)", options(labell="Charge"), TypeError, ("did you mean label",)),
    ("@activity(nothing=)", options(colour="red"), TypeError, ("has no option colour", "start_to_close")),
    ("options(max_attempts=)", lambda: double.options(max_attempts=3), REFUSED, (ATTEMPTS,)),  # type: ignore[call-arg]
    ("RetryPolicy(max_retries=)", policy(max_retries=3), TypeError, ("max_attempts=", "the first attempt")),
    ("RetryPolicy(backoff_coefficient=)", policy(backoff_coefficient=2), TypeError, ("backoff=",)),
    ("RetryPolicy(initial_delay=)", policy(initial_delay=2), TypeError, ("initial_interval=",)),
    ("Unique(field=)", lambda: Unique(field="order"), TypeError, ('key="..."',)),  # type: ignore[call-arg]
    ("start(customer=)", started(customer=5), TypeError, ("customer", "one value", 'args={"customer": ...}')),
    ("start(workflow_id=)", started(workflow_id="x"), TypeError, ("write id=",)),
    ("start(countdown=)", started(countdown=3), TypeError, ("start_delay=",)),
    ("start(a, b)", lambda: flow(quiet).start(1, 2), TypeError, ("one value",)),
    ("approval(group=)", calling(lambda: api.approval("Refund?", group="x")), errors.WorkflowFailed, ("groups=[",)),  # type: ignore[call-arg]
    (
        "approval(assignee=)",
        calling(lambda: api.approval("Refund?", assignee="x")),
        errors.WorkflowFailed,
        ("users=[",),
    ),  # type: ignore[call-arg]
    ("approval of nobody", calling(lambda: api.approval("Refund?")), errors.WorkflowFailed, ("role, users or groups",)),
    (
        "phase(signals=)",
        calling(lambda: api.phase({}, signals={})),
        errors.WorkflowFailed,
        ('signal={"name": handler}',),
    ),  # type: ignore[call-arg]
    ("Schedule(crontab=)", lambda: Schedule("x", flow(quiet), crontab="1 2 * * *"), TypeError, ("cron=",)),  # type: ignore[call-arg]
    ("Schedule(interval=)", lambda: Schedule("x", flow(quiet), interval=5), TypeError, ("every=",)),  # type: ignore[call-arg]
    ("Schedule(timezone=)", lambda: Schedule("x", flow(quiet), timezone="UTC"), TypeError, ("tz=",)),  # type: ignore[call-arg]
    ("WaitForEvent(due=)", lambda: WaitForEvent("paid", due=1), TypeError, ("until=",)),  # type: ignore[call-arg]
    ("Approval(group=)", lambda: Approval("Refund?", group="x"), TypeError, ("groups=[",)),  # type: ignore[call-arg]
    ("Approval(timeout=)", lambda: Approval("Refund?", timeout=1), TypeError, ("due=",)),  # type: ignore[call-arg]
    ("Escalation(group=)", lambda: Escalation(after=1, group="x"), TypeError, ("groups=[",)),  # type: ignore[call-arg]
    ("start of a function", lambda: WorkflowEnvironment().start(quiet), TypeError, ("pass the class",)),
    ("hold of a function", lambda: WorkflowEnvironment().hold(quiet), TypeError, ("@activity",)),  # type: ignore[arg-type]
    ("mock with a value", lambda: WorkflowEnvironment().mock(double, 5), TypeError, ("lambda *args: 5",)),  # type: ignore[arg-type]
    ("an instant as a timeout", phase(timeout=datetime(2027, 1, 1, tzinfo=UTC)), FAILED, ("write until=",)),
    (
        "an instant as a pause",
        calling(lambda: api.sleep(datetime(2027, 1, 1, tzinfo=UTC))),
        FAILED,
        ("write sleep_until(...)",),
    ),  # type: ignore[arg-type]
    ("child(customer=)", calling(lambda: api.child(flow(quiet), customer=5)), FAILED, ('args={"customer": ...}',)),  # type: ignore[call-arg]
    *(
        (f"an activity called with {name}=", awaiting(functools.partial(double, 1, **{name: 3})), FAILED, parts)
        for name, parts in {
            "retry": ("double.options(...)(...)", "retry=..."),
            "timeout": ("double.options(...)(...)", "start_to_close="),
            "countdown": ("double.options(...)(...)", "api.sleep"),
        }.items()
    ),
    ("update(amount=)", lambda: open_run().update("pay", amount=5), TypeError, ('{"amount": ...}', "one value")),  # type: ignore[call-overload]
    ("signal(amount=)", lambda: open_run().signal("pay", amount=5), TypeError, ('{"amount": ...}',)),  # type: ignore[call-arg]
    ("query(limit=)", lambda: open_run().query("pay", limit=5), TypeError, ('{"limit": ...}',)),  # type: ignore[call-overload]
    ("update(user=)", lambda: open_run().update("pay", user=5), TypeError, ("by=",)),  # type: ignore[call-overload]
    ("child(workflow_id=)", calling(lambda: api.child(flow(quiet), workflow_id="x")), errors.WorkflowFailed, ("id=",)),  # type: ignore[call-arg]
]

# -- calls -------------------------------------------------------------------------------------------------------------


@activity
def calls_an_activity(number: int) -> Any:
    return double(number)


@activity
async def awaits_an_activity(number: int) -> Any:
    return await double(number)


@activity
def sleeps_durably() -> None:
    api.sleep(5)


@activity(atomic=True)
def calls_in_a_transaction(number: int) -> Any:
    return double(number)


NAMELESS = activity(local=True)(lambda number: number)


async def plain_saga() -> Any:
    with api.saga():  # type: ignore[attr-defined]
        return Ok()


async def plain_shield() -> Any:
    with api.shield():  # type: ignore[attr-defined]
        return Ok()


async def called_undo() -> Any:
    async with api.saga() as saga:
        saga.add(double(1))  # type: ignore[arg-type]
    return Ok()


async def forgotten_sleep() -> Any:
    api.sleep(5)
    return Ok()


async def compensation_without_argument() -> Any:
    async with api.saga() as saga:
        saga.add(double)  # type: ignore[call-arg]
    return Ok()


async def helper() -> int:
    return 1


BRANCHES: list[Row] = [
    ("a set of branches", calling(lambda: api.parallel({double(1), double(2)})), FAILED, ("order", "write a list")),
    ("a race of a set", calling(lambda: api.race(frozenset([double(1)]))), FAILED, ("race: a set", "write a list")),
    ("an activity as a branch", calling(lambda: api.parallel(double, double)), FAILED, ("takes (number", "lambda:")),
    ("a branch with a parameter", calling(lambda: api.race([lambda n: double(n)])), FAILED, ("takes (n)", "lambda:")),  # type: ignore[list-item,misc]
    (
        "one call many times",
        calling(lambda: api.parallel([double(1)] * 3)),
        FAILED,
        ("twice", "double", "call it again"),
    ),
    ("parallel(return_exceptions=)", calling(lambda: api.parallel(return_exceptions=1)), FAILED, ("raise_errors=",)),  # type: ignore[call-overload]
    ("parallel(max_concurrency=)", calling(lambda: api.parallel(max_concurrency=1)), FAILED, ("write limit=",)),  # type: ignore[call-overload]
    ("race(timeout=)", calling(lambda: api.race(helper, timeout=1)), FAILED, ("api.race(..., api.sleep(...))",)),  # type: ignore[call-overload]
    ("sleep(days=)", calling(lambda: api.sleep(days=3)), FAILED, ("api.sleep(timedelta(...))",)),  # type: ignore[call-arg]
    ("a condition that is a value", calling(lambda: api.wait_condition(True)), FAILED, ("lambda:", "not True")),  # type: ignore[arg-type]
    ("a condition of two", calling(lambda: api.wait_condition(lambda a, b: a)), FAILED, ("without parameters",)),  # type: ignore[arg-type,misc]
    ("wait_condition(deadline=)", calling(lambda: api.wait_condition(bool, deadline=1)), FAILED, ("until=",)),  # type: ignore[call-arg]
    ("publish without a parameter", phase(timeout=1, publish=lambda: 1), FAILED, ("publish", "(state)", "takes ()")),
    ("publish with two", phase(timeout=1, publish=lambda a, b: 1), FAILED, ("publish", "takes (a, b)")),
    ("a state without a copy", calling(lambda: api.phase((n for n in ()), timeout=1)), FAILED, ("state", "plain data")),
    (
        "a compensation without its argument",
        lambda: ran(compensation_without_argument),
        FAILED,
        ("takes (number", "saga.add(undo, *args)"),
    ),
]
CALLS: list[Row] = [
    ("a forgotten await in a sum", calling(lambda: double(1) + 1), FAILED, ("await", "double(...)")),  # type: ignore[operator]
    ("a forgotten await", lambda: ran(forgotten_sleep), FAILED, ("await sleep(...)",)),
    ("asyncio.sleep", awaiting(lambda: asyncio.sleep(1)), FAILED, ("use api.sleep()", "test_first_tries.py")),
    ("asyncio.gather", awaiting(lambda: asyncio.gather(double(1))), FAILED, ("api.parallel",)),  # type: ignore[arg-type]
    ("datetime.now", calling(lambda: datetime.now(UTC)), FAILED, ("use api.now()",)),
    ("time.sleep", calling(lambda: time.sleep(1)), FAILED, ("use api.sleep()",)),  # type: ignore[func-returns-value]
    ("uuid4", calling(uuid.uuid4), FAILED, ("use api.uuid4()",)),
    ("random", calling(random.random), FAILED, ("use api.random()",)),
    ("an activity outside", lambda: double(1), OUTSIDE, ("from run()",)),
    ("a primitive outside", lambda: api.sleep(1), OUTSIDE, ("from run()",)),
    (
        "an activity in an activity",
        awaiting(lambda: calls_an_activity(1)),
        FAILED,
        ("double", "in an activity", "in run()"),
    ),
    (
        "an activity in an async activity",
        awaiting(lambda: awaits_an_activity(1)),
        FAILED,
        ("`double.__wrapped__(...)`",),
    ),
    ("an activity in an atomic activity", awaiting(lambda: calls_in_a_transaction(1)), FAILED, ("in an activity",)),
    (
        "a primitive in an activity",
        awaiting(lambda: sleeps_durably()),
        FAILED,
        ("api.sleep was called in an activity",),
    ),
    ("a lambda without a name", awaiting(lambda: NAMELESS(1)), FAILED, ("test_first_tries.py:", "activity(name=")),
    ("too few arguments", awaiting(lambda: double()), FAILED, ("double: missing a required argument: 'number'",)),  # type: ignore[call-arg]
    ("an argument of another type", awaiting(lambda: double("x")), FAILED, ("'number' of", "double", "`int`")),  # type: ignore[arg-type]
    ("delay", lambda: double.delay(1), AttributeError, ("await double(...)", ".start(")),  # type: ignore[attr-defined]
    ("apply_async", lambda: double.apply_async((1,)), AttributeError, ("await double(...)",)),  # type: ignore[attr-defined]
    ("enqueue", lambda: double.enqueue(1), AttributeError, ("await double(...)",)),  # type: ignore[attr-defined]
    ("with_options", lambda: double.with_options(retries=3), AttributeError, ("double.options(...)(...)",)),  # type: ignore[attr-defined]
    ("no attribute", lambda: double.colour, AttributeError, ("test_first_tries.double", "'colour'")),  # type: ignore[attr-defined]
    *(
        (
            f"a workflow has no {name}",
            lambda name=name: getattr(flow(quiet), name),
            AttributeError,
            (name, "FirstTry.start("),
        )
        for name in ("delay", "apply_async", "enqueue")
    ),
    *(
        (f"api.{name}", lambda name=name: getattr(api, name), AttributeError, (name, *parts))
        for name, parts in {
            "execute_activity": ("called like a function", ".options("),
            "execute_child_workflow": ("api.child(",),
            "gather": ("api.parallel(",),
            "wait_for": ("timeout=",),
            "continue_as_new": ("return ContinueAsNew(args)",),
            "sleeep": ("did you mean sleep",),
        }.items()
    ),
    *(
        (f"handle.{name}", lambda name=name: getattr(open_run(), name), AttributeError, (name, part))
        for name, part in {
            "get_result": "write result()",
            "wait": "write result()",
            "revoke": "cancel()",
            "state": "describe()",
            "describee": "did you mean describe",
        }.items()
    ),
    ("with saga", lambda: ran(plain_saga), FAILED, ("`async with api.saga()`",)),
    ("with shield", lambda: ran(plain_shield), FAILED, ("`async with api.shield()`",)),
    ("a compensation that was called", lambda: ran(called_undo), FAILED, ("saga.add(undo, *args)",)),
    ("a time without a zone", awaiting(lambda: api.sleep_until(datetime(2027, 1, 1))), FAILED, ("tzinfo=ZoneInfo(",)),  # noqa: DTZ001
    ("a phase without an end", awaiting(lambda: api.phase({})), FAILED, ("could never end",)),
    ("a text as a duration", lambda: WorkflowEnvironment().advance("30 days"), TypeError, ("a number of seconds",)),  # type: ignore[arg-type]
]

# -- values, handlers and messages -------------------------------------------------------------------------------------


def signalled(handler: Any) -> None:
    """Raise what became of a signal whose handler does not work."""

    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.phase({}, signal={"paid": handler}))

    handle = WorkflowEnvironment().start(flow(run))
    handle.signal("paid", 1)
    (failed,) = handle.describe().failed_messages
    raise TypeError(failed.message)


def asked(name: str) -> Any:
    return WorkflowEnvironment().start(flow(quiet)).query(name)


def taken_id() -> None:
    async def run(self: Any, args: Any) -> Any:
        await api.sleep(5)
        return Ok()

    env, cls = WorkflowEnvironment(), flow(run)
    env.start(cls, id="a")
    env.start(cls, id="a")


def before_a_phase() -> Any:
    async def run(self: Any, args: Any) -> Any:
        await api.sleep(5)
        return Ok()

    return WorkflowEnvironment().start(flow(run)).update("pay", 1)


@activity
def wrapped(kind: str) -> Any:
    return Ok(1) if kind == "ok" else Err("declined")


async def replying() -> Any:
    return Reply(1, {})


class FakeRow:
    _meta, pk = None, 5


def signal_as_update() -> Any:
    async def run(self: Any, args: Any) -> Any:
        return Ok(await api.phase({}, signal={"paid": lambda _, s: Stop(s)}))

    return WorkflowEnvironment().start(flow(run)).update("paid")


def unpublished() -> Any:
    class Asked(Workflow):
        @query("total")
        @staticmethod
        def total(state: Any) -> Any:
            return state["total"]

        async def run(self, args: Any) -> Any:
            return Ok(await api.sleep(5))

    return WorkflowEnvironment().start(Asked).query("total")


def forgotten_helper() -> Any:
    coroutine = helper()
    try:
        return ran(returning(Ok({"n": coroutine})))
    finally:
        coroutine.close()


CLOSED = errors.WorkflowClosed
MESSAGES: list[Row] = [
    ("a bare value", lambda: ran(returning(5)), FAILED, ("Ok(result)",)),
    ("no return", lambda: ran(returning(None)), FAILED, ("Ok(result)",)),
    ("a Decimal of an activity", lambda: ran(returning(Ok(Decimal(1)))), FAILED, ("-> Ok[...]", "str(value)")),
    (
        "a Decimal that is published",
        calling(lambda: api.publish_state({"a": Decimal(1)})),
        FAILED,
        ("`$.a`", "str(value)"),
    ),  # type: ignore[func-returns-value]
    ("an Ok of an activity", awaiting(lambda: wrapped("ok")), FAILED, ("wrapped has Ok(...)", "value.value")),
    ("an Err of an activity", awaiting(lambda: wrapped("err")), FAILED, ("Err(...)", "by an exception")),
    ("a coroutine in a result", forgotten_helper, FAILED, ("write `await`", "`$.n`")),
    (
        "an end inside a result",
        lambda: ran(returning(Ok(ContinueAsNew(1)))),
        FAILED,
        ("ContinueAsNew(...)", "run alone"),
    ),
    (
        "a reply inside a reply",
        lambda: updated(pay=lambda _, s: Reply(Stop(s), s)),
        errors.UpdateFailed,
        ("Stop(...)", "value.response"),
    ),
    (
        "a reply of a background function",
        lambda: updated(pay=lambda _, s: Async(replying, s)),
        errors.UpdateFailed,
        ("Reply(...)", "value.response"),
    ),
    (
        "a datetime in a reply",
        lambda: updated(pay=lambda _, s: Reply(api.now(), s)),
        errors.UpdateFailed,
        ("isoformat()",),
    ),
    ("a bare reply", lambda: updated(pay=lambda n, _: n + 1), errors.UpdateFailed, ("Reply(response, state)",)),
    ("a signal with a reply", lambda: signalled(lambda _, s: Reply(1, s)), TypeError, ("NoReply(state)",)),
    (
        "a handler with one parameter",
        lambda: updated(pay=lambda state: NoReply(state)),
        CLOSED,
        ("update 'pay' must be callable as (args, state)", "test_first_tries.py:", "takes (state)"),
    ),
    (
        "a validator with one parameter",
        lambda: updated(pay=update(lambda _, s: Stop(s), validator=lambda n: None)),  # type: ignore[arg-type,misc]
        CLOSED,
        ("the validator of update 'pay'", "takes (n)"),
    ),
    (
        "a handler is a method without its object",
        lambda: updated(pay=Handlers.pay),
        CLOSED,
        ("update 'pay'", "test_first_tries.py:", "outside of the class"),
    ),
    (
        "a signal handler with one parameter",
        lambda: updated(pay=lambda _, s: Stop(s), more=signal(lambda state: NoReply(state))),  # type: ignore[arg-type,misc]
        CLOSED,
        ("(args, state)", "takes (state)"),
    ),
    (
        "a validator that returns False",
        lambda: updated(pay=update(lambda _, s: Stop(s), validator=lambda _, s: False)),
        errors.UpdateRejected,
        ("None, Ok(...) or Err(reason)",),
    ),
    ("an update before a phase", before_a_phase, errors.NotAccepting, ("accepted now: none",)),
    ("a misspelt update", lambda: updated(pay=lambda _, s: Stop(s), name="pya"), errors.NotAccepting, ("now: pay",)),
    ("an update of a signal", signal_as_update, errors.NotAccepting, ("'paid' is a signal", "signal()")),
    ("a query before the first state", unpublished, errors.QueryFailed, ("has published none",)),
    ("a row as a value", lambda: Unique("order").id_for(FakeRow()), errors.InvalidId, ("pass its pk",)),
    ("update(returns='Order')", lambda: open_run().update("pay", returns="Order"), REFUSED, ("'Order'", "a type")),
    ("update(returns=5)", lambda: open_run().update("pay", returns=5), REFUSED, ("a type", "5")),
    ("query(returns=object())", lambda: open_run().query("pay", returns=open), REFUSED, ("a type",)),
    ("an unknown query", lambda: asked("status"), errors.UnknownQuery, ("it answers: none",)),
    ("an id in use", taken_id, errors.AlreadyRunning, ("use its handle, or another id",)),
    (
        "a value with a hyphen",
        lambda: WorkflowEnvironment().start(flow(quiet, unique=Unique(key="sub")), 1, value="acme-1"),
        errors.InvalidId,
        ("'acme-1'", "write 'acme1'", "uuid5", "Choose ids"),
    ),
    (
        "an attribute that is not declared",
        started(search_attributes={"tenant": "a"}),
        errors.PayloadError,
        ("'tenant'", "declared: none"),
    ),
    (
        "a result of a failing activity",
        awaiting(lambda: refused()),
        errors.ResultTimeout,
        ("attempt 1 of 3 of", "refused", "OSError: the bank is closed", "next one is at 2026-01-01T00:01:00"),
    ),
    ("a result of a run that sleeps", awaiting(lambda: api.sleep(100)), errors.ResultTimeout, ("timer", "advance")),
    ("continue without an input", lambda: ran(returning(ContinueAsNew)), FAILED, ("ContinueAsNew(args)",)),
    ("an error as a result", lambda: ran(returning(Err("closed"))), FAILED, ("closed",)),
]


@pytest.mark.parametrize(
    "rows",
    [DEFINITIONS, OPTIONS, CALLS, BRANCHES, MESSAGES],
    ids=["definitions", "options", "calls", "branches", "messages"],
)
def test_a_first_try_is_answered_with_what_to_write(rows: list[Row]) -> None:
    assert answered(rows) == []


def test_a_query_of_a_mixin_answers() -> None:
    class Totals:
        @query("total")
        @staticmethod
        def total(state: Any) -> Any:
            return state["total"]

    class Summed(Totals, Workflow):
        async def run(self, args: Any) -> Any:
            api.publish_state({"total": args})
            await api.sleep(5)
            return Ok()

    assert WorkflowEnvironment().start(Summed, 7).query("total") == 7
