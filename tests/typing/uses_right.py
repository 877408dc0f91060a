"""What users write and type checkers must take, with the types that they must see. Never run."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypedDict, assert_type

from django.tasks import task

from temporalex_django import (
    Async,
    ContinueAsNew,
    Done,
    Err,
    Event,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    RetryPolicy,
    Step,
    Stop,
    TimedOut,
    Unique,
    VersionedWorkflow,
    Workflow,
    WorkflowHandle,
    activity,
    api,
    errors,
    query,
    signal,
    transit,
    update,
)
from temporalex_django.testing import WorkflowEnvironment


@dataclass
class Order:
    id: int
    note: str = ""


class Total(TypedDict):
    cents: int


# -- activities


@activity
def charge(order: Order, currency: str = "EUR", *, dry: bool = False) -> int:
    return order.id


@activity(retry=RetryPolicy(max_attempts=3), start_to_close=timedelta(seconds=30), queue="slow")
async def ship(order: Order) -> str:
    return order.note


@activity(atomic=True)
def book(*lines: int) -> None: ...


@activity
def untyped(order):  # type: ignore[no-untyped-def]
    return order


async def awaits_activities(order: Order) -> None:
    kept: Awaitable[int] = charge(order)
    assert_type(await kept, int)
    assert_type(await charge(order), int)
    assert_type(await charge(order, "USD"), int)
    assert_type(await charge(order=order, currency="USD", dry=True), int)
    assert_type(await ship(order), str)
    assert_type(await ship.options(queue="fast", retry=None, heartbeat=5, local=False)(order), str)
    assert_type(await book(1, 2, 3), None)
    assert_type(charge.__wrapped__(order), Any)
    assert_type(await untyped(order), Any)


# -- results of run


class Plain(Workflow):
    async def run(self, args):  # type: ignore[no-untyped-def]
        return Ok(await charge(Order(1)))


class Anything(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(args)


class One(Workflow):
    @query("status")
    @staticmethod
    def status(state: Any) -> Any:
        return state

    @query("lines")
    @staticmethod
    def lines(state: dict[str, list[str]], args: int) -> list[str]:
        return state["lines"][args:]

    async def run(self, args: Order) -> Ok[int]:
        return Ok(await charge(args))


class Failing(Workflow):
    async def run(self, args: Order) -> Ok[str] | Err[str]:
        return Ok(args.note) if args.note else Err("no note")


class Endless(Workflow):
    async def run(self, args: Total | None) -> Ok[Total] | ContinueAsNew:
        return ContinueAsNew({"cents": 1}) if args is None else Ok(args)


class Nothing(Workflow):
    async def run(self, _: None) -> Ok[None]:
        return Ok()


class ByValue(Workflow):
    unique = Unique(key="order", scope="workflow")

    async def run(self, args: Order) -> Ok[int]:
        return Ok(args.id)


class Weigh(Step):
    events = ("weighed",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("weighed", {"grams": 5})


class Graph(GraphWorkflow):
    unique = Unique(key="parcel")
    initial = Weigh

    @transit(Weigh, "weighed", targets=[Done])
    @staticmethod
    def route(context: Any) -> Any:
        return Done


class Dispatcher(VersionedWorkflow):
    versions = {1: One}
    current = 1


# -- handles


def starts(order: Order) -> None:
    assert_type(One.start(order), WorkflowHandle[int])
    assert_type(One.start(order, id="order-1", subject=object()).result(), int)
    assert_type(Failing.start(args=order).result(timeout=3), str)
    assert_type(Endless.start().result(), Total)
    assert_type(Endless.start({"cents": 1}).result(), Total)
    assert_type(Anything.start(1, id="a").result(), Any)
    assert_type(Anything.start().result(), Any)
    assert_type(ByValue.start("42", order).result(), int)
    assert_type(ByValue.start(42, order).result(), int)  # the key of a row
    assert_type(ByValue.start(order, value=42).result(), int)
    assert_type(ByValue.get("42").result(), int)
    assert_type(ByValue.get(42).result(), int)
    assert_type(Graph.start("42", {"order_id": 42}).result(), Any)
    assert_type(Graph.start("42", {"order_id": 42}, telemetry={"tenant": "a"}).status, str)
    assert_type(Dispatcher.start(order, version=1).result(), Any)
    assert_type(One.signal_with_start("add", {"sku": 1}, order, id="order-1").result(), int)
    assert_type(One.handle("order-1").result(), int)
    assert_type(WorkflowHandle("order-1"), WorkflowHandle[Any])
    assert_type(WorkflowHandle("order-1", workflow=One).result(), int)
    Nothing.start().result()
    Plain.start(1).result()

    handle: WorkflowHandle = One.start(order)
    handle.signal("add", 1)
    assert_type(handle.update("add", {"sku": 1}, timeout=5), Any)
    assert_type(handle.query("status"), Any)
    handles: list[WorkflowHandle[int]] = [One.start(order), WorkflowHandle("order-2")]
    assert_type(handles[0].result(), int)


async def starts_async(order: Order) -> None:
    handle = await One.astart(order)
    assert_type(handle, WorkflowHandle[int])
    assert_type(await handle.aresult(), int)
    assert_type(await (await ByValue.astart("42", order)).aresult(), int)
    assert_type(await (await One.asignal_with_start("add", 1, order, id="x")).aresult(), int)


def of_any_class(flow: type[Workflow]) -> None:
    assert_type(flow.start({"order_id": 1}).result(), Any)


# -- in workflow code


class Parent(Workflow):
    async def run(self, args: Order) -> Ok[dict[str, Any]] | Err[str]:
        count = await api.child(One, args, id="child")
        assert_type(count, int)
        assert_type(await api.child(Failing, args, parent_close="abandon"), str)
        assert_type(await api.child(Anything), Any)
        assert_type(await api.sleep(timedelta(days=1)), None)
        assert_type(await api.wait_condition(lambda: True, timeout=5), bool)
        assert_type(await api.update_state(lambda state: (1, state)), int)
        assert_type(api.patched("p"), bool)
        index, _ = await api.race(charge(args), lambda: ship(args), api.sleep(1))
        assert_type(index, int)
        for outcome in await api.parallel([charge(args), lambda: ship(args)], limit=2):
            if isinstance(outcome, Err):
                return Err(str(outcome.reason))
        try:
            cart = await api.phase(
                {"items": []},
                update={"add": update(add, validator=lambda _args, _state: None)},
                signal={"done": signal(lambda _, state: Stop(state)), "note": lambda _, state: NoReply(state)},
            )
        except errors.ActivityFailure as failure:
            return Err(str(failure))
        if isinstance(cart, TimedOut):
            cart = cart.state
        return Ok({"cart": cart, "count": count})


def add(item: dict[str, int], state: dict[str, Any]) -> Reply:
    return Reply(len(state["items"]), state)


# -- branches


@task
def invoice_total(number: int, *, rounded: bool = False) -> Decimal:
    return Decimal(number)


@task
async def archived(number: int) -> bool:
    return bool(number)


class Branches(Workflow):
    async def weigh(self, order: Order) -> float:
        return float(await charge(order))

    async def run(self, args: list[Order]) -> Ok[None]:
        order, *_ = args
        assert_type(await api.parallel(charge(order), ship(order), raise_errors=True), tuple[int, str])
        number, note = await api.parallel(charge(order), lambda: ship(order), limit=2)
        assert_type(number, int | Err[Exception])
        assert_type(note, str | Err[Exception])
        assert_type(await api.parallel([charge(order) for order in args]), list[int | Err[Exception]])
        assert_type(await api.parallel([partial(self.weigh, order) for order in args], raise_errors=True), list[float])
        assert_type(await api.parallel(*[ship(order) for order in args], raise_errors=True), list[str])
        assert_type(await api.parallel([api.child(One, order) for order in args], raise_errors=True), list[int])
        await api.parallel([charge(order), lambda: ship(order)])
        ten = await api.parallel(
            *(charge(order), charge(order), charge(order), charge(order), charge(order)),
            *(ship(order), ship(order), ship(order), ship(order), ship(order)),
            raise_errors=True,
        )
        assert_type(ten, tuple[int, int, int, int, int, str, str, str, str, str])
        assert_type(await api.race(charge(order), self.weigh(order), api.sleep(1)), tuple[int, int | float | None])
        assert_type(await api.race(partial(self.weigh, order), lambda: ship(order)), tuple[int, float | str])
        assert_type(await api.race([charge(order) for order in args]), tuple[int, int])
        index, signal_or_none = await api.race(api.wait_for_signal("paid"), api.sleep(60))
        assert_type(index, int)
        print(signal_or_none)
        assert_type(await api.task(invoice_total, 1, rounded=True), Decimal)
        assert_type(await api.task(archived, 1), bool)
        assert_type(await api.wait_condition(lambda: bool(args)), bool)
        return Ok()


# -- phases and answers


class CartState(TypedDict):
    items: list[str]


class Price(TypedDict):
    total: Decimal


def price(sku: str, cart: CartState) -> Reply[Price, CartState]:
    return Reply({"total": Decimal(1)}, {"items": [*cart["items"], sku]})


async def price_or_stop(sku: str, cart: CartState) -> Reply[Price, CartState] | Stop[CartState, None]:
    return price(sku, cart) if sku else Stop(cart)


def price_later(sku: str, cart: CartState) -> Async[Price, CartState]:
    async def later() -> Price:
        return {"total": Decimal(len(sku))}

    return Async(later, cart)


class Cart(Workflow):
    @query("items")
    @staticmethod
    def items(state: CartState) -> list[str]:
        return state["items"]

    @query("named")
    @staticmethod
    def named(state: CartState, args: str) -> bool:
        return args in state["items"]

    @staticmethod
    def count(_: None, cart: CartState) -> Stop[CartState, int]:
        return Stop(cart, len(cart["items"]))

    async def run(self, args: CartState) -> Ok[int]:
        handlers = {"price": update(price), "later": price_later, "free": update(lambda _, s: Reply(1, s), returns=int)}
        assert_type(await api.phase(args, update=handlers, publish=True), CartState)
        ended = await api.phase(args, {"done": lambda _, s: Stop(s)}, timeout=60, publish=lambda cart: cart["items"])
        assert_type(ended, CartState | TimedOut[CartState])
        assert_type(await api.phase(0, until=datetime.now(UTC)), int | TimedOut[int])
        if isinstance(ended, TimedOut):
            assert_type(ended.state, CartState)
        nothing: CartState | None = await api.phase(None, {"done": lambda _, s: Stop(s)})
        empty = await api.phase([], {"done": lambda _, s: NoReply(s)})
        print(nothing, empty[0])
        return Ok(1)


def answers(handle: WorkflowHandle[int]) -> None:
    assert_type(handle.update("price", "a"), Any)
    assert_type(handle.update("price", "a", returns=Price), Price)
    assert_type(handle.update("price", "a", timeout=5, returns=list[int]), list[int])
    assert_type(handle.update(price, "a", id="1"), Price)
    assert_type(handle.update(price_or_stop, "a"), Price | None)
    assert_type(handle.update(price_later, "a"), Price)
    assert_type(handle.update(Cart.count), int)
    assert_type(handle.query("items"), Any)
    assert_type(handle.query("items", returns=list[str]), list[str])
    assert_type(handle.query(Cart.items), list[str])
    assert_type(handle.query(Cart.named, "tea", fresh=False), bool)


async def answers_async(handle: WorkflowHandle[int]) -> None:
    assert_type(await handle.aupdate(price, "a"), Price)
    assert_type(await handle.aupdate("price", returns=Price), Price)
    assert_type(await handle.aquery(Cart.items), list[str])
    assert_type(await handle.aquery("items", returns=list[str]), list[str])


# -- values


def values() -> None:
    assert_type(Ok(1), Ok[int])
    assert_type(Ok(1).value, int)
    assert_type(Err("no").reason, str)
    assert_type(Reply(1, "state"), Reply[int, str])
    assert_type(Stop("state", 1), Stop[str, int])
    assert_type(TimedOut("state").state, str)
    wider: Ok[float] = Ok(1)
    print(wider)
    match Failing.start(Order(1)).result():
        case str() as note:
            assert_type(note, str)


def tests() -> None:
    env = WorkflowEnvironment()
    env.mock(charge, lambda order: order.id)
    handle = env.start(One, Order(1), id="order-1")
    handle.signal("add", 1)
    env.advance(timedelta(hours=1))
    assert_type(handle.result(), int)
    assert_type(env.start(Dispatcher, Order(1), version=1).result(), Any)
    assert_type(env.start(Anything).result(), Any)
