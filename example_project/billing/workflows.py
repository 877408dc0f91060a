"""Subscriptions: a trial, a bill a month, reminders, changes of the plan, cancellations and refunds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from example_project.billing import activities
from example_project.billing.values import (
    CENT,
    Account,
    Due,
    Dunning,
    Farewell,
    Month,
    Payment,
    PlanChange,
    RefundRequest,
    later,
)
from temporalex_django import (
    ContinueAsNew,
    Err,
    NoReply,
    Ok,
    Reply,
    Stop,
    TimedOut,
    Unique,
    Workflow,
    api,
    errors,
    query,
    update,
)

SERVICES = ("app", "storage")
#: After a bill was issued: two more tries, and the end.
NEXT_TRIES = (timedelta(days=3), timedelta(days=8), timedelta(days=15))


# Messages begin here.
def sensible(price: Decimal, state: Month) -> Err[str] | None:
    """Reject a price that cannot be billed."""
    if not (price.is_finite() and price > 0) or price % CENT:
        return Err(f"{price} is not a price: it must be positive and in whole cents")
    return Err(f"{price} is the price already") if price == state.account.price else None


def change_plan(price: Decimal, state: Month) -> Reply[PlanChange, Month]:
    """Change the price. The rest of the month is billed, or credited, with the next bill."""
    account = state.account
    rest = max((account.ends - api.now()) / (account.ends - account.starts), 0)
    extra = ((price - account.price) * Decimal(rest)).quantize(CENT) if account.month else Decimal(0)
    changed = replace(account, price=price, extra=account.extra + extra)
    return Reply(PlanChange(extra=extra, price=price, since=api.now()), replace(state, account=changed))


def cancel(_: None, state: Month) -> Reply[Farewell, Month] | Stop[Month, Farewell]:
    """End a trial at once, and a paid month at its end."""
    state = replace(state, cancelled=True)
    if not state.account.month:
        return Stop(state, Farewell(until=api.now()))
    return Reply(Farewell(until=state.account.ends), state)


def standing(state: Month) -> dict[str, Any]:
    """Return what queries and pages read during the month: JSON, which has no decimals and times."""
    account = state.account
    stage = "cancelled" if state.cancelled else "active" if account.month else "trial"
    return {"stage": stage, "price": str(account.price), "extra": str(account.extra), "until": account.ends.isoformat()}


def settle(payment: Payment, state: Dunning) -> Stop[Dunning, None] | NoReply[Dunning]:
    """Take the payment of the bill; one of another bill changes nothing."""
    return Stop({**state, "charge": payment["charge"]}) if payment["bill"] == state["bill"] else NoReply(state)


# Messages end here.


# Subscription begins here.
class Subscribing(Workflow):
    """One subscription. Each run of its chain lasts for a month, so no history grows for years."""

    unique = Unique(key="subscription")
    unexpected_error = "block"  # a bug must not close a subscription
    signals = ("paid",)
    stored = {"stage": str}

    @query("standing")
    @staticmethod
    def standing(state: Any) -> Any:
        """Return the stage, and the price or the open bill."""
        return state

    async def run(self, args: Account) -> Ok[str] | ContinueAsNew:
        """Wait for the end of the month, collect the next bill, and continue with the next month."""
        try:
            outcome = await self._month(args)
        except errors.Cancelled:  # the account was deleted: nothing is left open
            await self._close(args, "cancelled")
            raise
        if isinstance(outcome, Account):
            return ContinueAsNew(outcome)
        await self._close(args, outcome)
        return Ok(outcome)

    async def _month(self, account: Account) -> Account | str:
        """Return the account of the next month, or why there is none."""
        ended = await api.phase(
            Month(account=account),
            update={"change_plan": update(change_plan, validator=sensible), "cancel": cancel},
            until=account.ends,
            publish=standing,
            label="The next bill",
        )
        state = ended.state if isinstance(ended, TimedOut) else ended
        if state.cancelled:
            return "cancelled"
        account = replace(state.account, month=account.month + 1, extra=Decimal(0))
        amount = max(account.price + state.account.extra, Decimal(0))
        due = Due(
            bill=await activities.issue_bill(account.subscription, account.month, amount),
            subscription=account.subscription,
            customer=account.customer,
            amount=amount,
            paid_until=account.ends,
        )
        return account if await self._collect(due) else "unpaid"

    # Subscription ends here.

    # Dunning begins here.
    async def _collect(self, due: Due) -> bool:
        """Try the card, remind the customer, and try again. Return whether the bill was paid."""
        issued = api.now()
        for reminders, next_try in enumerate(NEXT_TRIES, start=1):
            try:
                await self._charge(due)
            except errors.ActivityFailure as failure:
                await activities.mail(due.customer, f"Reminder {reminders}", f"{due.amount} EUR are due: {failure}")
            else:
                return True
            ended = await api.phase(
                Dunning(stage="past due", bill=due.bill, amount=str(due.amount), reminders=reminders, charge=""),
                signal={"paid": settle},
                until=issued + next_try,  # an instant, so that an outage gives nobody more time
                publish=True,
                label="The customer pays",
            )
            if not isinstance(ended, TimedOut):
                await activities.book_payment(due.bill, ended["charge"])
                return True
        return False

    async def _charge(self, due: Due) -> None:
        """Charge the card and open all services, or give the money back."""
        async with api.saga() as saga:
            charge = await activities.charge_card(due)
            saga.add(activities.pay_back, charge, due.amount)
            saga.add(activities.close_access, due.subscription)
            await api.parallel(
                [activities.open_access(service, due.subscription, due.paid_until) for service in SERVICES],
                raise_errors=True,
            )
            await activities.book_payment(due.bill, charge)

    # Dunning ends here.

    async def _close(self, account: Account, status: str) -> None:
        await activities.close_access(account.subscription)
        await activities.close_subscription(account.subscription, status)


# Refund begins here.
class Refunding(Workflow):
    """A refund of a bill. A second person approves it."""

    unique = Unique(key="refund")
    unexpected_error = "block"

    async def run(self, args: RefundRequest) -> Ok[str]:
        """Ask, pay back, and book it."""
        decision = await api.approval(
            f"Refund {args.amount} EUR of bill {args.bill}",
            role="billing.approve_refund",
            due=api.now() + timedelta(days=7),
            four_eyes=True,
            shows={"reason": args.reason},
        )
        if decision.outcome != "approved":
            return Ok(decision.outcome)
        await activities.pay_back(args.charge, args.amount)
        await activities.book_refund(args.bill, args.amount)
        await activities.mail(args.customer, "Your refund", f"You get {args.amount} EUR back.")
        return Ok("refunded")


# Refund ends here.


# Report begins here.
class MonthlyRevenue(Workflow):
    """The report of a month, started by a schedule on the first day of the next one."""

    async def run(self, args: dict[str, str]) -> Ok[str]:
        """Mail the sum of the paid bills."""
        until = api.info().scheduled_for or api.now()
        total = await activities.revenue(later(until, -1), until)
        await activities.mail(args["to"], f"Revenue until {until:%Y-%m-%d}", f"{total} EUR")
        return Ok(str(total))


# Report ends here.
