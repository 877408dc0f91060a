"""Background tasks of the shop."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import django
from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.mail import send_mail

from example_project.shop.models import Product

#: Of Django 6.0 and later, or of its backport; the stubs do not know the arguments that the backend adds.
task: Any = import_module("django.tasks" if django.VERSION >= (6, 0) else "django_tasks").task


def pause_after(error: Exception, result: Any) -> int | None:
    """Return the seconds until the next attempt, or None: an account that was closed does not come back."""
    return None if isinstance(error, ObjectDoesNotExist) else 60 * result.attempts


@task(max_attempts=3, backoff=pause_after)  # type: ignore[untyped-decorator] # see above
def announce_price(product_id: str, username: str) -> None:
    """Send a mail about the new price of a product to a customer.

    Raises ``User.DoesNotExist`` if the customer has closed the account.
    """
    product = Product.objects.get(pk=product_id)
    user: Any = get_user_model().objects.get(username=username)
    text = f"{product.name} costs {product.price} now."
    send_mail("A new price", text, None, [user.email or f"{username}@example.com"])
