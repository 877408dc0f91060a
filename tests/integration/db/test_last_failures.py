"""What the database keeps of an activity that fails: who may read it, and what a lost worker leaves."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.liveness import recovery
from temporalex_django.models import ActivityTask
from temporalex_django.operations.base import storage
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db


@activity(retry=RetryPolicy(initial_interval=3600))
def refuse_the_card(number: str) -> None:
    raise ConnectionError(f"card {number} refused")


class FailsForHours(Workflow):
    name = "test.FailsForHours"

    async def run(self, number):
        await refuse_the_card(number)
        return Ok(None)


def test_the_words_are_for_who_may_see_payloads():
    FailsForHours.start("4711", id="f-1")
    drain()

    seen = {}
    for name, permissions in {"all": ("view_instance", "view_payload"), "shape": ("view_instance",)}.items():
        client = APIClient()
        client.force_authenticate(stored(name, *(f"temporalex_django.{p}" for p in permissions)))
        (seen[name],) = client.get("/api/instances/f-1/").json()["activities"]

    assert seen["all"]["last_failure"]["message"] == "card 4711 refused"
    assert "in refuse_the_card" in seen["all"]["last_failure"]["traceback"]
    assert (seen["all"]["state"], seen["all"]["attempt"], seen["all"]["max_attempts"]) == ("retrying", 1, 0)
    assert seen["all"]["next_try"] == seen["all"]["due_at"] > seen["all"]["last_failure"]["at"]
    assert seen["shape"]["last_failure"]["type"] == "ConnectionError"
    assert "4711" not in str(seen["shape"])


def test_a_lost_worker_is_the_last_failure():
    env = DjangoEnvironment()
    env.hold(refuse_the_card)
    handle = env.start(FailsForHours, "4711")
    (one,) = handle.describe().activities
    assert (one.state, one.last_failure) == ("running", None)

    recovery.release_activities(storage(), one.owner)

    (one,) = handle.describe().activities
    assert (one.state, one.last_failure.type, one.last_failure.attempt) == ("retrying", "WorkerLost", 1)
    assert one.last_failure.since == one.last_failure.at
    assert ActivityTask.objects.get().attempt == 1
