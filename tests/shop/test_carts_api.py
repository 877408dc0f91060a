"""The shop's own API: carts, with the routes of their runs under the shop's rules."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from rest_framework.test import APIClient

from example_project.shop.carts import open_or_start_cart
from temporalex_django.models import Instance
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db(transaction=True)

LINE = {"product_id": "1134483", "quantity": 2, "amount": "3.98"}


def test_a_customer_fills_a_cart_over_the_shops_own_api() -> None:
    ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
    for user in (ann, bob):
        user.user_permissions.set(
            Permission.objects.filter(codename__in=["view_instance", "update_instance", "signal_instance"])
        )
    cart = open_or_start_cart(ann)
    drain()
    mine, theirs, nobody = APIClient(), APIClient(), APIClient()
    mine.force_authenticate(ann)
    theirs.force_authenticate(bob)
    at = f"/api/carts/{cart.pk}/"

    assert [found["id"] for found in mine.get("/api/carts/").json()] == [cart.pk]
    added = mine.post(f"{at}update/add_item/", {"args": LINE, "id": "u-1"}, format="json")
    assert (added.status_code, added.json()["result"]) == (200, {"item_count": 1})
    assert mine.get(f"{at}update/add_item/?id=u-1").json() == added.json()
    refused = mine.post(f"{at}update/remove_item/", {"args": "nothing"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (422, "update_rejected")
    for answer in (theirs.get(f"{at}state/"), theirs.post(f"{at}signal/checkout/", {}, format="json")):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert nobody.get(f"{at}state/").status_code == 401
    state = mine.get(f"{at}state/").json()
    assert (state["id"], state["workflow"]) == (cart.pk, "ShoppingCart")
    assert "add_item" in state["accepts"]["updates"]
    assert mine.post(f"{at}signal/checkout/", {}, format="json").status_code == 202
    assert Instance.objects.count() == 1
