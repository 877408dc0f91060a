"""A schedule is made, triggered, paused and backfilled, click by click, under a strict CSP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from temporalex_django import Ok, Workflow
from temporalex_django.authoring.schedules.specs import Cron
from temporalex_django.models import Instance, Schedule, ScheduleSlot
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules.definition import ScheduleDefinition
from temporalex_django.operations.schedules.save import SaveSchedule
from tests.browser.test_admin import CONSOLE, Operator, operator  # noqa: F401 - the second is a fixture
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)

SCHEDULES = "/admin/temporalex_django/schedule/"


class Report(Workflow):
    """Writes the report of a shop."""

    name = "test.ReportInTheBrowser"

    async def run(self, shop: str) -> Any:
        return Ok(f"the report of {shop}")


def test_a_schedule_is_made_triggered_and_paused(operator: Operator) -> None:  # noqa: F811
    page = operator.page
    page.goto(f"{operator.url}{SCHEDULES}add/")
    operator.presses("link", Report.name)
    page.get_by_label("Name").fill("nightly-report")
    page.get_by_label("Value").fill("Bonn")
    page.get_by_label("Time zone").select_option("Europe/Berlin")
    page.get_by_label("Cron expressions").fill("30 2 * *")
    operator.presses("button", "Preview")
    assert "must have five fields" in operator.reads
    page.get_by_label("Cron expressions").fill("30 2 * * *")
    operator.presses("button", "Preview")
    assert "Every day at 02:30 (Europe/Berlin)" in operator.reads
    assert page.locator("#tx-preview tbody tr").count() == 5
    assert not Schedule.objects.exists()
    operator.presses("button", "Save")
    assert "Saved nightly-report." in operator.reads

    page.locator("summary", has_text="Trigger now").focus()
    page.keyboard.press("Enter")
    page.locator("details[open] #trigger_reason").fill("the boss waits")
    operator.presses("button", "Trigger now")
    run = Instance.objects.get()
    assert f"Triggered: the run {run.workflow_id} has been started." in operator.reads
    drain()
    operator.presses("link", run.workflow_id)
    operator.presses("link", "Data")
    assert "the report of Bonn" in operator.reads
    operator.presses("link", "nightly-report")

    page.locator("summary", has_text="Pause").focus()
    page.keyboard.press("Enter")
    page.locator("details[open] #pause_reason").fill("the printer is broken")
    operator.presses("button", "Pause")
    assert "the printer is broken" in operator.reads
    operator.presses("link", "Backfill…")
    page.get_by_label("From").fill("2027-01-01T00:00")
    page.get_by_label("To", exact=True).fill("2026-01-01T00:00")
    operator.presses("button", "Preview")
    assert "must not be earlier than the start of the range" in operator.reads
    operator.presses("link", "Schedules")
    assert "the printer is broken" in operator.reads
    assert page.locator(".tx-outcomes li").first.get_attribute("title").endswith("started")


def test_last_night_and_a_backfill_are_few_clicks_from_the_overview(operator: Operator) -> None:  # noqa: F811
    page = operator.page
    for name in ("nightly", "weekly"):
        definition = ScheduleDefinition(
            name=name, workflow=Report.name, specs=[Cron("30 2 * * *")], tz="UTC", args="Bonn"
        )
        root = get_user_model().objects.get(username="root")
        SaveSchedule(definition, create=True, by=Actor(user=root)).execute()
    now = timezone.now()
    row = Schedule.objects.get(name="nightly")
    for number in range(35):
        ScheduleSlot.objects.create(
            schedule=row, at=now - timedelta(days=number), cause="time", decided_at=now,
            outcome=("started", "skipped", "missed")[number % 3], reason=("", "overlap", "window")[number % 3],
        )  # fmt: skip
    page.goto(f"{operator.url}{CONSOLE}")
    operator.looks()
    operator.presses("link", "Schedules")
    assert page.locator("#tx-live tr", has_text="nightly").locator(".tx-outcomes li").count() == 30
    page.get_by_role("link", name="Backfill… nightly").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    operator.looks()
    page.get_by_label("From").fill("2026-01-01T00:00")
    page.get_by_label("To", exact=True).fill("2026-01-05T00:00")
    operator.presses("button", "Preview")
    operator.presses("button", "Start 4 runs")
    assert "Backfill: 0 of 4 slots" in operator.reads
    # A change is shown in place, while somebody fills in a form.
    page.locator("summary", has_text="Pause").click()
    page.locator("#pause_reason").fill("half a rea")
    Schedule.objects.filter(pk=row.pk).update(error="no holidays function")
    page.wait_for_selector("text=no holidays function", timeout=15_000)
    assert page.locator("#pause_reason").input_value() == "half a rea"
    assert page.locator("details", has_text="Pause").first.evaluate("e => e.open")
    operator.looks()
