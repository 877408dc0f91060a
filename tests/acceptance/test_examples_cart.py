"""The shopping cart of the example project."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from example_project.shop import activities
from example_project.shop.values import Booking, CartArgs, Line, Payment, PaymentMade, Receipt
from example_project.shop.workflows import ShoppingCart
from temporalex_django import errors
from temporalex_django.testing.environment import Environment

BREAD = {"product_id": "1134483", "quantity": 2, "amount": "3.98"}
MILK = {"product_id": "1000236", "quantity": 1, "amount": "1.27"}
COUPON = {"product_id": "5978656", "quantity": 0, "amount": "0.00"}


class World:
    """Stand-ins for the cart's activities, and what they were asked."""

    def __init__(self, env: Environment) -> None:
        self.calls: list[tuple[str, Any]] = []
        env.mock(activities.charge, lambda payment: self.pay("charge", payment))
        env.mock(activities.refund, lambda payment: self.pay("refund", payment))
        env.mock(activities.book_stock, lambda booking: self.move("book", booking))
        env.mock(activities.return_stock, lambda booking: self.move("return", booking))
        env.mock(activities.send_receipt, lambda receipt: self.calls.append(("receipt", receipt)))

    def pay(self, name: str, payment: Payment) -> PaymentMade:
        self.calls.append((name, payment))
        return PaymentMade(id=f"{name}-1", cents=payment.cents, attempt=1)

    def move(self, name: str, booking: Booking) -> int:
        self.calls.append((name, booking))
        return sum(booking.units.values())

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def world(env: Environment) -> World:
    return World(env)


def start(env: Environment, *lines: dict[str, Any], confirm_within: float = 60) -> Any:
    handle = env.start(ShoppingCart, CartArgs(customer="ann", confirm_within=confirm_within), id="cart-1")
    for line in lines:
        handle.update("add_item", line)
    return handle


def test_cart_is_charged_booked_confirmed_and_gets_its_receipt(env: Environment, world: World) -> None:
    """TX-207."""
    handle = start(env, BREAD, MILK, BREAD)

    handle.signal("checkout")
    assert handle.query("status")["phase"] == "confirming"
    assert handle.update("confirm") == "confirmed"

    assert handle.result() == {
        "total": "9.23",
        "lines": 3,
        "units": 5,
        "confirmed_by": "customer",
        "charge": {"id": "charge-1", "cents": 923, "attempt": 1},
        "outcome": "completed",
    }
    assert world.calls == [
        ("charge", Payment(reference="cart-1", cents=923)),
        ("book", Booking(cart_id="cart-1", run_id=handle.run_ids[0], units={"1000236": 1, "1134483": 4})),
        ("receipt", Receipt(cart_id="cart-1", customer="ann", total="9.23", lines=3)),
    ]
    env.replay(handle)


def test_open_cart_shows_its_lines(env: Environment, world: World) -> None:
    """TX-207."""
    handle = start(env, BREAD, MILK)

    assert handle.query("cart") == {"phase": "open", "item_count": 2, "total": "5.25", "items": [BREAD, MILK]}
    assert handle.query("status") == {"phase": "open", "item_count": 2, "total": "5.25"}


def test_removed_product_leaves_with_all_its_lines(env: Environment, world: World) -> None:
    handle = start(env, BREAD, MILK, BREAD)

    assert handle.update("remove_item", BREAD["product_id"]) == {"item_count": 1}

    assert handle.query("cart")["items"] == [MILK]
    with pytest.raises(errors.UpdateRejected, match="not in the cart"):
        handle.update("remove_item", BREAD["product_id"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"amount": "1.5"}, "not an amount"),
        ({"amount": "-1.50"}, "not an amount"),
        ({"amount": "1e3"}, "not an amount"),
        ({"quantity": -1}, "quantity -1"),
        ({"quantity": 10**12}, "quantity"),
        ({"product_id": ""}, "not a product id"),
        ({"product_id": "a/b"}, "not a product id"),
    ],
)
def test_line_that_no_till_prints_is_rejected(
    env: Environment, world: World, change: dict[str, Any], reason: str
) -> None:
    """TX-207."""
    handle = start(env)
    before = handle.history()

    with pytest.raises(errors.UpdateRejected, match=reason):
        handle.update("add_item", {**BREAD, **change})

    assert handle.history() == before
    assert handle.query("status")["item_count"] == 0


def test_line_of_quantity_zero_and_no_value_is_valid(env: Environment, world: World) -> None:
    handle = start(env, COUPON)

    assert handle.query("status") == {"phase": "open", "item_count": 1, "total": "0.00"}


def test_line_that_is_sent_twice_counts_once(env: Environment, world: World) -> None:
    handle = start(env)

    first = handle.update("add_item", BREAD, id="line-1")
    second = handle.update("add_item", BREAD, id="line-1")

    assert first == second == {"item_count": 1}
    assert handle.query("status")["item_count"] == 1


def test_basket_that_costs_nothing_completes_without_a_charge(env: Environment, world: World) -> None:
    handle = start(env, COUPON)

    handle.signal("checkout")
    handle.update("confirm")

    assert handle.result()["charge"] is None
    assert world.names == ["book", "receipt"]


def test_silence_confirms(env: Environment, world: World) -> None:
    """TX-207."""
    handle = start(env, BREAD, confirm_within=3600)
    handle.signal("checkout")

    env.advance(timedelta(seconds=3599))
    assert handle.query("status")["phase"] == "confirming"
    env.advance(timedelta(seconds=1))

    assert handle.result()["confirmed_by"] == "timeout"
    assert handle.query("status")["confirmed_by"] == "timeout"


def test_cancelled_order_gives_back_goods_and_money(env: Environment, world: World) -> None:
    """TX-207."""
    handle = start(env, BREAD)
    handle.signal("checkout")

    assert handle.update("cancel") == "cancelled"

    result = handle.result()
    assert (result["outcome"], result["confirmed_by"]) == ("cancelled", None)
    assert world.names == ["charge", "book", "return", "refund"]
    env.replay(handle)


def test_refused_payment_fails_the_cart_and_books_nothing(env: Environment, world: World) -> None:
    env.hold(activities.charge)
    handle = start(env, BREAD)
    handle.signal("checkout")

    env.fail(activities.charge, activities.PaymentRefused("no such card"))

    with pytest.raises(errors.WorkflowFailed, match="no such card"):
        handle.result()
    assert handle.query("status")["phase"] == "failed"
    assert world.names == []


def test_cart_takes_no_lines_while_it_is_being_charged(env: Environment, world: World) -> None:
    env.hold(activities.charge)
    handle = start(env, BREAD)
    handle.signal("checkout")

    with pytest.raises(errors.UpdateRejected):
        handle.update("add_item", MILK)


def test_items_are_decoded_to_lines(env: Environment, world: World) -> None:
    handle = start(env)

    assert handle.update("add_item", Line(product_id="1", quantity=1, amount="1.00")) == {"item_count": 1}
