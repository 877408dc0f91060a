"""Asking a run from the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from temporalex_django.models import Message
from tests.support.client_flows import Basket, drain
from tests.support.run_pages import text_of

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


@pytest.fixture
def run() -> Any:
    handle = Basket.start(id="b-1")
    handle.update("add", 5)
    handle.update("add", 7)
    drain()
    return handle


def signed_in(*codenames: str) -> Client:
    user = get_user_model().objects.create_user("ann", is_staff=True, is_superuser=not codenames)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def test_queries_are_asked_and_answered_on_their_page(run):
    client = signed_in()
    address = f"{RUNS}console/runs/{run.run_id}/query/"
    assert f"{address}?name=upto" in text_of(client, run.run_id)
    assert "Answer" not in client.get(f"{address}?name=items").content.decode()
    before = Message.objects.count()

    assert "[5, 7]" in client.post(f"{address}?name=items", {"token": "t"}).content.decode()
    assert "[5]" in client.post(f"{address}?name=upto", {"token": "t", "payload": "1"}).content.decode()

    failed = client.post(f"{address}?name=broken", {"token": "t"})
    assert (failed.status_code, "no idea" in failed.content.decode()) == (409, True)
    assert client.get(f"{address}?name=nothing").status_code == 404
    assert Message.objects.count() == before


def test_without_the_permission_nothing_is_asked(run):
    client = signed_in("view_instance")
    address = f"{RUNS}console/runs/{run.run_id}/query/?name=items"

    assert "/query/?name" not in text_of(client, run.run_id)
    assert "requires the permission" in client.get(address).content.decode()
    response = client.post(address, {"token": "t"})
    assert response.status_code == 403
    assert "[5, 7]" not in response.content.decode()
