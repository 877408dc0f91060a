"""Attempts that failed, timed out or were lost are kept; a success writes no row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryPolicy, Workflow, activity, api
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.recovery import release_activities
from temporalex_django.models import ActivityTask, FailedAttempt, HistoryEvent, Instance
from temporalex_django.testing import drain
from tests.support.commands import shell
from tests.support.run_pages import text_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows of attempts")]

FAILS: list[bool] = []


@activity(name="kept.pay", retry=RetryPolicy(initial_interval=3600, max_attempts=25))
def pay(order: str) -> str:
    if FAILS:
        raise ConnectionError(f"<b>{order}</b> was refused")
    return "paid"


@activity(name="kept.book", atomic=True, retry=RetryPolicy(initial_interval=3600, max_attempts=3))
def book(order: str) -> str:
    if FAILS:
        raise ConnectionError(f"<b>{order}</b> was refused")
    return "booked"


class Booked(Workflow):
    """Pays inside the turn."""

    name = "kept.Booked"

    async def run(self, order: str) -> Any:
        return Ok(await book(order))


class Kept(Workflow):
    """Pays."""

    name = "kept.Kept"

    async def run(self, order: str) -> Any:
        return Ok(await pay(order))


class Waiting(Workflow):
    """Pays, and waits."""

    name = "kept.Waiting"

    async def run(self, order: str) -> Any:
        await pay(order)
        await api.sleep(3600)
        return Ok(None)


@pytest.fixture(autouse=True)
def _fails() -> Any:
    FAILS.append(True)
    yield
    FAILS.clear()


def attempted(count: int) -> Any:
    handle = Kept.start("card 4711", id="k")
    drain()
    for _ in range(count - 1):
        handle.retry_activity(ActivityTask.objects.get().seq)
        drain()
    return handle


def test_a_success_writes_no_row_and_its_event_says_when_it_began_and_where() -> None:
    FAILS.clear()
    attempted(1)
    event = HistoryEvent.objects.get(kind="ActivityCompleted")
    assert FailedAttempt.objects.count() == 0
    begin = datetime.fromisoformat(event.data["begin"])
    assert event.at - timedelta(minutes=5) < begin <= event.at
    assert ":" in event.data["worker"]


def test_the_last_attempts_are_kept_with_their_run_and_shown_everywhere(client: Client) -> None:
    attempted(2)
    rows = [*FailedAttempt.objects.values_list("attempt", "outcome")]
    user = get_user_model().objects.create_superuser("root")
    api_client = APIClient()
    api_client.force_authenticate(user)
    client.force_login(user)
    run = Instance.objects.get()

    shown = api_client.get(f"/api/instances/{run.pk}/").json()["attempts"]
    page = text_of(client, run.pk)
    described = shell("describe", "k").out

    assert rows == [(1, "failed"), (2, "failed")]
    assert [one["attempt"] for one in shown] == [1, 2]
    assert all(one["began_at"] <= one["ended_at"] and one["worker"] for one in shown)
    assert "test_kept_attempts.py" in shown[0]["traceback"]
    assert page.count("&lt;b&gt;card 4711&lt;/b&gt; was refused") >= 2
    assert "<b>card" not in page
    assert "Attempt 2 of" in described
    assert "Attempt 2 of activity 1  kept.pay" in described


def test_texts_of_attempts_need_the_permission_to_see_payloads() -> None:
    attempted(1)
    user = get_user_model().objects.create_user("ann")
    user.user_permissions.add(Permission.objects.get(codename="view_instance"))
    api_client = APIClient()
    api_client.force_authenticate(user)
    (shown,) = api_client.get(f"/api/instances/{Instance.objects.get().pk}/").json()["attempts"]
    assert (shown["type"], shown["message"], shown["traceback"]) == ("ConnectionError", "", None)


def test_twenty_attempts_are_kept_and_a_failed_run_says_where_it_raised(client: Client) -> None:
    attempted(25)
    run = Instance.objects.get()
    assert run.status == "failed"
    assert [*FailedAttempt.objects.values_list("attempt", flat=True)] == [*range(6, 26)]

    client.force_login(get_user_model().objects.create_superuser("root"))
    page = text_of(client, run.pk)
    assert f"Raised at <code>{run.cause.rpartition(' at ')[2]}</code>" in page
    assert "<summary>Traceback</summary>" in page

    run.chain  # noqa: B018 - it exists until the run is deleted
    shell("delete", "k", "--reason", "tests")
    assert FailedAttempt.objects.count() == 0


@pytest.mark.parametrize("waits", [False, True])
def test_attempts_stay_visible_when_a_later_one_succeeded(client: Client, waits: bool) -> None:
    flow = Waiting if waits else Kept
    handle = flow.start("card 4711", id="k")
    drain()
    FAILS.clear()
    handle.retry_activity(ActivityTask.objects.get().seq)
    drain()
    run = Instance.objects.get()
    user = get_user_model().objects.create_superuser("root")
    api_client = APIClient()
    api_client.force_authenticate(user)
    client.force_login(user)

    page = text_of(client, run.pk)

    assert run.status == ("waiting" if waits else "completed")
    assert "Attempts that failed" in page
    assert [one["attempt"] for one in api_client.get(f"/api/instances/{run.pk}/").json()["attempts"]] == [1]
    assert [attempt.type for attempt in handle.describe().attempts] == ["ConnectionError"]
    assert "Attempt 1 of activity 1  kept.pay" in shell("describe", "k").out


def test_twenty_attempts_are_kept_of_an_activity_that_is_lost_again_and_again() -> None:
    attempted(1)
    storage = DjangoStorage(worker=True)
    for attempt in range(2, 25):
        ActivityTask.objects.update(owner=5, attempt=attempt, max_attempts=0)
        with storage.transaction("stop"):
            release_activities(storage, 5)
    rows = [*FailedAttempt.objects.values_list("attempt", "outcome")]
    assert rows == [(attempt, "lost") for attempt in range(5, 25)]


def test_attempts_of_atomic_activities_are_kept_too() -> None:
    handle = Booked.start("card 4711", id="b")
    drain()
    handle.retry_activity(ActivityTask.objects.get().seq)
    drain()

    rows = [*FailedAttempt.objects.order_by("id")]
    assert [(row.attempt, row.outcome) for row in rows] == [(1, "failed"), (2, "failed")]
    assert all(row.began_at <= row.ended_at and ":" in row.worker for row in rows)
    assert rows[0].as_record.message == "<b>card 4711</b> was refused"

    FAILS.clear()
    handle.retry_activity(ActivityTask.objects.get().seq)
    drain()
    assert Instance.objects.get().status == "completed"
    assert FailedAttempt.objects.count() == 2
