"""A stand-in for the SDK of a payment provider: it declines the cards of customers whose name begins with ``broke``."""

from __future__ import annotations

from decimal import Decimal


class CardDeclined(Exception):
    """The bank of the customer does not pay. It makes no sense to ask again at once."""


def charge(customer: str, amount: Decimal, *, key: str) -> str:
    """Charge the card of the customer; a second call with this key charges nothing and returns the first answer."""
    if customer.startswith("broke"):
        raise CardDeclined(f"the bank does not pay {amount} EUR")
    return f"ch-{key}"


def give_back(charge: str, amount: Decimal, *, key: str) -> None:
    """Pay a part of a charge back, once for each key."""
