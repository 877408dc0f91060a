"""A failure that is sent for an activity is stored, shown and delivered, whatever its texts are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, activity, errors
from temporalex_django.models import Instance
from tests.support.client_flows import drain

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("is about what they store")]


@activity(queue="nobody")
def awaited() -> None:
    raise AssertionError("a person ends it")


class Waiting(Workflow):
    name = "test.StrangeFailure"

    async def run(self, args: Any) -> Any:
        try:
            await awaited()
        except errors.ActivityFailure as exc:
            return Ok([exc.type, exc.cause])


TEXTS = {
    "nul": "a\x00b",
    "surrogate": "\ud800",
    "long": "x" * 300_000,
    "markup": "<script>alert(1)</script>",
    "separators": "a\u2028b\r\n\x1b[31m",
    "number": 7,
    "list": ["a"],
    "nothing": None,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("field", ["message", "type"])
def test_a_failure_is_refused_or_delivered(field: str, text: str) -> None:
    root = get_user_model().objects.create_superuser("root")
    client = APIClient()
    client.force_authenticate(root)
    handle = Waiting.start(id="strange")
    drain()
    body = {"message": "no", field: TEXTS[text]}

    answer = client.post(
        f"/api/instances/{handle.run_id}/activities/1/fail_activity/", json.dumps(body), content_type="application/json"
    )

    assert answer.status_code in (200, 400), answer.content[:300]
    drain()
    run = Instance.objects.get(pk=handle.run_id)
    assert run.status == ("completed" if answer.status_code == 200 else run.status)
    assert run.blocked is None
    browser = Client()
    browser.force_login(root)
    assert browser.get(f"/admin/temporalex_django/instance/console/runs/{run.pk}/").status_code == 200
    for part in ("", "events/", "timeline/"):
        assert client.get(f"/api/instances/{run.pk}/{part}").status_code == 200
