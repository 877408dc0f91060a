"""The interface of the pages to the workflows: the run of each cart, and its published state."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from example_project.shop.models import Cart, Product
from example_project.shop.values import CartArgs
from example_project.shop.workflows import ShoppingCart
from temporalex_django import errors

CONFIRM_WITHIN = 15 * 60.0
#: Texts that customers read while a cart is in a phase.
PHASES = {
    "open": "Your cart is open.",
    "charging": "We are processing your payment.",
    "booking": "We are taking your goods out of stock.",
    "confirming": "Please confirm your order.",
    "cancelling": "We are cancelling your order and returning the money.",
    "cancelled": "Your order is cancelled. Nothing was charged in the end.",
    "failed": "The payment did not go through. Nothing was booked.",
    "done": "Your order is complete. The receipt is on its way.",
}
STEPS = (("charging", "Payment"), ("booking", "Stock"), ("confirming", "Confirmation"), ("done", "Receipt"))
FINAL = {"cancelled", "failed", "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CartLine:
    """A line of a cart, as a page shows it."""

    product_id: str
    name: str
    quantity: int
    amount: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of an order; ``state`` is done, current, next or stopped."""

    label: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CartView:
    """A cart, as a page shows it."""

    id: str
    phase: str
    total: str
    confirmed_by: str = ""
    trouble: str = ""
    lines: list[CartLine] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The phase in words."""
        return self.trouble or PHASES.get(self.phase, self.phase)

    @property
    def final(self) -> bool:
        """True if nothing more will happen."""
        return self.phase in FINAL or bool(self.trouble)

    @property
    def steps(self) -> list[Step]:
        """The steps of the order: done, current and next."""
        names = [name for name, _ in STEPS]
        if self.phase in {"cancelling", "cancelled", "failed"} or self.trouble:
            return [Step(label=label, state="stopped") for _, label in STEPS]
        here = names.index(self.phase) if self.phase in names else -1
        if self.phase == "done":
            here = len(names)

        def state(index: int) -> str:
            return "done" if index < here else "current" if index == here else "next"

        return [Step(label=label, state=state(index)) for index, (_, label) in enumerate(STEPS)]


def open_cart(user: User) -> Cart | None:
    """Return the customer's open cart, or None."""
    return Cart.objects.filter(user=user, closed_at=None).first()


def open_or_start_cart(user: User) -> Cart:
    """Return the customer's open cart; if there is none, start one: row and workflow in one transaction."""
    found = open_cart(user)
    if found is not None:
        return found
    try:
        with transaction.atomic():
            made = Cart.objects.create(id=f"web-{uuid.uuid4()}", user=user)
            args = CartArgs(customer=user.get_username(), confirm_within=CONFIRM_WITHIN)
            ShoppingCart.start(args, id=made.pk, subject=made)
    except IntegrityError:
        # Another tab of the same customer was faster.
        return Cart.objects.get(user=user, closed_at=None)
    return made


def close_cart(cart: Cart) -> None:
    """Check out: the row and the signal commit together."""
    with transaction.atomic():
        Cart.objects.filter(pk=cart.pk, closed_at=None).update(closed_at=timezone.now())
        ShoppingCart.handle(id=cart.pk).signal("checkout")


def view_cart(cart_id: str) -> CartView:
    """Query the workflow for its cart. Raises ``errors.WorkflowNotFound``."""
    handle = ShoppingCart.handle(id=cart_id)
    state: dict[str, Any] = handle.query("cart") or {"phase": "open", "total": "0.00", "items": []}
    names = {
        product.pk: product.name for product in Product.objects.filter(pk__in=[i["product_id"] for i in state["items"]])
    }
    return CartView(
        id=cart_id,
        phase=state["phase"],
        total=state["total"],
        confirmed_by=state.get("confirmed_by", ""),
        trouble="" if state["phase"] in FINAL else _trouble(handle.describe()),
        lines=[
            CartLine(
                product_id=item["product_id"],
                name=names.get(item["product_id"], f"Product {item['product_id']}"),
                quantity=item["quantity"],
                amount=item["amount"],
            )
            for item in state["items"]
        ],
    )


def _trouble(description: Any) -> str:
    if description.status in {"failed", "terminated", "timed_out", "cancelled"}:
        return "This order was stopped by the shop. Please start a new cart."
    return ""


def explain(error: errors.TemporalexError) -> str:
    """Return a polite text about why the cart refused a request of the customer."""
    match error:
        case errors.WorkflowClosed() | errors.WorkflowNotFound():
            return "This cart is closed. Please start a new one."
        case errors.UpdateRejected():
            return f"That is not possible now: {error}"
        case errors.UpdateTimeout():
            return "The shop is busy. We have your request; please check again in a moment."
        case _:
            return f"That did not work: {error}"
