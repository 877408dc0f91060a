"""Something on every page of the console: a broken fleet with a worker, a switch, a schedule, a job, and a release."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.utils import timezone

from temporalex_django import Ok, Workflow
from temporalex_django.authoring.schedules.specs import Cron
from temporalex_django.models import BulkJob, HumanTask, Instance, Schedule, ScheduleSlot, SwitchedOff, Worker
from temporalex_django.operations.base import Actor
from temporalex_django.operations.bulk import StartBulk
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.support.broken_runs import broken_fleet
from tests.support.commands import shell
from tests.support.run_pages import CONSOLE, PARTS, address_of


class NightlyReport(Workflow):
    name = "test.NightlyReportOfTheConsole"

    async def run(self, shop: str) -> Any:
        return Ok(f"the report of {shop}")


def fill_console(user: Any) -> None:
    """Make the rows. ``user`` is a superuser."""
    now = timezone.now()
    broken_fleet()
    Worker.objects.create(
        id=uuid.uuid4(), epoch=1, kind="worker", host="box", pid=1, queues=["default"], workflows={}, started_at=now,
        beat_at=now, expires_at=now + timedelta(hours=1),
    )  # fmt: skip
    SwitchedOff.objects.create(kind="queue", name="reports", since=now, by="ann", reason="the printer is broken")
    definition = ScheduleDefinition(
        name="nightly", workflow=NightlyReport.name, specs=[Cron("30 2 * * *")], tz="UTC", args="Bonn"
    )
    SaveSchedule(definition, create=True).execute()
    schedule = Schedule.objects.get()
    for number in range(35):
        ScheduleSlot.objects.create(
            schedule=schedule, at=now - timedelta(days=number), cause="time", decided_at=now,
            outcome=("started", "skipped", "missed")[number % 3], reason=("", "overlap", "window")[number % 3],
        )  # fmt: skip
    runs = Instance.objects.filter(workflow_id__startswith="red-")
    StartBulk("pause", runs=runs, reason="wait", token="t", by=Actor(user=user)).execute()
    shell("doctor", "--deploy", "--record", "2027.3")


def console_pages() -> Iterator[str]:
    """Yield the addresses of all pages, after ``fill_console``."""
    runs = {run.workflow_id: run.pk for run in Instance.objects.all()}
    schedule, job, task = Schedule.objects.get().pk, BulkJob.objects.get().pk, HumanTask.objects.get().pk
    yield from (f"{CONSOLE}{page}" for page in ("", "workers/", "switches/", "schedules/", "deploy/", "jobs/"))
    yield from (f"{CONSOLE}{page}" for page in ("desk/", "desk/?whose=all", f"desk/{task}/", f"jobs/{job}/"))
    yield from (f"{CONSOLE}schedules/{schedule}/{page}" for page in ("", "backfill/", "delete/"))
    yield from (f"{CONSOLE}runs/{page}" for page in ("", "bulk/?action=terminate&scope=all", "start/"))
    yield f"{CONSOLE}runs/start/?workflow={NightlyReport.name}"
    yield from (address_of(runs[name]) for name in ("blue-1", "blue-blocked", "red-1"))
    yield from (address_of(runs["red-basket"], part) for part in ("", *PARTS))
    yield f"{address_of(runs['red-basket'])}do/terminate/"
