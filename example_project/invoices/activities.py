"""Effects of invoicing: plain functions, which the steps of the graph call, and activities around them."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from django.core.mail import EmailMessage

from example_project.invoices.values import Paid, Terms
from temporalex_django import RetryPolicy, activity, activity_context

MAIL = RetryPolicy(max_attempts=5, initial_interval=timedelta(minutes=1), backoff=4)


def mail_reminder(terms: Terms, which: int, due: Decimal) -> None:
    """Mail a reminder.

    Raises an error if the mail server is away, and the activity or step is retried. The message id holds the
    idempotency key, so that the server recognizes a mail that it already has.
    """
    EmailMessage(
        subject=f"Reminder {which}: invoice {terms.number}",
        body=f"{due} EUR of invoice {terms.number} are due.",
        to=[terms.customer],
        headers={"Message-ID": f"<{activity_context().idempotency_key}@invoices.example>"},
    ).send()


def enter_payment(number: str, paid: Paid, *, settled: bool) -> None:
    """Record a payment, and the new status if it settles the invoice.

    Atomic activities and steps call it, so both commit in one transaction with the next step of the run.
    """
    from example_project.invoices.models import Invoice, Payment  # noqa: PLC0415 - workflows run without tables, too

    invoice = Invoice.objects.get(number=number)
    Payment.objects.create(invoice=invoice, reference=paid.reference, amount=paid.amount)
    if settled:
        Invoice.objects.filter(pk=invoice.pk).update(status=Invoice.Status.PAID)


def enter_write_off(number: str, amount: Decimal, approved_by: str) -> None:
    """Write off the rest of an invoice, exactly once: in one transaction with the next step of the run."""
    from example_project.invoices.models import Invoice, WriteOff  # noqa: PLC0415 - workflows run without tables, too

    invoice = Invoice.objects.get(number=number)
    WriteOff.objects.create(invoice=invoice, amount=amount, approved_by=approved_by)
    Invoice.objects.filter(pk=invoice.pk).update(status=Invoice.Status.WRITTEN_OFF)


@activity(retry=MAIL, start_to_close=timedelta(seconds=30))
def send_reminder(terms: Terms, which: int, due: Decimal) -> None:
    """Remind the customer of the sum that is due."""
    mail_reminder(terms, which, due)


@activity(atomic=True)
def book_payment(number: str, paid: Paid, *, settled: bool) -> None:
    """Book a payment, in the transaction of the run."""
    enter_payment(number, paid, settled=settled)


@activity(atomic=True)
def write_off(number: str, amount: Decimal, approved_by: str) -> None:
    """Write off the open rest, in the transaction of the run."""
    enter_write_off(number, amount, approved_by)
