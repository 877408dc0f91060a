"""Values that pages, workflows and activities exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from example_project.shop.money import cents

MAX_QUANTITY = 1_000_000_000
MAX_PRODUCT_ID = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CartArgs:
    """The argument of a cart.

    ``confirm_within``: seconds that the customer has to confirm; after that the cart counts as confirmed.
    """

    customer: str
    confirm_within: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a cart. ``amount`` is for the whole line; a quantity of 0 is a correction and allowed."""

    product_id: str
    quantity: int
    amount: str

    def problem(self) -> str | None:
        """Return the problem of the line, or None."""
        if not self.product_id or len(self.product_id) > MAX_PRODUCT_ID or not self.product_id.isalnum():
            return f"{self.product_id!r} is not a product id"
        if not 0 <= self.quantity <= MAX_QUANTITY:
            return f"quantity {self.quantity} is not between 0 and {MAX_QUANTITY}"
        try:
            cents(self.amount)
        except ValueError as exc:
            return str(exc)
        return None


class LineState(TypedDict):
    """A line as the cart keeps and publishes it."""

    product_id: str
    quantity: int
    amount: str


def units_by_product(lines: Iterable[LineState]) -> dict[str, int]:
    """Add up units, with the products sorted: runs that book in the same order do not deadlock."""
    units: dict[str, int] = {}
    for line in lines:
        units[line["product_id"]] = units.get(line["product_id"], 0) + line["quantity"]
    return dict(sorted(units.items()))


class CartState(TypedDict):
    """The state of the phase of an open cart."""

    items: list[LineState]


class Outcome(TypedDict):
    """The outcome of the confirmation phase. ``confirmed`` is None while nobody has answered."""

    confirmed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A charge or a refund by the provider; ``reference`` is the id of the cart."""

    reference: str
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentMade:
    """The provider's answer. ``attempt`` is the number of the attempt that got it."""

    id: str
    cents: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Stock that leaves the shop (or comes back) with one run of a cart: units by product."""

    cart_id: str
    run_id: str
    units: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The receipt of a customer."""

    cart_id: str
    customer: str
    total: str
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCustomer:
    """Input of the onboarding."""

    user_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account that was made for a customer."""

    id: int
    user_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Product ids to work through."""

    items: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Goods that came in."""

    sku: str
    quantity: int


class StockEntry(TypedDict):
    """The entry of a product in the inventory."""

    quantity: int
    price: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The state that an event collector carries from generation to generation."""

    events: list[Any] = field(default_factory=list)
    generation: int = 0
