"""A schedule is made, triggered and paused in the admin, click by click, under a strict CSP."""

from __future__ import annotations

from typing import Any

import pytest

from temporalex_django import Ok, Workflow
from temporalex_django.models import Instance, Schedule
from tests.browser.test_admin import Operator, operator  # noqa: F401 - the second is a fixture
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
    page.goto(f"{operator.url}{SCHEDULES}")
    operator.looks()
    assert "the printer is broken" in operator.reads
    assert page.locator(".tx-outcomes li").first.get_attribute("title").endswith("started")
