"""``temporalex doctor`` on schedules that do not fire as people expect."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django import Schedule as Declaration
from temporalex_django.management import outputs
from temporalex_django.models import Schedule, ScheduleSlot, Worker
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.integration.management.test_commands import fits, golden
from tests.integration.management.test_doctor import _same_each_time, worker
from tests.support.client_flows import Basket
from tests.support.commands import shell, stable
from tests.support.matrix import nightly
from tests.support.people import stored

__all__ = ["_same_each_time"]
pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("schedules, which are rows on both backends")]

DAY = timedelta(days=1)


def save(name: str = "nightly", **columns: Any) -> Schedule:
    row = SaveSchedule(parse_definition(nightly(name)), create=True).execute()
    Schedule.objects.filter(pk=row.pk).update(**columns)
    return row


def missed(count: int, *, ago: timedelta) -> None:
    row, at = save(), timezone.now() - ago
    ScheduleSlot.objects.create(
        schedule=row, at=at, cause="time", outcome="missed", reason="window", decided_at=at, count=count
    )
    ScheduleSlot.objects.create(
        schedule=row, at=at - DAY, cause="time", outcome="skipped", reason="overlap", decided_at=timezone.now()
    )


def declared() -> None:
    Declaration("new", Basket, cron="0 6 * * *")


def several_overdue() -> None:
    save("first", next_at=timezone.now() - DAY)
    save("second", next_at=timezone.now() - timedelta(minutes=10))


#: What is wrong by the code of the diagnosis, the severity, and how it came to that.
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "overdue": ("error", several_overdue),
    "ahead": ("error", lambda: save(position=timezone.now() + DAY)),
    "error": ("error", lambda: save(error="the holidays function 'bank' raised OSError.")),
    "class": ("error", lambda: save(workflow="shop.Gone")),
    "unpolled": ("warning", lambda: (save(), worker(queues=["slow"]))),
    "missed": ("warning", lambda: missed(12, ago=timedelta(hours=2))),
    "failures": ("warning", lambda: save(paused_at=timezone.now(), paused_by_failures=True, failures=5)),
    "gone": ("warning", lambda: save("it's", gone_since=timezone.now(), owner="code", module="shop.schedules")),
    "differs": ("warning", declared),
}


def test_each_problem_has_a_sentence_and_a_next_step() -> None:
    said = []
    for kind, (severity, rows) in WRONG.items():
        Schedule.objects.all().delete()
        Worker.objects.all().delete()
        rows()
        ran = shell("doctor", "--json", "--skip-checks")
        codes = {one["code"]: one for one in fits("doctor", ran.out)["findings"]}
        finding = codes[f"schedule_{kind}"]
        assert finding["severity"] == severity, kind
        assert {code for code in codes if code.startswith("schedule_")} <= {f"schedule_{kind}", "schedule_differs"}
        assert severity == "warning" or ran.status == outputs.FINDINGS
        said.append(stable(f"{severity}: {finding['text']}\n    next: {finding['next_step']}\n"))
    golden("doctor/schedules.txt", *said)


@pytest.mark.parametrize(
    "rows",
    [
        lambda: save(),
        lambda: missed(3, ago=2 * DAY),
        lambda: save(next_at=timezone.now() - timedelta(seconds=30)),
        lambda: save(position=timezone.now() + timedelta(minutes=1)),
        lambda: save(paused_at=timezone.now(), workflow="shop.Gone"),
        lambda: save(next_at=None, workflow="shop.Gone"),
    ],
    ids=["well", "missed long ago", "just due", "clocks differ", "paused", "ended"],
)
def test_what_is_no_problem(rows: Callable[[], Any]) -> None:
    worker()
    rows()
    (finding,) = json.loads(shell("doctor", "--json").out)["findings"]
    assert finding["code"] == "well"


def test_a_user_reads_about_the_schedules_that_they_may_see() -> None:
    worker()
    save(error="no such function")
    declared()
    stored("ann", "temporalex_django.view_instance")
    stored("bob", "temporalex_django.view_instance", "temporalex_django.view_schedule")

    def codes(user: str) -> list[str]:
        return [one["code"] for one in json.loads(shell("doctor", "--json", "--as-user", user).out)["findings"]]

    assert codes("ann") == ["well"]
    assert codes("bob") == ["schedule_error"]
