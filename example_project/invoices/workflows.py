"""Invoicing as a function. The module graphs.py has it as a graph."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any, TypedDict

from example_project.invoices.activities import book_payment, send_reminder, write_off
from example_project.invoices.graphs import InvoicingGraph
from example_project.invoices.values import Paid, Terms, why_not
from temporalex_django import Err, Ok, Stop, TimedOut, Unique, Workflow, api, query, update

__all__ = ["Invoicing", "InvoicingGraph"]

REMIND_AFTER = timedelta(days=30)
REMINDERS = 2
DECIDED_WITHIN = timedelta(days=14)


class Waiting(TypedDict):
    """State of a phase: the open sum, the references of booked payments, and the payment that ended the phase."""

    open: Decimal
    booked: list[str]
    paid: Paid | None


def fits(paid: Paid, state: Waiting) -> Err[str] | None:
    """Return an error if the payment cannot be booked, or was booked already."""
    if paid.reference in state["booked"]:
        return Err(f"the payment {paid.reference!r} is booked already")
    wrong = why_not(paid, state["open"])
    return None if wrong is None else Err(wrong)


def receive(paid: Paid, state: Waiting) -> Stop:
    """Take a payment; the answer is the sum that is open then."""
    return Stop({**state, "paid": paid}, str(state["open"] - paid.amount))


class Invoicing(Workflow):
    """Waits for the money, reminds of it every 30 days, and asks whether to write it off."""

    unique = Unique(key="invoice")
    tags = ["finance"]
    stored = {"open": Decimal, "stage": str}

    @query("standing")
    @staticmethod
    def standing(state: Any) -> Any:
        """Return the open sum and the stage."""
        return state

    async def run(self, args: Terms) -> Ok[dict[str, str]]:
        """Collect the money of one invoice, or write it off."""
        due, booked = args.total, list[str]()
        for which in range(REMINDERS + 1):
            due = await self._paid_in_time(due, args, which, booked)
            if not due:
                return Ok({"outcome": "paid"})
            if which < REMINDERS:
                await send_reminder(args, which + 1, due)
        self._publish(due, "to be written off")
        decision = await api.approval(
            f"Write off {due} EUR of invoice {args.number}",
            role="invoices.write_off_invoice",
            due=DECIDED_WITHIN,
        )
        if decision.by is None or decision.outcome != "approved":  # overdue: nobody decided
            return Ok({"outcome": "collected by others"})
        await write_off(args.number, due, decision.by.name)
        self._publish(Decimal(0), "written off")
        return Ok({"outcome": "written off"})

    async def _paid_in_time(self, due: Decimal, terms: Terms, which: int, booked: list[str]) -> Decimal:
        """Return the open sum once it is 0, or once 30 days have passed without a payment."""
        while due:
            self._publish(due, f"reminded {which} times" if which else "issued")
            got = await api.phase(
                Waiting(open=due, booked=booked, paid=None),
                update={"paid": update(receive, validator=fits, permission="invoices.book_payment", label="Payment")},
                timeout=REMIND_AFTER,
                label="Waiting for the money",
            )
            if isinstance(got, TimedOut) or (paid := got["paid"]) is None:
                return due
            due -= paid.amount
            await book_payment(terms.number, paid, settled=not due)
            booked.append(paid.reference)
        self._publish(due, "paid")
        return due

    def _publish(self, due: Decimal, stage: str) -> None:
        api.publish_state({"open": str(due), "stage": stage})
