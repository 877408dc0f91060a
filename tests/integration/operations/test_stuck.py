"""Stuck means one thing wherever it is asked for; and queues are listed because something waits in them."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.models import ActivityTask, Chain, Instance, SwitchedOff, Worker
from temporalex_django.operations.fleet.stats import queue_figures
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.commands import shell

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("runs that workers of the tables do not take")]

LONG_AGO = timedelta(minutes=5)


@activity(retry=RetryPolicy(initial_interval=3600))
def stamp_the_letter() -> int:
    raise ConnectionError("no ink")


class Stamps(Workflow):
    name = "test.StuckStamps"

    async def run(self, args: Any) -> Any:
        return Ok(await stamp_the_letter())


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def worker(*activities: Any, queues: tuple[str, ...] = ("default",)) -> Worker:
    now = timezone.now()
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=uuid.uuid4().int >> 66, kind="worker", host="box", pid=7, queues=[*queues],
        workflows={cls.name: [1] for cls in (Stamps, Sleepy, Basket)}, activity_names=[one.name for one in activities],
        started_at=now, beat_at=now, expires_at=now + timedelta(minutes=1),
    )  # fmt: skip


def waiting_activity(id: str) -> Any:
    run = Stamps.start(id=id)
    drain()
    at = timezone.now() - LONG_AGO
    ActivityTask.objects.filter(workflow_id=id).update(due_at=at, failed_at=None, failure=None, attempt=0)
    return run


def everywhere(client: Client) -> list[set[str]]:
    """The ids of stuck runs, as code, the admin, REST, ``list`` and ``doctor`` have them."""
    rest = APIClient()
    rest.force_authenticate(get_user_model().objects.get(username="root"))
    page = client.get("/admin/temporalex_django/instance/console/runs/?stuck=true").content.decode()
    listed = rest.get("/api/instances/", {"stuck": "true"}).json()["results"]
    ids = [*Instance.objects.values_list("workflow_id", flat=True)]
    printed, doctor = (
        shell("list", "--stuck", "true").out,
        shell("doctor", "--all"),
    )  # beside many findings, no run is named
    assert "next:" in doctor.out, doctor.err
    return [
        {run.id for cls in (Stamps, Sleepy) for run in cls.list(stuck=True)},
        set(re.findall(r"/console/runs/[0-9a-f-]{36}/[^>]*>([^<]+)<", page)),
        {row["id"] for row in listed},
        {one for one in ids if one in printed},
        {one for one in ids if f" {one}: " in doctor.out},
    ]


def test_an_activity_that_no_worker_takes_is_stuck_in_all_interfaces(admin: Client) -> None:
    Sleepy.start(id="asleep")
    Sleepy.start(id="late")
    drain()
    waiting_activity("untaken")
    Chain.objects.filter(run__workflow_id="late").update(due_at=timezone.now() - LONG_AGO)
    worker()

    assert everywhere(admin) == [{"untaken", "late"}] * 5

    worker(stamp_the_letter)
    assert everywhere(admin) == [{"late"}] * 5


@pytest.mark.parametrize(("kind", "name"), [("activity", stamp_the_letter.name), ("queue", "default")])
def test_what_is_switched_off_is_not_stuck(admin: Client, kind: str, name: str) -> None:
    waiting_activity("untaken")
    worker()
    SwitchedOff.objects.create(kind=kind, name=name, since=timezone.now(), by="ann", reason="no ink")

    assert everywhere(admin) == [set()] * 5


def test_a_queue_that_nothing_names_is_listed_while_something_waits_in_it(admin: Client) -> None:
    Sleepy.start(id="late")
    drain()
    waiting_activity("untaken")
    ActivityTask.objects.update(queue="renamed-work", line="of its own")
    Chain.objects.filter(run__workflow_id="late").update(queue="renamed-runs", due_at=timezone.now() - LONG_AGO)
    worker()
    polling = worker(queues=("renamed-runs",))

    found = {one.queue: one for one in queue_figures()}
    assert (found["renamed-work"].due_activities, found["renamed-work"].workers) == (1, [])
    assert found["renamed-work"].lag >= LONG_AGO.total_seconds()
    assert (found["renamed-runs"].due_runs, found["renamed-runs"].workers) == (1, [str(polling)])

    rest = APIClient()
    rest.force_authenticate(get_user_model().objects.get(username="root"))
    listed = {row["queue"]: row for row in rest.get("/api/queues/").json()["results"]}
    assert listed["renamed-work"]["workers"] == []
    assert listed["renamed-runs"]["workers"] == [str(polling)]
    page = admin.get("/admin/temporalex_django/instance/console/workers/").content.decode()
    rows = {cells[0]: cells[1:] for cells in _rows(page)}
    assert rows["renamed-work"][:7] == ["0", "1", "–", "0", "–", "5 min", "no worker"]
    assert rows["renamed-runs"][:7] == ["1", "0", "–", "0", "–", "5 min", "box:7"]
    ActivityTask.objects.all().delete()
    assert "renamed-work" not in {one.queue for one in queue_figures()}


def _rows(page: str) -> list[list[str]]:
    table = page[page.index("tx-queues") : page.index("</table>", page.index("tx-queues"))]
    body = table[table.index("<tbody>") :]
    return [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.DOTALL)
    ]
