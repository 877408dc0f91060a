"""A row that cannot be read blocks itself alone, whatever its table and its column."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import Model
from django.test import Client, override_settings
from rest_framework.test import APIClient

from temporalex_django.db import background_hooks
from temporalex_django.db.retention import Retention
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import (
    ActivityTask,
    BulkItem,
    BulkJob,
    Chain,
    EndedTask,
    EnqueuedTask,
    HumanTask,
    Instance,
    LostWorker,
    OperatorAction,
    Outbox,
    Schedule,
    ScheduleSlot,
    SwitchedOff,
    Worker,
)
from temporalex_django.workers.loop import run_until_idle
from tests.support.damage import Cell, Healthy, World, cells, make_schedule

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.of_the_tables("is about their rows"),
    pytest.mark.each_database,
]

VENDOR = {"sqlite": "sqlite", "postgres": "postgresql"}[os.environ.get("TEST_DB", "sqlite")]
_BATCH_SIZE = 24


def _batches() -> Iterator[Any]:
    for model, group in itertools.groupby(cells(VENDOR), key=lambda cell: cell.model):
        of_model = [*group]
        for start in range(0, len(of_model), _BATCH_SIZE):
            yield pytest.param(of_model[start : start + _BATCH_SIZE], id=f"{model.__name__}-{start // _BATCH_SIZE}")


ADMIN = "/admin/temporalex_django/"


def _command(*args: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.suppress(CommandError):
        call_command("temporalex", *args, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


class Campaign:
    """Everything that reads rows, each with the problem that it has (``problems``, by reader)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.problems: dict[str, str] = {}
        self.said = ""
        #: The runs whose rows are damaged. If rows are damaged that belong to no run, one run stands for all.
        self.runs = world.runs if any(_belongs_to_run(model) for model in world.models) else world.runs[:1]
        self.root = get_user_model().objects.create_superuser("root", email="", password="x")

    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:
            frames = [
                frame
                for frame in traceback.extract_tb(exc.__traceback__)
                if "temporalex_django/" in frame.filename and "/tests/" not in frame.filename
            ]
            place = ""
            if frames:
                place = f"{frames[-1].filename.split('temporalex_django/')[-1]}:{frames[-1].lineno}"
            self.problems[name] = f"{type(exc).__name__}: {str(exc)[:120]} [{place}]"

    def work(self) -> None:
        healthy = Healthy.start(None, id="healthy")
        healthy.signal("go", 4)
        with self.reader("worker"):
            run_until_idle(timeout=60)
        with self.reader("healthy run"):
            assert Instance.objects.values_list("status", flat=True).get(workflow=Healthy.name) == "completed"
        with self.reader("sound schedule"):
            assert Instance.objects.filter(workflow_id__startswith="sound").exists(), "not fired"
        for name, hooks in (
            ("jobs", background_hooks.BACKGROUND_HOOKS),
            ("schedules", background_hooks.SCHEDULE_HOOKS),
        ):
            with self.reader(name):
                for _ in range(10):
                    if not background_hooks.has_work("default", hooks) or not background_hooks.run_hooks(
                        "default", hooks
                    ):
                        break
        entries = {"MAIL": ["ops@example.com"], "BASE_URL": "https://shop.example"}
        with self.reader("alerts"), override_settings(TEMPORALEX={"ALERTS": entries}):
            if background_hooks.has_work("default", background_hooks.ALERT_HOOKS):
                background_hooks.run_hooks("default", background_hooks.ALERT_HOOKS)
        with self.reader("retention"):
            Retention(DjangoStorage("default")).sweep()

    def keys_of(self, model: type[Model]) -> list[Any]:
        """The keys of the rows whose pages are read.

        It is one row, unless rows of the model are damaged, or of a table that its pages show.
        """
        if model is Instance:
            return [run.pk for run in self.runs]
        shown = {model, *SHOWN.get(model, ())}
        keys = [*model.objects.values_list("pk", flat=True)]
        return keys if shown & self.world.models else keys[:1]

    def command(self) -> None:
        for words in ("doctor", "list", "schedules list", "outbox list", "health"):
            with self.reader(f"command {words}"):
                said = _command(*words.split())
                if words == "doctor":
                    self.said = said
        for run in self.runs:
            with self.reader(f"command describe {run.workflow_id}"):
                _command("describe", run.workflow_id)

    def admin(self) -> None:
        client = Client()
        client.force_login(self.root)
        pages = []
        for model in (Instance, *ROWS, EnqueuedTask):
            name = model._meta.model_name
            pages.append(f"{name}/")
            pages += [f"{name}/{key}/change/" for key in self.keys_of(model)]
        # The addresses of runs, jobs, workers and tasks lead to the console.
        pages += [f"instance/console/{page}" for page in CONSOLE]
        pages += [f"instance/console/runs/{run.pk}/{part}/" for run in self.runs for part in PARTS]
        for page in pages:
            with self.reader("admin " + page):
                answer = client.get(ADMIN + page, follow=True)
                assert answer.status_code == 200, (answer.status_code, answer.redirect_chain)

    def rest(self) -> None:
        client = APIClient()
        client.force_authenticate(self.root)
        paths = [
            "instances/",
            "schedules/",
            "workers/",
            "workers/lost/",
            "queues/",
            "switches/",
            "outbox/",
            "bulk/",
            "human-tasks/",
        ]
        for run in self.runs:
            parts = ("", "events/", "timeline/", "activities/", "messages/", "children/", "operations/")
            paths += [f"instances/{run.pk}/{part}" for part in parts]
        names = Schedule.objects.filter(pk__in=self.keys_of(Schedule)).values_list("name", flat=True)
        paths += [f"schedules/{name}/{part}" for name in names for part in ("", "slots/")]
        paths += [f"bulk/{key}/{part}" for key in self.keys_of(BulkJob) for part in ("", "items/")]
        paths += [f"human-tasks/{key}/" for key in self.keys_of(HumanTask)]
        for path in paths:
            with self.reader("rest " + path):
                answer = client.get(f"/api/{path}")
                assert answer.status_code in (200, 404), (answer.status_code, answer.content[:200])
        for run in self.runs:
            with self.reader(f"delete of {run.workflow_id}"):
                for name in ("terminate", "delete"):
                    answer = client.post(f"/api/instances/{run.pk}/{name}/", {"reason": "x"}, format="json")
                    assert answer.status_code in (200, 202, 204, 409), (name, answer.status_code, answer.content[:200])
                assert not Instance.objects.filter(pk=run.pk).exists(), answer.content[:200]


def _belongs_to_run(model: type[Model]) -> bool:
    names = {field.attname for field in model._meta.local_concrete_fields}
    return model in (Instance, Chain) or bool(names & {"run_id", "chain_id"})


#: Pages of the console that list rows, and the parts of the page of a run.
CONSOLE = ("", "runs/", "workers/", "schedules/", "desk/", "switches/", "jobs/", "deploy/")
PARTS = ("timeline", "graph", "messages", "data", "people", "family", "audit", "raw")
ROWS = (BulkJob, EndedTask, HumanTask, OperatorAction, Outbox, SwitchedOff, Worker, Schedule)
#: The tables of which the page of a row shows something, beside its own.
SHOWN: dict[type[Model], tuple[type[Model], ...]] = {
    BulkJob: (BulkItem, Instance, Chain),
    EnqueuedTask: (ActivityTask, EndedTask),
    HumanTask: (Instance, Chain),
    OperatorAction: (Instance, Chain),
    Outbox: (Instance, Chain),
    Schedule: (ScheduleSlot,),
    Worker: (ActivityTask, LostWorker),
}


#: What every column of its kind refuses, so that ``doctor`` names it for as long as it is stored.
NAMED_DAMAGES = {"infinity", "minus_infinity", "year_10000", "bc", "text", "month_13", "number", "not_json", "false"}


#: One column of each kind, of the tables that workers, pages and schedules read first.
EXAMPLES = (
    *("temporalex_chain.due_at", "temporalex_chain.deadline", "temporalex_history_event.at"),
    *("temporalex_history_event.attributes", "temporalex_instance.blocked", "temporalex_instance.status"),
    *(
        "temporalex_message.body",
        "temporalex_message.kind",
        "temporalex_activity_task.options",
        "temporalex_schedule.position",
    ),
    *("temporalex_human_task.form", "temporalex_worker.workflows"),
)


def test_one_of_each_kind_stops_nothing_else() -> None:
    chosen: dict[str, Cell] = {}
    for cell in cells(VENDOR):
        chosen.setdefault(cell.column, cell)
    _check([chosen[column] for column in EXAMPLES])


@pytest.mark.parametrize("batch", [*_batches()])
def test_a_row_that_cannot_be_read_stops_nothing_else(batch: list[Cell]) -> None:
    _check(batch)


def _check(batch: list[Cell]) -> None:
    """Damage a row for each of the cells, and let everything read them."""
    world = World(batch)
    make_schedule("sound")
    damaged = world.damage()
    before = {cell: cell.stored(key) for cell, key in damaged.items()}
    campaign = Campaign(world)
    campaign.work()
    kept = [cell for cell, key in damaged.items() if cell.stored(key) == before[cell]]
    campaign.command()
    named = [cell for cell, key in damaged.items() if cell.is_named(key, campaign.said)]
    campaign.admin()
    campaign.rest()
    _report(damaged, kept, named, campaign.problems)
    assert not campaign.problems
    assert not [str(cell) for cell in kept if cell.damage in NAMED_DAMAGES and cell not in named]


def _report(damaged: Collection[Cell], kept: list[Cell], named: list[Cell], problems: dict[str, str]) -> None:
    """Add a row of Markdown for each cell to the file that ``CAMPAIGN_TABLE`` names."""
    if not (path := os.environ.get("CAMPAIGN_TABLE")):
        return
    with Path(path).open("a", encoding="utf-8") as table:
        for cell in damaged:
            noticed = (
                "doctor" if cell in named else "nobody: it can be read" if cell in kept else "a turn, which replaced it"
            )
            stopped = "; ".join(problems) or "nothing"
            table.write(f"| {VENDOR} | `{cell.column}` | {cell.damage} | {noticed} | {stopped} |\n")
