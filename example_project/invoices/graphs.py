"""Invoicing as a graph: a picture that the accountants have signed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from example_project.invoices import activities
from example_project.invoices.values import Paid, Terms, why_not
from temporalex_django import Approval, Done, Err, Event, GraphWorkflow, Step, Unique, WaitForEvent, event

if TYPE_CHECKING:
    from temporalex_django.graph import Context, Instance


def in_full(paid: Paid, context: Context) -> Err[str] | None:
    """Return an error unless the payment is the whole sum; this graph accepts no part of it."""
    due = Decimal(context.initial.total)
    wrong = why_not(paid, due)
    if wrong is None and paid.amount != due:
        wrong = f"{paid.amount} cannot be paid: {due} is open and must be paid in one sum"
    return None if wrong is None else Err(wrong)


paid_in_full = event("paid", data=Paid, validator=in_full, permission="invoices.book_payment")
money = WaitForEvent(paid_in_full, timeout=timedelta(days=30), key="money")
late_money = WaitForEvent(paid_in_full, timeout=timedelta(days=30), key="late_money")
giving_up = Approval(role="invoices.write_off_invoice", due=timedelta(days=14), key="giving_up")


def _terms(context: Context) -> Terms:
    initial = context.initial
    return Terms(number=initial.number, customer=initial.customer, total=Decimal(initial.total))


class Remind(Step):
    """Reminds the customer; retried while the mail server is away."""

    events = ("reminded",)
    retry = activities.MAIL

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        terms = _terms(context)
        activities.mail_reminder(terms, 1, terms.total)
        return Event("reminded")


class Book(Step):
    """Books the payment and the status, in the transaction of the run."""

    events = ("booked",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        said = context.steps.get("late_money") or context.steps.get("money")
        paid = Paid(reference=said.reference, amount=Decimal(said.amount))
        activities.enter_payment(context.initial.number, paid, settled=True)
        return Event("booked")


class WriteItOff(Step):
    """Writes off the sum that nobody will pay."""

    events = ("written_off",)
    atomic = True

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        terms = _terms(context)
        activities.enter_write_off(terms.number, terms.total, context.steps.giving_up.by)
        return Event("written_off")


class InvoicingGraph(GraphWorkflow):
    """Paid in one sum, in time or after a reminder; else somebody decides."""

    unique = Unique(key="invoicegraph")
    initial = money
    transitions = {
        (money, "paid"): Book,
        (money, "timeout"): Remind,
        (Remind, "reminded"): late_money,
        (late_money, "paid"): Book,
        (late_money, "timeout"): giving_up,
        (giving_up, "approved"): WriteItOff,
        (giving_up, "rejected"): Done,
        (giving_up, "overdue"): Done,
        (Book, "booked"): Done,
        (WriteItOff, "written_off"): Done,
    }
