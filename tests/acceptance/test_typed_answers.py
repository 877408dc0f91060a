"""Answers of updates have the type that their handler declares, on every host."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from temporalex_django import Async, Ok, Reply, Stop, Workflow, api, errors, query, update
from tests.support.runs import flow


@dataclass
class Proration:
    amount: Decimal
    lines: tuple[str, ...] = ()


@dataclass
class Cart:
    total: Decimal
    items: int = 0


def prorate(cents: int, cart: Cart) -> Reply[Proration, Cart]:
    amount = Decimal(cents) / 100
    return Reply(Proration(amount, ("a", "b")), Cart(cart.total + amount, cart.items + 1))


async def prorate_later(cents: int, cart: Cart) -> Reply[Proration, Cart] | Stop[Cart]:
    await api.sleep(0)
    return prorate(cents, cart) if cents else Stop(cart)


def in_background(cents: int, cart: Cart) -> Async[Proration, Cart]:
    async def work() -> Proration:
        await api.sleep(0)
        return prorate(cents, cart).response

    return Async(work, cart)


def halve(by: int, amount: Decimal, cart: Cart) -> Reply[Decimal, Cart]:
    return Reply(amount / by, cart)


def finish(_: Any, cart: Cart) -> Stop[Cart, Decimal]:
    return Stop(cart, cart.total)


class Prorated(Workflow):
    @query("cart")
    @staticmethod
    def cart(state: Any) -> Cart:
        return state

    @query("more")
    @staticmethod
    def more(state: Any, args: int) -> Decimal:
        return Decimal(state["total"]) + args

    @staticmethod
    def static(cents: int, cart: Cart) -> Reply[Decimal, Cart]:
        return Reply(Decimal(cents), cart)

    def method(self, cents: int, cart: Cart) -> Reply[Decimal, Cart]:
        return Reply(Decimal(cents), cart)

    async def run(self, args: Any) -> Ok[Any]:
        def inner(cents: int, cart: Cart) -> Reply[list[Decimal], Cart]:
            return Reply([Decimal(cents)], cart)

        def book(cents: Any, cart: Cart) -> Any:
            return Reply(Decimal(cents), Cart(cart.total + cents))

        api.publish_state({"total": "1.50", "items": 0})
        cart = await api.phase(
            Cart(Decimal("1.50")),
            update={
                "prorate": prorate,
                "later": prorate_later,
                "background": update(in_background, label="In the background"),
                "halve": partial(halve, 2),
                "static": self.static,
                "method": self.method,
                "inner": inner,
                "book": update(book, returns=Decimal),
                "one": lambda cents, cart: Reply(cents, cart),
                "twice": prorate,
                "finish": finish,
            },
        )
        return Ok(str(cart.total))


EXPECTED = Proration(Decimal("0.5"), ("a", "b"))


def test_an_answer_has_the_type_of_the_handlers_annotation(env):
    h = env.start(Prorated)

    assert h.update("prorate", 50) == EXPECTED
    assert h.update("later", 50) == EXPECTED
    assert h.update("background", 50) == EXPECTED
    assert h.update("halve", "3") == Decimal("1.5")
    assert h.update("static", 2) == Decimal(2) == h.update("method", 2)
    assert h.update("inner", 2) == [Decimal(2)]
    assert h.update("book", 7) == Decimal(7)
    assert h.update("one", 1) == 1
    assert h.update_async("prorate", 50).result() == EXPECTED
    # The reader may ask for another type, and a repeated update has its first answer.
    assert h.update("prorate", 50, returns=dict[str, Any]) == {"amount": "0.5", "lines": ["a", "b"]}
    assert h.update("book", 8, id="b-8") == h.update("book", 9, id="b-8") == Decimal(8)
    assert h.update("later", 0) is None
    assert h.result() == "18.50"


def test_a_function_in_place_of_the_name(env):
    h = env.start(Prorated)

    assert h.update(prorate_later, 50) == EXPECTED
    assert h.update_async(in_background, 50).result() == EXPECTED
    assert h.update(Prorated.static, 2) == Decimal(2) == h.update(Prorated.method, 2)
    assert h.update(Prorated.static, 2, returns=str) == "2"
    assert h.query(Prorated.cart) == Cart(Decimal("1.50"))
    assert h.query("cart") == {"total": "1.50", "items": 0}
    assert h.query("cart", returns=Cart) == Cart(Decimal("1.50"))
    assert h.query(Prorated.more, 2) == Decimal("3.50")
    with pytest.raises(errors.WorkflowDefinitionError, match="several of them in Prorated .prorate, twice"):
        h.update(prorate, 50)
    with pytest.raises(errors.WorkflowDefinitionError, match="not the handler of any update"):
        h.update(flow, 50)
    with pytest.raises(errors.WorkflowDefinitionError, match="not the handler of any query"):
        h.query(prorate)
    assert h.update(finish) == Decimal("2.00")


def test_an_answer_that_does_not_fit_fails_the_update_and_nothing_is_set(env):
    def wrong(args: Any, total: int) -> Reply[int, int]:
        return Reply(args, total + 1)

    def undeclared(args: Any, total: int) -> Any:
        return Reply(Decimal(1), total + 1)

    async def run(self, args):
        done = {"done": lambda _, total: Stop(total, total)}
        return Ok(await api.phase(0, update={"wrong": wrong, "undeclared": undeclared, **done}))

    h = env.start(flow(run))

    with pytest.raises(errors.UpdateFailed, match="does not fit int|read back"):
        h.update("wrong", "text")
    with pytest.raises(errors.UpdateFailed, match=r"a Decimal.*-> Reply\[...\]"):
        h.update("undeclared")
    assert h.update("wrong", 3) == 3
    assert h.update("done") == 1


def test_an_annotation_that_cannot_be_stored_is_refused_at_definition(env):
    def locked(args: Any, state: Any) -> Reply[threading.Lock, Any]:
        return Reply(threading.Lock(), state)

    with pytest.raises(errors.WorkflowDefinitionError, match="as the type of its answer"):
        update(locked)
    with pytest.raises(errors.WorkflowDefinitionError, match="as the type of its answer"):
        update(lambda args, state: Reply(1, state), returns=threading.Lock)

    async def run(self, args):
        try:
            await api.phase(0, update={"locked": locked})
        except errors.WorkflowDefinitionError as exc:
            return Ok(str(exc))

    assert "the handler of update 'locked'" in env.start(flow(run)).result()


def test_handlers_of_one_name_with_other_answers_are_read_as_plain_data(env):
    def first(_: Any, state: int) -> Stop[int, Decimal]:
        return Stop(state, Decimal(1))

    def second(_: Any, state: int) -> Stop[int, Proration]:
        return Stop(state, Proration(Decimal(2)))

    async def run(self, args):
        await api.phase(0, update={"go": first})
        await api.phase(0, update={"go": second})
        return Ok()

    h = env.start(flow(run))

    assert h.update("go") == "1"
    assert h.update("go", returns=Proration) == Proration(Decimal(2))
