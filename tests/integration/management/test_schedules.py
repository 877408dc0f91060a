"""``temporalex schedules``: what people and programs get, and how it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.checks import run_checks

from temporalex_django import Schedule as Declaration
from temporalex_django.authoring.schedules import schedule as declarations
from temporalex_django.management import outputs
from temporalex_django.models import OperatorAction, Schedule, ScheduleSlot
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.operations.schedules.sync import sync_schedules
from tests.integration.management.test_commands import Keyboard, fits, golden, plain
from tests.support.client_flows import Basket
from tests.support.commands import shell, transcript
from tests.support.matrix import nightly
from tests.support.people import stored

pytestmark = pytest.mark.django_db

RANGE = ("--start", "2026-01-01", "--end", "2026-01-03T12:00")


@pytest.fixture(autouse=True)
def _in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("temporalex_django.management.arguments.os_account", lambda: "operator")
    monkeypatch.setattr(declarations, "_declarations", {})


def save(**values: Any) -> Schedule:
    return SaveSchedule(parse_definition({**nightly("nightly"), **values}), create=True).execute()


def declare(name: str, **values: Any) -> None:
    """A schedule of a module that belongs to an installed app."""
    declaration = Declaration(name, Basket, **{"cron": "0 6 * * *", **values})
    object.__setattr__(declaration, "module", "temporalex_django.access")


def test_what_they_look_like() -> None:
    save()
    save(name="weekly", cron="0 9 * * mon", tz="UTC", jitter=60, max_fires=3)
    ScheduleSlot.objects.create(
        schedule=Schedule.objects.get(name="weekly"), at=datetime(2026, 1, 5, 9, tzinfo=UTC), cause="time",
        outcome="missed", reason="window", decided_at=datetime(2026, 1, 9, tzinfo=UTC), count=2,
        until=datetime(2026, 1, 12, 9, tzinfo=UTC),
    )  # fmt: skip
    said = [
        transcript("schedules", "list"),
        transcript("schedules", "list", "--search", "WEEK", "--limit", "1"),
        transcript("schedules", "list", "--state", "gone"),
        transcript("schedules", "pause", "weekly", "--reason", "bank holiday"),
        transcript("schedules", "pause", "weekly"),
        transcript("schedules", "show", "weekly"),
        transcript("schedules", "unpause", "weekly"),
        transcript("schedules", "show", "nobody"),
        transcript("schedules", "backfill", "nightly", *RANGE, "--dry-run"),
        transcript("schedules", "backfill", "nightly", *RANGE),
        transcript("schedules", "backfill", "nightly", "--stop"),
        transcript("schedules", "backfill", "nightly", "--start", "2026-01-01"),
        transcript("schedules", "backfill", "nightly", "--start", "today", "--end", "2026-01-02"),
        transcript("schedules", "delete", "weekly"),
        transcript("schedules", "list", "--limit", "0"),
    ]
    golden("schedules.txt", *said)

    (listed,) = plain(shell("schedules", "list", "--json", "--owner", "people")).splitlines()
    assert fits("schedules", listed)["description"] == "Every day at 02:30 (Europe/Berlin)"
    shown = fits("schedules", plain(shell("schedules", "show", "nightly", "--json")))
    assert (shown["name"], shown["catch_up"], len(shown["next_fires"])) == ("nightly", 3600.0, 20)
    actions = (
        OperatorAction.objects.filter(source="command").order_by("pk").values_list("action", "actor_name", "reason")
    )
    assert [*actions][0] == ("save_schedule", "operator", "") or [*actions][0][0] == "pause_schedule"
    assert ("pause_schedule", "operator", "bank holiday") in [*actions]


def test_trigger_says_what_became_of_the_slot() -> None:
    """A run that cannot be started is an error of the command, with the reason on its output."""
    row = save(workflow_id="nightly-{slot:%Y}")
    Schedule.objects.filter(pk=row.pk).update(editor_name="somebody who is gone")
    failed = shell("schedules", "trigger", "nightly", "--json")
    assert failed.status == outputs.REFUSED
    assert "Correct that, then: manage.py temporalex schedules trigger nightly" in failed.err
    slot = fits("schedules", failed.out)["slot"]
    assert (slot["outcome"], slot["error_code"], slot["run_id"]) == ("failed", "not_permitted", None)

    Schedule.objects.filter(pk=row.pk).update(editor_name="")
    slot = fits("schedules", plain(shell("schedules", "trigger", "nightly", "--json")))["slot"]
    assert (slot["outcome"], slot["cause"], slot["status"]) == ("started", "trigger", "pending")
    assert plain(shell("schedules", "trigger", "nightly")) == "nightly: skipped (overlap)\n"


def test_a_backfill_and_a_deletion_are_asked_about_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    save()

    def answered(text: str, *arguments: Any) -> Any:
        monkeypatch.setattr("sys.stdin", Keyboard(text))
        return shell("schedules", *arguments)

    refused = answered("no\n", "backfill", "nightly", *RANGE, "--per-minute", "5")
    assert (refused.status, refused.out) == (outputs.FINDINGS, "")
    assert "Start 3 runs of test.Basket, at most 5 a minute? [y/N]" in refused.err
    assert "Continue for nightly? [y/N]" in answered("", "delete", "nightly").err
    row = Schedule.objects.get()
    assert row.backfill is None

    begun = answered("y\n", "backfill", "nightly", *RANGE, "--per-minute", "5", "--json")
    assert fits("schedules", begun.out) == {
        "name": "nightly", "slots": 3, "started": 0, "to_start": 3, "dry_run": False,
        "first": "2026-01-01T01:30:00Z", "last": "2026-01-03T01:30:00Z",
    }  # fmt: skip
    row.refresh_from_db()
    assert (row.backfill["total"], row.backfill["pause"]) == (3, 12.0)
    assert (
        plain(answered("", "backfill", "nightly", "--stop")) == "the schedule nightly is no longer being backfilled\n"
    )
    assert answered("", "delete", "nightly", "--yes").err == ""
    assert not Schedule.objects.exists()


def test_diff_says_what_migrate_would_do_and_fails_a_pipeline() -> None:
    alike = shell("schedules", "diff")
    assert (alike.status, alike.out) == (0, "the schedules match the code\n")
    save(name="taken")
    for name in ("gone", "changed"):
        declare(name)
    sync_schedules("default")
    declarations._declarations.clear()
    declare("changed", tz="Europe/Berlin")
    declare("new")
    declare("taken")

    ran = shell("schedules", "diff", "--json")
    kinds = {one["name"]: one["kind"] for one in fits("schedules", ran.out)}
    assert kinds == {"changed": "changed", "gone": "gone", "new": "new", "taken": "conflict"}
    assert ran.status == outputs.FINDINGS
    golden("schedules_diff.txt", transcript("schedules", "diff"))
    warnings = run_checks(tags=["database"], databases=["default"])
    assert [one.msg.split()[0] for one in warnings if one.id == "temporalex_django.W013"] == [
        "temporalex_django.access"
    ] * 4
    assert not [one for one in run_checks() if one.id == "temporalex_django.W013"]  # it reads the database

    sync_schedules("default")
    assert [one["kind"] for one in fits("schedules", shell("schedules", "diff", "--json").out)] == ["conflict"]
    Schedule.objects.filter(name="taken").delete()
    sync_schedules("default")
    assert shell("schedules", "diff").status == 0
    assert shell("schedules", "delete", "new").status == outputs.REFUSED  # code declares it
    assert shell("schedules", "delete", "gone").status == 0


def test_a_user_sees_and_does_what_they_may(django_assert_max_num_queries: Any) -> None:
    for number in range(5):
        save(name=f"s{number}")
    stored("ann")
    stored("bob", "temporalex_django.view_schedule")
    for what in (("list",), ("show", "s1"), ("diff",), ("pause", "s1"), ("trigger", "s1"), ("delete", "s1")):
        assert shell("schedules", *what, "--as-user", "ann").status == outputs.NOT_PERMITTED, what
    assert shell("schedules", "pause", "s1", "--as-user", "bob").status == outputs.NOT_PERMITTED
    with django_assert_max_num_queries(20):
        listed = plain(shell("schedules", "list", "--json", "--skip-checks", "--as-user", "bob"))
    assert [json.loads(line)["name"] for line in listed.splitlines()] == [f"s{number}" for number in range(5)]
    assert {json.loads(line)["args"] for line in listed.splitlines()} == {None}
    assert Schedule.objects.filter(paused_at=None).count() == 5
