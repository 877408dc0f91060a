"""Arguments, states and answers of the runs, annotated so that money and times keep their types."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypedDict

CENT = Decimal("0.01")


def later(start: datetime, months: int) -> datetime:
    """Return the moment so many months later: on the same day, or on the last one of a shorter month."""
    year, month = divmod(start.month - 1 + months, 12)
    last = calendar.monthrange(start.year + year, month + 1)[1]
    return start.replace(year=start.year + year, month=month + 1, day=min(start.day, last))


@dataclass(frozen=True, kw_only=True)
class Account:
    """The argument of a run, which covers one month. Month 0 is the trial."""

    subscription: int
    customer: str
    price: Decimal
    trial_ends: datetime
    month: int = 0
    extra: Decimal = Decimal(0)  # what changes of the plan have added to the next bill

    @property
    def starts(self) -> datetime:
        return later(self.trial_ends, self.month - 1)

    @property
    def ends(self) -> datetime:
        return later(self.trial_ends, self.month)


@dataclass(frozen=True, kw_only=True)
class Month:
    """State of the phase that lasts for the month."""

    account: Account
    cancelled: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """Answer to a change of the plan: what it adds to the next bill, and the new price from when on."""

    extra: Decimal
    price: Decimal
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Farewell:
    """Answer to a cancellation: how long the customer can use what is paid."""

    until: datetime


@dataclass(frozen=True, kw_only=True)
class Due:
    """A bill that is to be paid."""

    bill: int
    subscription: int
    customer: str
    amount: Decimal
    paid_until: datetime  # how long the access lasts that this bill pays


class Dunning(TypedDict):
    """State of the phase that waits for the customer. It is JSON, so that it can be published as it is."""

    stage: Literal["past due"]
    bill: int
    amount: str
    reminders: int
    charge: str  # empty until it is paid


class Payment(TypedDict):
    """A payment, as the provider reports it."""

    bill: int
    charge: str


@dataclass(frozen=True, kw_only=True)
class RefundRequest:
    """The argument of a refund."""

    bill: int
    customer: str
    charge: str
    amount: Decimal
    reason: str
