"""The background tasks of the shop."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.test import Client
from django.urls import reverse

from example_project.shop.models import Cart, Product
from temporalex_django.models import EndedTask
from temporalex_django.workers.loop import run_until_idle


@pytest.mark.django_db(transaction=True)
def test_a_price_is_announced_to_each_customer_and_a_closed_account_stops_no_other() -> None:
    users = get_user_model().objects
    for name in ("ann", "ben"):
        Cart.objects.create(id=f"cart-{name}", user=users.create_user(name))
    product = Product.objects.create(id="1", kind="Milk", price="1.20")
    clerk = Client()
    clerk.force_login(users.create_superuser("clerk"))
    form = {"action": "announce_prices", "_selected_action": [product.pk]}
    answer = clerk.post(reverse("admin:shop_product_changelist"), form, follow=True)
    assert "2 mails will be sent." in answer.content.decode()
    users.get(username="ben").delete()

    run_until_idle()

    assert [(one.to, one.body) for one in mail.outbox] == [(["ann@example.com"], "Milk costs 1.20 now.")]
    assert sorted(EndedTask.objects.values_list("status", flat=True)) == ["FAILED", "SUCCESSFUL"]
