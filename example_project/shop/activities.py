"""Activities of the shop's workflows.

Models are imported where they are used: the workflows also run in ``WorkflowEnvironment``, which needs no Django.
"""

from __future__ import annotations

import json
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib import error, request

from example_project.shop.values import Account, Booking, Collected, Payment, PaymentMade, Receipt
from temporalex_django import RetryPolicy, activity, activity_context

# Short, because customers wait, and failures of the provider pass in well under a second.
PAYMENT_RETRY = RetryPolicy(
    max_attempts=25,
    initial_interval=timedelta(milliseconds=200),
    backoff=2.0,
    max_interval=timedelta(seconds=2),
    non_retryable=("PaymentRefused",),
)
PAYMENT_TIMEOUT = timedelta(seconds=2)
# Longer than the activity's own timeout: the engine handles late answers, and this only frees the thread in the end.
SOCKET_TIMEOUT = 10.0


class PaymentRefused(Exception):
    """The provider refused the payment for good."""


class ProviderUnavailable(Exception):
    """The provider did not answer, or failed; the call can be repeated with the same key."""


@activity(retry=PAYMENT_RETRY, start_to_close=PAYMENT_TIMEOUT)
def charge(payment: Payment) -> PaymentMade:
    """Charge once, however many attempts it takes."""
    return ask_provider("/charges", payment=payment, url=_provider_of_carts())


@activity(retry=PAYMENT_RETRY, start_to_close=PAYMENT_TIMEOUT)
def refund(payment: Payment) -> PaymentMade:
    """Give the money back once."""
    return ask_provider("/refunds", payment=payment, url=_provider_of_carts())


def _provider_of_carts() -> str:
    from django.conf import settings  # noqa: PLC0415 - see the top

    return str(settings.SHOP_PROVIDER_URL)


def ask_provider(path: str, *, payment: Payment, url: str) -> PaymentMade:
    """Call the provider at ``url`` with the idempotency key of the running activity.

    Raises ``PaymentRefused`` and ``ProviderUnavailable``.
    """
    context = activity_context()
    call = request.Request(  # noqa: S310 - the address is a setting
        url + path,
        data=json.dumps({"reference": payment.reference, "cents": payment.cents}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": context.idempotency_key},
    )
    try:
        with request.urlopen(call, timeout=SOCKET_TIMEOUT) as answer:  # noqa: S310
            body: dict[str, Any] = json.load(answer)
    except error.HTTPError as exc:
        reason = f"{path} of {payment.reference}: {exc.code} {exc.read(500).decode(errors='replace')}"
        if exc.code in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
            raise PaymentRefused(reason) from exc
        raise ProviderUnavailable(reason) from exc
    except OSError as exc:
        raise ProviderUnavailable(f"{path} of {payment.reference}: {exc}") from exc
    return PaymentMade(id=body["id"], cents=body["cents"], attempt=context.attempt)


@activity(atomic=True)
def book_stock(booking: Booking) -> int:
    """Take the goods out of stock, exactly once: in one transaction with the next step of the run."""
    return move_stock(booking, kind="sale")


@activity(atomic=True)
def return_stock(booking: Booking) -> int:
    """Put the goods of a cancelled cart back."""
    return move_stock(booking, kind="return")


def move_stock(booking: Booking, *, kind: str) -> int:
    """Write a booking of ``kind`` sale or return, and return its units. For atomic activities and steps only."""
    from django.db.models import F  # noqa: PLC0415 - see the top

    from example_project.shop.models import Stock, StockMovement  # noqa: PLC0415

    # Always in the same order, so that two carts with the same products wait for each other and do not deadlock.
    for product_id, units in sorted(booking.units.items()):
        out = units if kind == "sale" else -units
        changes = {"on_hand": F("on_hand") - out, "booked": F("booked") + out}
        if not Stock.objects.filter(pk=product_id).update(**changes):
            # A product without a row is sold all the same. Another run may be adding the row right now.
            Stock.objects.bulk_create([Stock(product_id=product_id)], ignore_conflicts=True)
            Stock.objects.filter(pk=product_id).update(**changes)
    StockMovement.objects.bulk_create(
        StockMovement(run_id=booking.run_id, cart_id=booking.cart_id, product_id=product_id, kind=kind, quantity=units)
        for product_id, units in sorted(booking.units.items())
    )
    return sum(booking.units.values())


@activity(start_to_close=timedelta(seconds=30))
def send_receipt(receipt: Receipt) -> None:
    """Store the receipt for the customer, once for the activity's key."""
    _notify(
        recipient=receipt.customer,
        subject=f"Receipt for cart {receipt.cart_id}",
        body=f"{receipt.lines} lines, {receipt.total} in all. Thank you.",
    )


@activity(atomic=True)
def create_account(user_id: str) -> Account:
    """Create the user, or return the one that exists."""
    from django.contrib.auth import get_user_model  # noqa: PLC0415 - see the top

    user, _ = get_user_model().objects.get_or_create(username=user_id)
    return Account(id=user.pk, user_id=user_id)


@activity(start_to_close=timedelta(seconds=30))
def send_welcome(account: Account) -> None:
    """Welcome a new customer."""
    _notify(recipient=account.user_id, subject="Welcome", body=f"Your account has the number {account.id}.")


def _notify(*, recipient: str, subject: str, body: str) -> None:
    from example_project.shop.models import Notice  # noqa: PLC0415 - see the top

    defaults = {"recipient": recipient, "subject": subject, "body": body}
    Notice.objects.get_or_create(key=activity_context().idempotency_key, defaults=defaults)


@activity(retry=RetryPolicy(max_attempts=3), start_to_close=timedelta(seconds=30))
def process_item(product_id: str) -> str:
    """Normalize the spaces in a product's names; fails for a product that does not exist."""
    from example_project.shop.models import Product  # noqa: PLC0415 - see the top

    product = Product.objects.get(pk=product_id)
    product.kind = " ".join(product.kind.split())
    product.category = " ".join(product.category.split())
    product.save(update_fields=["kind", "category"])
    return product.name


@activity(retry=RetryPolicy(max_attempts=3), start_to_close=timedelta(seconds=30))
def current_price(sku: str) -> str:
    """Look up the price of a product; fails for one without a price."""
    from example_project.shop.models import Product  # noqa: PLC0415 - see the top

    return str(Product.objects.exclude(price=None).values_list("price", flat=True).get(pk=sku))


@activity(atomic=True)
def store_events(collector: str, collected: Collected) -> int:
    """Write one generation of events."""
    from example_project.shop.models import CollectedEvent  # noqa: PLC0415 - see the top

    rows = [
        CollectedEvent(collector=collector, generation=collected.generation, position=position, payload=payload)
        for position, payload in enumerate(collected.events)
    ]
    return len(CollectedEvent.objects.bulk_create(rows))
