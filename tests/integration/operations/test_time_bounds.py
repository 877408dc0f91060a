"""Times outside of the years 2 to 9998 in UTC are refused where they enter, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management.base import CommandError
from django.test import override_settings
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, api, errors
from temporalex_django.core.names import check_time
from temporalex_django.management.arguments import parse_time
from temporalex_django.models import Chain, EnqueuedTask, Schedule
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.testing import WorkflowEnvironment
from tests.settings_tasks import BACKEND, TASKS

with override_settings(TASKS=TASKS):
    from temporalex_django.tasks import DurableBackend
    from tests.app import tasks

pytestmark = pytest.mark.django_db

WEST, EAST = timezone(timedelta(hours=-14)), timezone(timedelta(hours=14))
#: Times of Python that some database, time zone or page cannot show.
OUTSIDE = [
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=WEST),
    datetime(9998, 12, 31, 23, tzinfo=WEST),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=EAST),
    datetime(2, 1, 1, 13, tzinfo=EAST),
]
INSIDE = [
    datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2, 1, 1, tzinfo=UTC),
    datetime(2, 1, 1, 14, tzinfo=EAST),
    datetime(9998, 12, 31, 9, 59, tzinfo=WEST),
]


class TimedRun(Workflow):
    name = "test.TimedRun"
    search_attributes = {"sent": datetime}

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Sleeper(Workflow):
    name = "test.SleeperUntil"

    async def run(self, args: datetime) -> Any:
        await api.sleep_until(args)
        return Ok()


def schedule(**values: Any) -> None:
    named = {"name": "timed", "workflow": TimedRun.name, "tz": "UTC", "cron": "0 9 * * *", **values}
    SaveSchedule(parse_definition(named), create=True).execute()


def enqueue(moment: datetime) -> None:
    with override_settings(TASKS=TASKS):
        tasks.add.using(run_after=moment).enqueue(1, 2)


def sleep_until(moment: datetime) -> None:
    handle = WorkflowEnvironment().start(Sleeper, moment)
    if handle.status == "failed":
        handle.result()


REFUSED = (ValueError, CommandError, errors.TemporalexError)
ENTRIES: dict[str, Callable[[datetime], object]] = {
    "start_at": lambda moment: TimedRun.start(start_at=moment),
    "start_before": lambda moment: TimedRun.start(start_before=moment),
    "search attribute": lambda moment: TimedRun.start(search_attributes={"sent": moment}),
    "filter": lambda moment: [*TimedRun.list(created_after=moment)],
    "filter of an attribute": lambda moment: [*TimedRun.list(attributes={"sent__gt": moment})],
    "timer": sleep_until,
    "once": lambda moment: schedule(cron=None, at=moment.isoformat()),
    "start of a schedule": lambda moment: schedule(start=moment.isoformat()),
    "end of a schedule": lambda moment: schedule(end=moment.isoformat()),
    "option of a command": lambda moment: parse_time(moment.isoformat(), option="--start-at"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_time_that_a_database_cannot_return_is_refused(entry: str) -> None:
    for moment in OUTSIDE:
        with pytest.raises(REFUSED, match="2 to 9998"):
            ENTRIES[entry](moment)
    assert not Chain.objects.exists()
    assert not Schedule.objects.exists()


def test_a_task_is_refused_too() -> None:
    assert BACKEND.endswith(DurableBackend.__name__)
    for moment in OUTSIDE:
        with pytest.raises(Exception, match=r"run_after of .* must be in a year from 2 to 9998") as caught:
            enqueue(moment)
        assert type(caught.value).__name__ in ("InvalidTask", "InvalidTaskError")  # the backport has the longer one
    assert not EnqueuedTask.objects.exists()


@pytest.mark.parametrize("moment", OUTSIDE, ids=datetime.isoformat)
def test_a_request_is_refused_and_its_row_does_not_exist(moment: datetime) -> None:
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    for name in ("start_at", "start_before"):
        body = {"workflow": TimedRun.name, "id": "p", name: moment.isoformat()}

        answer = client.post("/api/instances/", body, format="json")

        assert answer.status_code == 400, answer.content
        assert "2 to 9998" in answer.content.decode()
    assert not Chain.objects.exists()
    assert client.get("/api/instances/", {"created_after": moment.isoformat()}).status_code == 400


@pytest.mark.parametrize("moment", INSIDE, ids=datetime.isoformat)
def test_times_within_the_bounds_are_shown_in_every_zone(moment: datetime) -> None:
    assert check_time(moment, label="a time") is moment
    handle = TimedRun.start(start_at=moment, search_attributes={"sent": moment})
    client = APIClient()
    client.force_authenticate(get_user_model().objects.create_superuser("root"))
    client.force_login(get_user_model().objects.get())
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        with override_settings(TIME_ZONE=zone):
            assert client.get(f"/api/instances/{handle.id}/").status_code == 200
            assert client.get("/admin/temporalex_django/instance/").status_code == 200
            assert client.get(f"/admin/temporalex_django/instance/console/runs/{handle.run_id}/").status_code == 200
