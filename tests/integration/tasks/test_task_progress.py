"""``progress()`` from tasks and activities: what is stored, and how interfaces show it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.urls import reverse

from temporalex_django import Ok, Workflow, activity, activity_context, errors, progress
from temporalex_django.authoring.activity_context import use_context
from temporalex_django.engine.activity_policy import activity_context as context_of
from temporalex_django.models import EndedTask, EnqueuedTask
from temporalex_django.operations.read.background_tasks import TaskFilter, list_tasks
from tests.integration.tasks.test_task_interfaces import APP, VIEW, client_of, command
from tests.integration.tasks.test_task_operations import working
from tests.settings_tasks import TASKS
from tests.support.waiting import wait_for

with override_settings(TASKS=TASKS):
    from tests.app import tasks as t

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _backends(settings: Any) -> None:
    settings.TASKS = TASKS


def test_the_progress_of_a_running_task_is_shown_and_its_text_is_a_payload(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with working():
        result = t.reports.enqueue(3, 12, "reading rows <b>", str(end))
        wait_for(lambda: EnqueuedTask.objects.filter(run_id=result.id, progress__isnull=False).exists())
        (row,), _ = list_tasks(TaskFilter(), None, limit=1)
        assert (row.progress_done, row.progress_total, row.progress_text) == (3, 12, "reading rows <b>")
        answer = client_of(*VIEW).get(reverse("temporalex_rest:tasks")).json()["results"][0]
        assert (answer["id"], answer["progress_done"], answer["progress_text"]) == (str(result.id), 3.0, None)
        client = client_of(*VIEW, f"{APP}.view_payload", name="bob")
        page = client.get(reverse("admin:temporalex_django_enqueuedtask_changelist"))
        assert b'max="12" value="3"' in page.content
        assert b"reading rows &lt;b&gt;" in page.content
        end.touch()
        followed = command("enqueued", "--follow", str(result.id), "--json")
    states = [json.loads(line) for line in followed.splitlines()]
    assert (states[-1]["status"], states[-1]["progress_done"]) == ("SUCCESSFUL", 3.0)
    assert EndedTask.objects.get(pk=result.id).progress is not None


@activity
def counts(end: str) -> int:
    context, number = activity_context(), 0
    deadline = time.monotonic() + 30
    while not Path(end).exists() and time.monotonic() < deadline:
        number += 1
        context.progress(number, 1000, f"row {number}")
        time.sleep(0.001)
    return number


class Progressing(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await counts(args))


def test_the_progress_of_an_activity_is_shown_with_its_run(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with working():
        run = Progressing.start(str(end), id="count")
        wait_for(lambda: any(open_.progress for open_ in run.describe().activities))
        (open_activity,) = run.describe().activities
        assert open_activity.progress is not None
        assert open_activity.progress["total"] == 1000
        viewer = client_of(f"{APP}.view_instance")
        shown = viewer.get(reverse("temporalex_rest:instance", args=[run.describe().run_id])).json()
        assert shown["activities"][0]["progress"]["total"] == 1000
        assert shown["activities"][0]["progress"]["text"] == ""
        page = viewer.get(reverse("admin:temporalex_console:run", args=[run.describe().run_id]))
        assert b'max="1000"' in page.content
        end.touch()
        assert run.result(timeout=60) > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((-1, 2), ValueError), (("1", 2), TypeError), ((1, float("inf")), ValueError), ((True, 2), TypeError)],
)
def test_progress_that_makes_no_sense_fails_where_it_is_reported(arguments: tuple[Any, ...], error: type) -> None:
    reports: list[Any] = []
    state = type("State", (), {"attempt": 1, "options": {}, "run_id": "r", "seq": 1, "workflow_id": "w"})()
    state.heartbeat_details = state.previous_failure = state.headers = None
    with use_context(context_of(state, report_progress=reports.append)):
        with pytest.raises(error, match="progress: (done|total)="):
            progress(*arguments)
        progress(5, 3, "more than all")
        progress(1, 3)
    assert [(report["done"], report["total"]) for report in reports] == [(5, 3), (1, 3)]


def test_progress_belongs_into_an_activity() -> None:
    with pytest.raises(errors.OutsideWorkflow):
        progress(1, 2)
