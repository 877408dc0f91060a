"""Effects of billing: everything that workflow code must not do itself."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from decimal import Decimal

from django.core.mail import EmailMessage
from django.utils import timezone

from example_project.billing import gateway
from example_project.billing.values import CENT, Due
from temporalex_django import RetryPolicy, activity, activity_context

log = logging.getLogger(__name__)
PATIENT = RetryPolicy(max_attempts=5, initial_interval=timedelta(minutes=1), backoff=4)


@activity(retry=RetryPolicy(max_attempts=5, non_retryable=["CardDeclined"]), start_to_close=timedelta(seconds=30))
def charge_card(due: Due) -> str:
    """Charge the customer's card. The key is the same in all attempts, so the customer pays once."""
    return gateway.charge(due.customer, due.amount, key=activity_context().idempotency_key)


@activity(retry=PATIENT)
def pay_back(charge: str, amount: Decimal) -> None:
    """Pay a charge or a part of it back."""
    gateway.give_back(charge, amount, key=activity_context().idempotency_key)


@activity(retry=PATIENT)
def open_access(service: str, subscription: int, until: datetime) -> None:
    """Tell a service how long the customer may use it."""
    log.info("%s is open for subscription %s until %s", service, subscription, until)


@activity(retry=PATIENT)
def close_access(subscription: int) -> None:
    """Tell all services that the customer may not use them. It is no error if they were closed before."""
    log.info("all services are closed for subscription %s", subscription)


@activity(retry=PATIENT)
def mail(to: str, subject: str, body: str) -> None:
    """Send a mail. The server recognizes one that it already has by the message id."""
    headers = {"Message-ID": f"<{activity_context().idempotency_key}@billing.example>"}
    EmailMessage(subject=subject, body=body, to=[to], headers=headers).send()


@activity(atomic=True)
def issue_bill(subscription: int, month: int, amount: Decimal) -> int:
    """Create the bill in the transaction of the run, so exactly once."""
    from example_project.billing.models import Bill  # noqa: PLC0415 - workflows run without tables, too

    return Bill.objects.create(subscription_id=subscription, month=month, amount=amount).pk


@activity(atomic=True)
def book_payment(bill: int, charge: str) -> None:
    """Book the payment of a bill."""
    from example_project.billing.models import Bill  # noqa: PLC0415 - workflows run without tables, too

    Bill.objects.filter(pk=bill).update(charge=charge, paid_at=timezone.now())


@activity(atomic=True)
def book_refund(bill: int, amount: Decimal) -> None:
    """Book what was paid back."""
    from django.db.models import F  # noqa: PLC0415 - workflows run without tables, too

    from example_project.billing.models import Bill  # noqa: PLC0415 - as above

    Bill.objects.filter(pk=bill).update(refunded=F("refunded") + amount)


@activity(atomic=True)
def close_subscription(subscription: int, status: str) -> None:
    """Mark the subscription as closed."""
    from example_project.billing.models import Subscription  # noqa: PLC0415 - workflows run without tables, too

    Subscription.objects.filter(pk=subscription).update(status=status)


@activity(atomic=True)
def revenue(since: datetime, until: datetime) -> Decimal:
    """Return the sum of the bills that were paid within that time."""
    from django.db.models import Sum  # noqa: PLC0415 - workflows run without tables, too

    from example_project.billing.models import Bill  # noqa: PLC0415 - as above

    paid = Bill.objects.filter(paid_at__gte=since, paid_at__lt=until)
    return Decimal(paid.aggregate(total=Sum("amount"))["total"] or 0).quantize(CENT)
