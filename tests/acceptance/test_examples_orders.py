"""The order process of the example project: the graph, its paths, what its steps are asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from example_project.shop import orders
from example_project.shop.activities import PaymentRefused
from example_project.shop.orders import OrderProcess
from temporalex_django import Done, Event, errors
from temporalex_django.testing.environment import Environment
from tests.support.people import Somebody

BREAD = {"product_id": "1134483", "quantity": 2, "amount": "3.98"}
WINE = {"product_id": "1000236", "quantity": 3, "amount": "36.02"}
CENT = {"product_id": "1000236", "quantity": 1, "amount": "0.01"}
CLEO = Somebody("cleo", groups=(orders.CLERKS,))
COUPON = {"product_id": "5978656", "quantity": 0, "amount": "0.00"}


class World:
    """Stand-ins for the steps that touch the world, and which were asked."""

    def __init__(self, env: Environment) -> None:
        self.calls: list[str] = []
        for step, event, data in (
            (orders.ChargePayment, "charged", {"id": "charge-1", "cents": 0, "attempt": 1}),
            (orders.RefundPayment, "refunded", {"id": "refund-1"}),
            (orders.ReserveStock, "reserved", {"units": 2}),
            (orders.ReturnStock, "returned", {"units": 2}),
            (orders.ShipOrder, "shipped", {"parcel": "P1"}),
            (orders.TraceParcel, "asked", None),
            (orders.SendInvoice, "invoiced", {"number": 1}),
        ):
            env.mock(step, self.answer(step.__name__, Event(event, data)))
        env.mock(orders.CancelOrder, self.cancel)

    def answer(self, name: str, event: Event) -> Any:
        def stand_in(instance: Any, config: Any, context: Any) -> Event:
            self.calls.append(name)
            return event

        return stand_in

    def cancel(self, instance: Any, config: Any, context: Any) -> Event:
        self.calls.append("CancelOrder")
        return Event("cancelled", {"reason": orders._why_cancelled(context)})


@pytest.fixture
def world(env: Environment) -> World:
    return World(env)


def start(env: Environment, *lines: dict[str, Any]) -> Any:
    return env.start(OrderProcess, {"customer": "ann", "lines": [*lines]}, value="42")


def waiting(handle: Any) -> list[str]:
    return [getattr(step, "key", "") for step in handle.instance().waiting_steps]


def test_a_small_order_is_shipped_delivered_and_invoiced_without_a_clerk(env: Environment, world: World) -> None:
    handle = start(env, BREAD, WINE)
    assert world.calls[:2] == ["ChargePayment", "ReserveStock"]
    assert waiting(handle) == ["carrier"]

    handle.resume("delivered", data={"at": "now"})

    assert world.calls[2:] == ["ShipOrder", "SendInvoice"]
    result = handle.result()
    assert result["validate_order"] == {"total": "40.00", "cents": 4000, "lines": 2, "units": 5}
    assert result["carrier"] == {"at": "now"}
    assert "review" not in result


def test_one_cent_above_the_limit_a_clerk_decides(env: Environment, world: World) -> None:
    handle = start(env, BREAD, WINE, CENT)
    assert waiting(handle) == ["review"]
    assert "ShipOrder" not in world.calls

    handle.resume("approved", by=CLEO, data={"comment": "a regular"})

    assert waiting(handle) == ["carrier"]
    assert handle.instance().context.steps.review == {"by": "cleo", "by_key": "cleo", "comment": "a regular"}


def test_who_is_rejected_gets_the_money_back_and_the_shop_its_goods(env: Environment, world: World) -> None:
    handle = start(env, WINE, WINE)

    handle.resume("rejected", by=CLEO, data={"comment": "no such street"})

    assert sorted(world.calls[2:4]) == ["RefundPayment", "ReturnStock"]
    assert world.calls[4:] == ["CancelOrder"]
    assert handle.result()["cancel_order"] == {"reason": "no such street"}


def test_an_order_that_nobody_looks_at_in_time_is_cancelled(env: Environment, world: World) -> None:
    handle = start(env, WINE, WINE)
    env.advance(orders.DECIDED_WITHIN - timedelta(seconds=1))
    assert waiting(handle) == ["review"]

    env.advance(1)

    assert world.calls[-1] == "CancelOrder"
    assert handle.result()["cancel_order"] == {"reason": "Nobody reviewed the order in time"}


def test_the_carrier_is_asked_when_it_says_nothing_and_the_invoice_goes_out_all_the_same(
    env: Environment, world: World
) -> None:
    handle = start(env, BREAD)
    env.advance(orders.DELIVERED_WITHIN)

    assert world.calls[-2:] == ["TraceParcel", "SendInvoice"]
    assert handle.status == "completed"
    with pytest.raises(errors.WorkflowClosed):
        handle.resume("delivered")


def test_an_order_that_costs_nothing_is_not_charged(env: Environment, world: World) -> None:
    """The join does not wait for a branch that was not taken."""
    handle = start(env, COUPON)

    assert world.calls == ["ReserveStock", "ShipOrder"]
    assert waiting(handle) == ["carrier"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"customer": "ann", "lines": []}, "lines and a customer"),
        ({"lines": [BREAD]}, "no 'customer'"),
        (None, "no 'lines'"),
        ({"customer": "ann", "lines": [{**BREAD, "amount": "-1.00"}]}, "'-1.00' is not an amount"),
        ({"customer": "ann", "lines": [{**BREAD, "quantity": "many"}]}, "'<=' not supported"),
        ({"customer": "ann", "lines": ["bread"]}, "must be a mapping"),
        ({"customer": "ann", "lines": [{**BREAD, "colour": "red"}]}, "colour"),
    ],
)
@pytest.mark.hosts("memory", "database")
def test_an_order_that_makes_no_sense_is_cancelled_and_touches_nothing(
    env: Environment, world: World, args: Any, problem: str
) -> None:
    handle = env.start(OrderProcess, args, value="42")

    assert world.calls == ["CancelOrder"]
    assert problem in handle.result()["validate_order"]["problem"]


def test_a_refused_payment_waits_for_the_stock_and_puts_it_back(env: Environment, world: World) -> None:
    env.mock(orders.ChargePayment, lambda *_: Event("refused", {"reason": "no funds"}))

    handle = start(env, WINE, WINE)

    assert world.calls == ["ReserveStock", "ReturnStock", "CancelOrder"]
    assert handle.result()["cancel_order"] == {"reason": "The payment was refused: no funds"}


def test_a_refusal_of_the_provider_is_an_event_and_an_outage_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise PaymentRefused("no such card")

    monkeypatch.setattr(orders.ChargePayment, "ask", refuse)
    step: Any = orders.ChargePayment()

    assert step.execute(None, None, None) == Event("refused", {"reason": "no such card"})
    assert orders.ChargePayment.retry is not None
    assert orders.ChargePayment.retry.max_attempts == 25


def test_the_graph_has_one_start_one_end_and_two_joins() -> None:
    assert OrderProcess.predecessors(orders.ValidateOrder) == frozenset()
    assert OrderProcess.predecessors(Done) == {orders.SendInvoice, orders.CancelOrder}
    assert OrderProcess.predecessors(orders.AssessOrder) == {orders.ChargePayment, orders.ReserveStock}
    assert "Approval(review)" in OrderProcess.to_mermaid()
