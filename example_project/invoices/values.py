"""Arguments and messages of the runs, annotated so that money stays a decimal in the history."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

CENT = Decimal("0.01")
LONGEST_REFERENCE = 100


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The argument of a run: the invoice as it was issued."""

    number: str
    customer: str
    total: Decimal


@dataclass(frozen=True, kw_only=True)
class Paid:
    """A payment, as the bank reports it."""

    reference: str
    amount: Decimal


def why_not(paid: Paid, due: Decimal) -> str | None:
    """Return the reason why a payment of ``due`` is not possible, or None.

    A run must not accept a payment that it could not book.
    """
    if not 1 <= len(paid.reference) <= LONGEST_REFERENCE:
        return f"a reference must have 1 to {LONGEST_REFERENCE} characters"
    if not (paid.amount.is_finite() and 0 < paid.amount <= due):
        return f"{paid.amount} cannot be paid: {due} is open"
    if paid.amount % CENT:
        return f"{paid.amount} cannot be paid: the amount must be in whole cents"
    return None
