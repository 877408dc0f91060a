"""That no worker takes something is said where it is so, after a while, and by all interfaces in the same words."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.models import ActivityTask, Chain, Worker
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.commands import shell
from tests.support.run_pages import text_of

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("runs that workers of the tables do not take")]

RUNS = "/admin/temporalex_django/instance/"
BOX = 'id="tx-missing"'


@activity(retry=RetryPolicy(initial_interval=3600))
def weigh_the_parcel() -> int:
    raise ConnectionError("the scales do not answer")


class Weighs(Workflow):
    name = "test.UntakenWeighs"

    async def run(self, args: Any) -> Any:
        return Ok(await weigh_the_parcel())


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def rest(admin: Client) -> APIClient:
    made = APIClient()
    made.force_authenticate(get_user_model().objects.get(username="root"))
    return made


def worker(*classes: type[Workflow], activities: Iterable[Any] = (), queues: Iterable[str] = ("default",)) -> Worker:
    now = timezone.now()
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=uuid.uuid4().int >> 66, kind="worker", host="box", pid=1, queues=[*queues],
        workflows={cls.name: [1] for cls in classes}, activity_names=[one.name for one in activities], started_at=now,
        beat_at=now, expires_at=now + timedelta(minutes=1),
    )  # fmt: skip


def page(client: Client, run: Any) -> str:
    return text_of(client, run.run_id)


def said(client: Client, run: Any) -> str:
    found = re.search(r'class="tx-said[^>]*>.*</span> ([^<]+)</p>', page(client, run))
    assert found is not None
    return found[1]


def due_for(**since: float) -> None:
    Chain.objects.filter(due_at__isnull=False).update(due_at=timezone.now() - timedelta(**since))


def test_a_run_that_goes_on_is_taken_by_who_lives(admin: Client, rest: APIClient) -> None:
    """The page judged with a list of workers that it had not read."""
    run = Sleepy.start(id="s-1")
    drain()
    worker(Sleepy)
    worker(Sleepy)
    run.pause("lunch")
    run.unpause()
    assert BOX not in page(admin, run)

    due_for(seconds=30)

    assert BOX not in page(admin, run)
    assert run.describe().waiting_for == rest.get(f"/api/instances/{run.run_id}/").json()["waiting_for"]
    assert not any("worker" in what for what in run.describe().waiting_for)


def test_a_run_that_is_completed_by_hand_is_taken_by_who_lives(admin: Client) -> None:
    run = Weighs.start(id="w-1")
    drain()
    worker(Weighs, activities=[weigh_the_parcel])
    run.complete_activity(1, 5, reason="weighed by hand")

    assert BOX not in page(admin, run)


def test_nothing_is_said_of_what_is_due_only_now(admin: Client, rest: APIClient) -> None:
    run = Basket.start(id="b-1")
    drain()
    run.signal("note", 1)
    started = Sleepy.start(id="s-1")

    for one in (run, started):
        assert BOX not in page(admin, one)
        assert not any("worker" in what for what in one.describe().waiting_for)
        assert not any("worker" in what for what in rest.get(f"/api/instances/{one.run_id}/").json()["waiting_for"])


def test_a_run_that_nobody_takes_says_so_everywhere(admin: Client, rest: APIClient) -> None:
    run = Sleepy.start(id="s-1")
    drain()
    due_for(minutes=5)

    lacking = "a worker: no live worker polls the queue 'default'"
    assert BOX in page(admin, run)
    assert "It is waiting for a worker: no live worker polls the queue" in said(admin, run)
    assert lacking in run.describe().waiting_for
    found = rest.get(f"/api/instances/{run.run_id}/").json()
    assert (found["summary"]["state"], found["summary"]["trouble"]) == ("no_worker", True)
    assert lacking in found["waiting_for"]
    assert "no live worker polls the queue" in shell("doctor", run.id).out
    assert "no live worker polls the queue" in admin.get(f"{RUNS}console/runs/").content.decode()


def test_workers_without_the_code_are_told_from_no_workers(admin: Client, rest: APIClient) -> None:
    run = Sleepy.start(id="s-1")
    drain()
    worker(Basket)
    worker(Basket)
    worker(Sleepy, queues=["slow"])
    due_for(minutes=5)

    lacking = "2 workers poll the queue default; none has the code of test.Sleepy (version 1)"
    text = page(admin, run)
    assert "No live worker has the code of this run" in text
    assert "deploy the code of the class" in text
    assert lacking in said(admin, run)
    assert f"a worker: {lacking}" in run.describe().waiting_for
    assert lacking in rest.get(f"/api/instances/{run.run_id}/").json()["summary"]["text"]
    assert lacking in shell("doctor").out
    assert lacking in shell("doctor", run.id).out


def test_an_activity_whose_code_no_worker_has_is_not_offered_to_be_retried(admin: Client, rest: APIClient) -> None:
    run = Weighs.start(id="w-1")
    drain()
    ActivityTask.objects.update(due_at=timezone.now() - timedelta(minutes=5))
    other = worker(Weighs)

    lacking = f"1 worker polls the queue default; it lacks the code of {weigh_the_parcel.name}"
    text = page(admin, run)
    assert lacking in said(admin, run)
    assert "/do/retry_activity/?seq=1" not in text
    assert "/do/complete_activity/?seq=1" in text
    assert lacking in rest.get(f"/api/instances/{run.run_id}/").json()["summary"]["text"]
    assert lacking in shell("doctor").out
    assert f"a worker with the activity {weigh_the_parcel.name}" in run.describe().waiting_for

    other.delete()
    worker(Weighs, activities=[weigh_the_parcel])
    assert "/do/retry_activity/?seq=1" in page(admin, run)


def test_an_activity_that_is_due_only_now_is_no_trouble(admin: Client) -> None:
    run = Weighs.start(id="w-1")
    drain()
    ActivityTask.objects.update(due_at=timezone.now(), attempt=0, failed_at=None, failure=None)

    assert "has been waiting to start since" in said(admin, run)
