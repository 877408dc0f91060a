"""The root of the API, and the description of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def somebody() -> APIClient:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    return client


def test_the_root_lists_the_resources_at_addresses_that_answer(somebody: APIClient) -> None:
    found: dict[str, Any] = somebody.get("/api/").json()
    assert set(found) == {
        *("instances", "human_tasks", "bulk", "schedules", "tasks", "types", "workers", "queues", "switches", "outbox"),
        "openapi",
    }
    for name, address in found.items():
        assert address == f"http://testserver/api/{name.replace('_', '-')}/"
        assert somebody.get(address).status_code == 200


def test_the_description_is_there_for_programs_and_for_people(somebody: APIClient) -> None:
    described = somebody.get("/api/openapi/").json()
    assert described["openapi"].startswith("3.1")
    assert "/instances/" in described["paths"]

    page = somebody.get("/api/openapi/", headers={"accept": "text/html,*/*"})
    text = page.content.decode()
    assert page["Content-Type"].startswith("text/html")
    assert "<code>/instances/</code>" in text
    assert "<script" not in text
    assert "style=" not in text


def test_neither_is_for_who_is_not_signed_in() -> None:
    for address in ("/api/", "/api/openapi/"):
        assert APIClient().get(address).status_code in (401, 403)
