"""Background tasks of the shop."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.mail import send_mail

from example_project.shop.models import Product
from temporalex_django.tasks import task


def pause_after(error: Exception, result: Any) -> int | None:
    """Return the seconds until the next attempt, or None: an account that was closed does not come back."""
    return None if isinstance(error, ObjectDoesNotExist) else 60 * result.attempts


@task(max_attempts=3, backoff=pause_after)
def announce_price(product_id: str, username: str) -> None:
    """Send a mail about the new price of a product to a customer.

    Raises ``User.DoesNotExist`` if the customer has closed the account.
    """
    product = Product.objects.get(pk=product_id)
    user: Any = get_user_model().objects.get(username=username)
    text = f"{product.name} costs {product.price} now."
    send_mail("A new price", text, None, [user.email or f"{username}@example.com"])
