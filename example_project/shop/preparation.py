"""The preparation of a demo; every part of it is safe to repeat."""

from __future__ import annotations

import csv
import secrets
import statistics
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from rest_framework.authtoken.models import Token

from example_project.replay.buyer import order_number
from example_project.replay.day import Day
from example_project.replay.manager import Credentials
from example_project.shop.models import Product, Stock
from example_project.shop.money import cents
from example_project.shop.orders import CLERKS, ORDER, OrderProcess
from example_project.shop.workflows import ShoppingCart
from temporalex_django import errors

DEMO_DAY = Path(__file__).resolve().parent.parent / "data" / "2017-06-14" / "basket_lines.csv"
DEMO_USER = "demo"
CLERK = "clerk"
MANAGER = "manager"
MAY_SCHEDULE = ("view_schedule", "manage_schedule", "view_instance", "start_instance")
OPENING_STOCK = 100_000
PRODUCT_COLUMNS = {
    "department": "department",
    "product_category": "category",
    "product_type": "kind",
    "package_size": "package_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The demo's superuser. ``token`` is for the REST API; ``password`` is empty if it was not changed."""

    user: str
    password: str
    token: str


def migrate() -> None:
    """Bring the tables up to date."""
    call_command("migrate", interactive=False, verbosity=0)


def load_products(day: Day) -> int:
    """Load the products.csv beside the file of the day, with the day's usual prices, and return their number.

    A product that costs less than a cent a unit (petrol comes in thousandths) gets no price, and is not for sale on
    the pages.
    """
    file = day.file.with_name("products.csv")
    if not file.exists():
        return 0
    prices = _usual_prices(day)
    with file.open(encoding="utf-8-sig", newline="") as text:
        products = {
            row["product_id"]: Product(
                id=row["product_id"],
                price=prices.get(row["product_id"]),
                **{field: (row.get(column) or "").strip() for column, field in PRODUCT_COLUMNS.items()},
            )
            for row in csv.DictReader(text)
            if row.get("product_id")
        }
    fields = [*PRODUCT_COLUMNS.values(), "price"]
    Product.objects.bulk_create(
        products.values(), batch_size=500, update_conflicts=True, unique_fields=["id"], update_fields=fields
    )
    # Only products without a row: goods that were sold stay sold.
    Stock.objects.bulk_create(
        [Stock(product_id=key, on_hand=OPENING_STOCK) for key in products], batch_size=500, ignore_conflicts=True
    )
    return len(products)


def _usual_prices(day: Day) -> dict[str, Decimal]:
    paid: dict[str, list[int]] = {}
    for basket in day.baskets:
        for line in basket.lines:
            if line.quantity:
                paid.setdefault(line.product_id, []).append(cents(line.amount) // line.quantity)
    usual = {product_id: statistics.median_low(each) for product_id, each in paid.items()}
    return {product_id: Decimal(price) / 100 for product_id, price in usual.items() if price > 0}


def take_over(day: Day) -> int:
    """End the runs that an interrupted play left open for this day's baskets, and return their number."""
    ended = 0
    for basket in day.baskets:
        for run in (ShoppingCart.handle(id=basket.id), OrderProcess.handle(id=ORDER.id_for(order_number(basket)))):
            try:
                run.terminate(reason="left open by an earlier play of the day")
            except (errors.WorkflowNotFound, errors.WorkflowClosed):
                continue
            ended += 1
    return ended


def make_clerk() -> str:
    """Create the user who reviews large orders in a play, and return their REST token. Nobody can log in as them."""
    user, _ = get_user_model().objects.get_or_create(username=CLERK)
    user.groups.add(Group.objects.get_or_create(name=CLERKS)[0])
    token, _ = Token.objects.get_or_create(user=user)
    return str(token.key)


def make_manager() -> Credentials:
    """Create the user who makes a schedule in a play, and give them a new password. They may not do more."""
    password = secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(username=MANAGER, defaults={"is_staff": True})
    user.user_permissions.add(
        *Permission.objects.filter(content_type__app_label="temporalex_django", codename__in=MAY_SCHEDULE)
    )
    user.set_password(password)
    user.save(update_fields=["password"])
    return Credentials(user=user.get_username(), password=password)


def make_login(*, password: str | None = None) -> Login:
    """Create the demo's superuser with a REST token; without ``password`` an existing user keeps theirs."""
    users = get_user_model()
    user, created = users.objects.get_or_create(
        username=DEMO_USER, defaults={"is_staff": True, "is_superuser": True, "email": "demo@example.com"}
    )
    if created and password is None:
        password = secrets.token_urlsafe(9)
    if password is not None:
        user.set_password(password)
        user.save(update_fields=["password"])
    token, _ = Token.objects.get_or_create(user=user)
    return Login(user=user.get_username(), password=password or "", token=token.key)
