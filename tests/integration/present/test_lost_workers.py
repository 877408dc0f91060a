"""A worker that died stays visible for a day, and a project can say how many workers it expects."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.leases import Heartbeats
from temporalex_django.liveness.recovery import recover
from temporalex_django.models import ActivityTask, FailedAttempt, LostWorker, Worker
from temporalex_django.operations.alerts import ALERT_CODES
from temporalex_django.workers.loop import run_until_idle
from tests.support import tenants
from tests.support.commands import shell
from tests.support.people import stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("rows of workers")]


@activity(name="lost.count", queue="elsewhere")
def count() -> int:
    return 1


class Stock(Workflow):
    """Counts the stock."""

    name = "lost.Stock"

    async def run(self, args: None) -> Any:
        return Ok(await count())


def worker(epoch: int, host: str) -> Worker:
    now = timezone.now()
    return Worker.objects.create(
        id=uuid.uuid4(),
        epoch=epoch,
        kind="worker",
        host=host,
        pid=7,
        queues=["default"],
        workflows={},
        started_at=now,
        beat_at=now,
        expires_at=now + timedelta(minutes=5),
    )


def die(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temporalex_django.liveness.recovery.owner_state", lambda _marker: "unknown")
    heartbeats = Heartbeats()
    recover(DjangoStorage(worker=True), heartbeats, own=Worker.objects.exclude(epoch=epoch).get().pk)
    monkeypatch.setattr(heartbeats, "silence", lambda _epoch: 3600.0)
    recover(DjangoStorage(worker=True), heartbeats, own=Worker.objects.exclude(epoch=epoch).get().pk)


def test_a_worker_that_died_is_shown_with_what_it_held(
    client: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    worker(1, "web-1")
    worker(2, "web-2")
    Stock.start(None, id="berlin")
    run_until_idle(queues=["default"])
    began = timezone.now()
    ActivityTask.objects.update(owner=2, attempt=1, started_at=began)

    die(2, monkeypatch)

    lost = LostWorker.objects.get()
    attempt = FailedAttempt.objects.get()
    assert (lost.name, lost.held_count, lost.held_activities[0]["workflow_id"]) == ("web-2:7", 1, "berlin")
    assert (attempt.outcome, attempt.worker, attempt.began_at) == ("lost", "web-2:7", began)
    client.force_login(get_user_model().objects.create_superuser("root"))
    page = client.get("/admin/temporalex_django/instance/console/workers/").content.decode()
    assert "Lost workers" in page
    assert "lost.count (berlin)" in page
    assert lost.released_by in page
    (row,) = client.get("/api/workers/lost/").json()["results"]
    assert (row["name"], row["held_count"], row["released_by"]) == ("web-2:7", 1, lost.released_by)
    assert row["held_activities"] == lost.held_activities

    assert "few_workers" in ALERT_CODES
    assert "few_workers" not in shell("doctor", "--json").out
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "EXPECTED_WORKERS": 2}
    said = shell("doctor", "--all").out
    assert "1 worker is alive, but the project expects 2. Last lost: web-2:7" in said

    LostWorker.objects.update(lost_at=timezone.now() - timedelta(hours=25))
    assert "Lost workers" not in client.get("/admin/temporalex_django/instance/console/workers/").content.decode()


def test_a_lost_worker_shows_no_run_that_the_user_may_not_see(
    client: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    worker(1, "web-1")
    worker(2, "web-2")
    Stock.start(None, id="red-berlin")
    Stock.start(None, id="blue-berlin")
    run_until_idle(queues=["default"])
    ActivityTask.objects.update(owner=2, attempt=1, started_at=timezone.now())
    die(2, monkeypatch)
    settings.TEMPORALEX = {**getattr(settings, "TEMPORALEX", {}), "ACCESS_POLICY": tenants.POLICY}
    stored("red-ann", "temporalex_django.view_instance", "temporalex_django.view_worker")
    get_user_model().objects.update(is_staff=True)
    client.force_login(get_user_model().objects.get())

    page = client.get("/admin/temporalex_django/instance/console/workers/").content.decode()

    assert "2: lost.count (red-berlin), lost.count<" in page
    assert "blue-berlin" not in page
    (row,) = client.get("/api/workers/lost/").json()["results"]
    held = {entry["workflow_id"] or entry["run_id"] for entry in row["held_activities"]}
    assert held == {"red-berlin", ""}

    get_user_model().objects.get().user_permissions.remove(Permission.objects.get(codename="view_instance"))
    assert "red-berlin" not in client.get("/admin/temporalex_django/instance/console/workers/").content.decode()
    (row,) = client.get("/api/workers/lost/").json()["results"]
    assert row["held_count"] == 2
    assert row["held_activities"][0] == {"activity": "lost.count", "workflow_id": "", "run_id": ""}
