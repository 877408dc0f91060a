"""Background tasks in the admin, click by click: a group is retried, one is scheduled, followed and cancelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from temporalex_django.models import BulkJob, EndedTask, EnqueuedTask, Schedule
from temporalex_django.operations.bulk import run_jobs
from temporalex_django.workers.loop import run_until_idle
from tests.browser.test_admin import Operator, operator  # noqa: F401 - the second is a fixture
from tests.integration.tasks.test_task_operations import working
from tests.settings_tasks import TASKS
from tests.support.waiting import wait_for

with override_settings(TASKS=TASKS):
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)
ADMIN = "/admin/temporalex_django/"


@pytest.fixture(autouse=True)
def _backends(settings: Any) -> None:
    t.RAN.clear()
    settings.TASKS = TASKS


def test_a_group_of_failed_tasks_is_retried_with_three_clicks(operator: Operator) -> None:  # noqa: F811
    page = operator.page
    for _ in range(4):
        t.fails.enqueue("why")
    t.stumbles.enqueue("KeyError")
    run_until_idle()
    page.goto(f"{operator.url}{ADMIN}endedtask/")
    operator.looks()
    row = page.locator("tr", has_text="ValueError at app/tasks.py")
    row.first.get_by_role("link", name="Retry…").click()
    assert "Retry: 4 tasks" in operator.reads
    operator.looks()
    page.get_by_label("Reason").fill("the service is back")
    operator.presses("button", "Retry")
    assert "0 of 4 finished" in operator.reads
    while run_jobs("default"):
        pass
    operator.presses("link", "Refresh")
    assert "4 of 4 finished" in operator.reads
    assert EnqueuedTask.objects.filter(activity__endswith="fails").count() == 4
    assert BulkJob.objects.get().reason == "the service is back"


def test_a_task_is_scheduled(operator: Operator) -> None:  # noqa: F811
    page = operator.page
    page.goto(f"{operator.url}{ADMIN}schedule/add/")
    operator.presses("link", "tests.app.tasks.add")
    page.get_by_label("Name").fill("nightly-sum")
    page.get_by_label("Arguments").fill("[1, 2, 3]")
    page.get_by_label("Cron expressions").fill("30 2 * * *")
    operator.presses("button", "Save")
    assert "do not fit its signature: too many positional arguments" in operator.reads
    operator.looks()
    page.get_by_label("Arguments").fill("[1, 2]")
    operator.presses("button", "Save")
    assert "Saved nightly-sum." in operator.reads
    page.locator("summary", has_text="Trigger now").focus()
    page.keyboard.press("Enter")
    operator.presses("button", "Trigger now")
    run_until_idle()
    task = EndedTask.objects.get()
    operator.presses("link", str(task.pk))
    assert "tests.app.tasks.add" in operator.reads
    assert "It was successful" in operator.reads
    assert Schedule.objects.get().task == "tests.app.tasks.add"


def test_a_bar_is_followed_and_a_running_task_is_cancelled(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    page = operator.page
    t.add.using(run_after=timezone.now()).enqueue(1)
    with working():
        result = t.reports.enqueue(3, 12, "reading rows", str(tmp_path / "end"))
        wait_for(lambda: EnqueuedTask.objects.filter(run_id=result.id, progress__isnull=False).exists())
        page.goto(f"{operator.url}{ADMIN}enqueuedtask/")
        operator.looks()
        assert "3 / 12 reading rows" in operator.reads
        bar = page.locator("progress")
        assert (bar.get_attribute("max"), bar.get_attribute("value")) == ("12", "3")
        operator.presses("link", "tests.app.tasks.reports")
        page.locator("summary", has_text="Cancel").focus()
        page.keyboard.press("Enter")
        page.locator("details[open]").get_by_label("Reason").fill("the wrong file")
        operator.presses("button", "Cancel")
        assert "The task was cancelled." in operator.reads
        wait_for(lambda: EndedTask.objects.filter(pk=result.id).exists())
    page.goto(f"{operator.url}{ADMIN}endedtask/{result.id}/change/")
    operator.looks()
    assert "It was cancelled" in operator.reads
    assert EndedTask.objects.get(pk=result.id).status == "CANCELLED"
