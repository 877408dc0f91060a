"""The six worked examples: a sequence, an entity, phases, a fan-out, async handlers, continue-as-new.

The graph is in orders.py, and the workflow that a schedule starts in reports.py.

Everything here is deterministic; the effects are in activities.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

from example_project.shop import activities
from example_project.shop.money import amount, cents
from example_project.shop.orders import OrderProcess
from example_project.shop.reports import NightlyReport
from example_project.shop.values import (
    Account,
    Batch,
    Booking,
    CartArgs,
    CartState,
    Collected,
    Delivery,
    Line,
    LineState,
    NewCustomer,
    Outcome,
    Payment,
    Receipt,
    StockEntry,
    units_by_product,
)
from temporalex_django import (
    Async,
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    Stop,
    TimedOut,
    Workflow,
    api,
    errors,
    query,
    update,
)

__all__ = [
    "BatchProcess",
    "Counter",
    "EventCollector",
    "Inventory",
    "NightlyReport",
    "Onboarding",
    "OrderProcess",
    "ShoppingCart",
]

COLLECT_FOR = timedelta(hours=24)


class Onboarding(Workflow):
    """Sequential: an account, a welcome, done."""

    @query("status")
    @staticmethod
    def status(state: Any) -> Any:
        """Return the current step."""
        return state

    async def run(self, args: NewCustomer) -> Ok[dict[str, Any]]:
        """Create the account and send the welcome."""
        api.publish_state({"step": "creating_account"})
        account: Account = await activities.create_account(args.user_id)
        api.publish_state({"step": "sending_welcome"})
        await activities.send_welcome(account)
        api.publish_state({"step": "done"})
        return Ok({"account_id": account.id})


class Counter(Workflow):
    """Entity: counts signals until it is told to stop."""

    @query("value")
    @staticmethod
    def value(state: Any) -> Any:
        """Return the count."""
        return state

    async def run(self, _args: Any = None) -> Ok[int]:
        """Count until the stop."""

        def count(step: int, _args: Any, value: int) -> NoReply:
            return NoReply(value + step)

        result: int = await api.phase(
            0,
            signal={
                "increment": partial(count, 1),
                "decrement": partial(count, -1),
                "done": lambda _args, value: Stop(value),
            },
            publish=True,
        )
        return Ok(result)


class ShoppingCart(Workflow):
    """Phases: collect lines, charge, book the stock, let the customer confirm, send the receipt."""

    #: The list of carts in the admin reads these by SQL.
    stored: ClassVar = {"phase": str, "item_count": int, "total": Decimal}

    @query("status")
    @staticmethod
    def status(state: Any) -> Any:
        """Return phase, item count and total, without the lines."""
        return {name: value for name, value in (state or {}).items() if name != "items"}

    @query("cart")
    @staticmethod
    def cart(state: Any) -> Any:
        """Return everything that the customer's page shows."""
        return state

    async def run(self, args: CartArgs) -> Ok[dict[str, Any]] | Err[dict[str, Any]]:
        """Take one cart from its first line to its receipt."""
        publish_cart("open", [])
        collected: CartState = await api.phase(
            CartState(items=[]),
            update={
                "add_item": update(add_item, validator=check_item),
                "remove_item": update(remove_item, validator=check_removal),
            },
            signal={"checkout": lambda _args, state: Stop(state)},
        )
        items = collected["items"]
        payment = Payment(reference=api.info().id, cents=sum(cents(line["amount"]) for line in items))
        total = amount(payment.cents)
        booking = Booking(cart_id=api.info().id, run_id=str(api.info().run_id), units=units_by_product(items))

        publish_cart("charging", items)
        made = None
        if payment.cents:
            try:
                made = await activities.charge(payment)
            except errors.ActivityFailure as failure:
                publish_cart("failed", items)
                return Err({"step": "charge", "reason": str(failure)})

        publish_cart("booking", items)
        await activities.book_stock(booking)

        publish_cart("confirming", items)
        outcome = await api.phase(
            Outcome(confirmed=None),
            update={
                "confirm": lambda _args, _state: Stop(Outcome(confirmed=True), "confirmed"),
                "cancel": lambda _args, _state: Stop(Outcome(confirmed=False), "cancelled"),
            },
            timeout=timedelta(seconds=args.confirm_within),
        )
        if isinstance(outcome, TimedOut):
            confirmed_by: str | None = "timeout"
        else:
            confirmed_by = "customer" if outcome["confirmed"] else None
        result = {
            "total": total,
            "lines": len(items),
            "units": sum(line["quantity"] for line in items),
            "confirmed_by": confirmed_by,
            "charge": asdict(made) if made else None,
        }
        if confirmed_by is None:
            publish_cart("cancelling", items)
            await activities.return_stock(booking)
            if payment.cents:
                await activities.refund(payment)
            publish_cart("cancelled", items)
            return Ok({**result, "outcome": "cancelled"})

        receipt = Receipt(cart_id=api.info().id, customer=args.customer, total=total, lines=len(items))
        await activities.send_receipt(receipt)
        publish_cart("done", items, confirmed_by=confirmed_by)
        return Ok({**result, "outcome": "completed"})


def publish_cart(phase: str, items: list[LineState], **more: Any) -> None:
    """Publish the state that the customer sees, with the total, so that no page has to add up money."""
    total = amount(sum(cents(line["amount"]) for line in items))
    api.publish_state({"phase": phase, "item_count": len(items), "total": total, "items": items, **more})


def check_item(item: Line, _state: CartState) -> Ok[None] | Err[str]:
    """Refuse lines that no till would print."""
    problem = item.problem()
    return Err(problem) if problem else Ok(None)


def add_item(item: Line, state: CartState) -> Reply:
    """Put a line into the cart. Two lines of one product stay two lines, as on a till's receipt."""
    line = LineState(product_id=item.product_id, quantity=item.quantity, amount=item.amount)
    items = [*state["items"], line]
    publish_cart("open", items)
    return Reply({"item_count": len(items)}, CartState(items=items))


def check_removal(product_id: str, state: CartState) -> Ok[None] | Err[str]:
    """Refuse to remove a product that is not in the cart."""
    known = any(line["product_id"] == product_id for line in state["items"])
    return Ok(None) if known else Err(f"product {product_id!r} is not in the cart")


def remove_item(product_id: str, state: CartState) -> Reply:
    """Remove all lines of a product."""
    items = [line for line in state["items"] if line["product_id"] != product_id]
    publish_cart("open", items)
    return Reply({"item_count": len(items)}, CartState(items=items))


class BatchProcess(Workflow):
    """Fan-out: every item at once, every failure counted."""

    async def run(self, args: Batch) -> Ok[dict[str, Any]] | Err[dict[str, Any]]:
        """Work through the products."""
        branches: list[Callable[[], Awaitable[Any]]] = [partial(activities.process_item, item) for item in args.items]
        results = await api.parallel(branches)
        failures = [result for result in results if isinstance(result, Err)]
        if failures:
            return Err({"failures": len(failures)})
        return Ok({"processed": len(results)})


class Inventory(Workflow):
    """Async handlers: deliveries are priced side by side, and none is lost."""

    @query("stock")
    @staticmethod
    def stock(state: Any) -> Any:
        """Return quantity and price by product."""
        return state

    async def run(self, _args: Any = None) -> Ok[dict[str, StockEntry]]:
        """Take deliveries until closed."""
        result: dict[str, dict[str, StockEntry]] = await api.phase(
            {"stock": {}},
            update={"restock": restock},
            signal={"close": lambda _args, state: Stop(state)},
            publish=lambda state: state["stock"],
        )
        return Ok(result["stock"])


def restock(delivery: Delivery, state: dict[str, Any]) -> Async:
    """Ask for the price while other deliveries come in, then add the delivery to the stock of that moment."""

    async def priced() -> StockEntry:
        price: str = await activities.current_price(delivery.sku)

        def add(now: dict[str, dict[str, StockEntry]]) -> tuple[dict[str, StockEntry], dict[str, Any]]:
            before = now["stock"].get(delivery.sku)
            quantity = (before["quantity"] if before else 0) + delivery.quantity
            stock = {**now["stock"], delivery.sku: StockEntry(quantity=quantity, price=price)}
            return stock, {**now, "stock": stock}

        stock: dict[str, StockEntry] = await api.update_state(add)
        return stock[delivery.sku]

    return Async(priced, state)


class EventCollector(Workflow):
    """Continue-as-new: collects events for a day or until flushed, stores them, begins a fresh history."""

    @query("count")
    @staticmethod
    def count(state: Any) -> Any:
        """Return the number of events that wait to be stored."""
        return state

    async def run(self, args: Collected | None = None) -> ContinueAsNew:
        """Collect one generation."""

        def event(payload: Any, state: Collected) -> NoReply:
            return NoReply(replace(state, events=[*state.events, payload]))

        begun = args or Collected()
        ended = await api.phase(
            begun,
            signal={"event": event, "flush": lambda _args, state: Stop(state)},
            timeout=COLLECT_FOR,
            publish=lambda state: len(state.events),
        )
        collected: Collected = ended.state if isinstance(ended, TimedOut) else ended
        if collected.events:
            await activities.store_events(api.info().id, collected)
        return ContinueAsNew(Collected(generation=collected.generation + 1))
