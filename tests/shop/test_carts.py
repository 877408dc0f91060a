"""Carts in the admin: rows of the shop, with what their workflows have published."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from example_project.shop.carts import open_or_start_cart
from example_project.shop.models import Cart
from example_project.shop.workflows import ShoppingCart
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_list_of_carts_shows_phase_and_total_of_their_workflows() -> None:
    ann = User.objects.create_superuser("ann")
    cart = open_or_start_cart(ann)
    drain()
    ShoppingCart.handle(cart.pk).update("add_item", {"product_id": "1134483", "quantity": 2, "amount": "1003.98"})
    Cart.objects.create(id="web-without-a-run", user=User.objects.create_user("bob"))

    client = Client()
    client.force_login(ann)
    page = client.get("/admin/shop/cart/").content.decode()

    assert '<td class="field-phase">open</td>' in page
    assert '<td class="field-total">1003.98</td>' in page
    assert '<td class="field-total">–</td>' in page
    large = Cart.objects.with_workflow_state("total").filter(workflow_total__gt=1000)  # type: ignore[attr-defined]
    assert [one.pk for one in large] == [cart.pk]
