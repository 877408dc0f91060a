"""What users must not write: each line that is wrong says what each checker calls the error. Never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.tasks import task

from temporalex_django import Err, Ok, Reply, Workflow, WorkflowHandle, activity, api, query


@dataclass
class Order:
    id: int


@activity
def charge(order: Order, currency: str = "EUR") -> int:
    return order.id


@activity
async def ship(order: Order) -> str:
    return ""


class One(Workflow):
    async def run(self, args: Order) -> Ok[int]:
        return Ok(args.id)


class Bare(Workflow):
    async def run(self, args: Order) -> int:  # E: mypy=override pyright=reportIncompatibleMethodOverride
        return args.id


class Plain(Workflow):
    def run(self, args: Order) -> Ok[int]:  # E: mypy=override pyright=reportIncompatibleMethodOverride
        return Ok(args.id)


class NotStatic(Workflow):
    @query("status")
    def status(state: Any) -> Any:  # E: ruff=N805
        return state

    async def run(self, args: Order) -> Ok[int]:
        return Ok(args.id)


class WrongValue(Workflow):
    async def run(self, args: Order) -> Ok[int]:
        return Ok("text")  # E: mypy=arg-type pyright=reportReturnType


class WrongReason(Workflow):
    async def run(self, args: Order) -> Ok[int] | Err[str]:
        return Err(args.id)  # E: mypy=arg-type pyright=reportReturnType


async def awaits_activities(order: Order) -> None:
    await charge("order")  # E: mypy=arg-type pyright=reportArgumentType
    await charge()  # E: mypy=call-arg pyright=reportCallIssue pylint=E1120
    await charge(order, 1)  # E: mypy=arg-type pyright=reportArgumentType
    await charge(order, sku="1")  # E: mypy=call-arg pyright=reportCallIssue
    await charge(order, "EUR", "more")  # E: mypy=call-arg pyright=reportCallIssue pylint=E1121
    text: str = await charge(order)  # E: mypy=assignment pyright=reportAssignmentType
    charge(order) + 1  # E: mypy=operator pyright=reportOperatorIssue
    await ship.options(queue="fast")(1)  # E: mypy=arg-type pyright=reportArgumentType
    ship.options(que="fast")  # E: mypy=call-arg pyright=reportCallIssue
    ship.options(queue=1)  # E: mypy=arg-type pyright=reportArgumentType
    ship.options(atomic=True)  # E: mypy=call-arg pyright=reportCallIssue
    number: int = await ship(order)  # E: mypy=assignment pyright=reportAssignmentType
    print(text, number)


def starts(order: Order) -> None:
    One.start("order")  # E: mypy=call-overload pyright=reportArgumentType
    One.start()  # E: mypy=call-overload pyright=reportCallIssue
    One.start("value", "order")  # E: mypy=call-overload pyright=reportArgumentType
    One.start(order, di="x")  # E: mypy=call-overload pyright=reportCallIssue
    Bare.start(order)  # E: mypy=call-overload,misc pyright=reportAttributeAccessIssue
    text: str = One.start(order).result()  # E: mypy=assignment pyright=reportAssignmentType
    other: WorkflowHandle[str] = One.start(order)  # E: mypy=assignment pyright=reportAssignmentType
    One.signal_with_start("add", 1, "order", id="x")  # E: mypy=arg-type pyright=reportArgumentType
    print(text, other)


async def in_workflow(order: Order) -> None:
    text: str = await api.child(One, order)  # E: mypy=arg-type pyright=reportAssignmentType
    await api.child(One, "order")  # E: mypy=misc pyright=reportArgumentType
    await api.child(One, order, parent_close="forget")  # E: mypy=arg-type pyright=reportArgumentType
    await api.child(order)  # E: mypy=arg-type pyright=reportArgumentType
    api.sleep("soon")  # E: mypy=arg-type,unused-coroutine pyright=reportArgumentType,reportUnusedCoroutine
    await api.parallel(charge(order), 1)  # E: mypy=call-overload pyright=reportArgumentType
    first: str = await api.race(charge(order), ship(order))  # E: mypy=assignment pyright=reportAssignmentType
    count: str = await api.phase(0, timeout=5)  # E: mypy=arg-type,assignment pyright=reportAssignmentType
    print(text, first, count)


async def forgets_to_await(order: Order, handle: WorkflowHandle[int]) -> None:
    charge(order)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.sleep(1)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.wait_for_signal("paid")  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.phase(0, timeout=5)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.parallel([charge(order)])  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.race(charge(order), ship(order))  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.child(One, order)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.wait_condition(lambda: True)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    api.task(total, 1)  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine
    handle.aupdate("add")  # E: mypy=unused-coroutine pyright=reportUnusedCoroutine


def answers(handle: WorkflowHandle[int]) -> None:
    number: int = handle.update("price", returns=str)  # E: mypy=assignment pyright=reportAssignmentType
    other: int = handle.update(price)  # E: mypy=assignment pyright=reportAssignmentType
    handle.update(charge)  # E: mypy=arg-type pyright=reportArgumentType,reportCallIssue
    print(number, other)


def price(sku: str, cart: list[str]) -> Reply[str, list[str]]:
    return Reply(1, cart)  # E: mypy=arg-type pyright=reportReturnType


@task
def total(number: int) -> int:
    return number


@activity(retries=3)  # E: mypy=call-overload,untyped-decorator pyright=reportCallIssue
def with_unknown_option() -> None: ...


@activity(queue=1)  # E: mypy=call-overload,untyped-decorator pyright=reportArgumentType
def with_wrong_option() -> Any: ...
