"""What runs are started with, told and give: annotated, so that money stays money on its way through the history."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

CENT = Decimal("0.01")
LONGEST_REFERENCE = 100


@dataclass(frozen=True, kw_only=True)
class Terms:
    """An invoice, as its run is started with it."""

    number: str
    customer: str
    total: Decimal


@dataclass(frozen=True, kw_only=True)
class Paid:
    """A payment, as the bank tells it."""

    reference: str
    amount: Decimal


def why_not(paid: Paid, due: Decimal) -> str | None:
    """What is wrong with a payment of what is due; what could not be booked must not be accepted."""
    if not 1 <= len(paid.reference) <= LONGEST_REFERENCE:
        return f"a reference has 1 to {LONGEST_REFERENCE} characters"
    if not (paid.amount.is_finite() and 0 < paid.amount <= due):
        return f"{paid.amount} cannot be paid: {due} is open"
    if paid.amount % CENT:
        return f"{paid.amount} cannot be paid: whole cents are"
    return None
