"""Old and new code side by side.

What one worker cannot take another one does, and all is well when the old ones have gone.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Chain, Instance
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]

OLD = """
from temporalex_django import Ok, Workflow, api

class Rolling(Workflow):
    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))
"""
NEW = """
import os
import time

from temporalex_django import Ok, Workflow, activity, api

@activity
def added(n):
    return n + 1

class Rolling(Workflow):
    async def run(self, args):
        n = await added(1)
        await api.wait_for_signal("go")
        return Ok(await added(n))

class Fresh(Workflow):
    async def run(self, args):
        return Ok(await added(args))

@activity
def held(path):
    deadline = time.monotonic() + 60
    while os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.01)

class Held(Workflow):
    async def run(self, args):
        return Ok(await held(args))
"""


def start(workflow: str, number: int, args: Any = None) -> StartedRun:
    new = RunStart(workflow=workflow, workflow_id=f"{workflow}-{number}", args=number if args is None else args)
    return insert_start(new, storage=DjangoStorage())


def closed(runs: list[StartedRun]) -> bool:
    return not Instance.objects.filter(pk__in=[run.run_id for run in runs], closed_at=None).exists()


def deployed(folder: Path, code: str, env: dict[str, str]) -> dict[str, str]:
    """The environment of a worker with that code."""
    package = folder / "rolling"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "workflows.py").write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(folder), env["PYTHONPATH"]])
    settings = "tests.settings_of_processes"
    return {**env, "DJANGO_SETTINGS_MODULE": settings, "TX_TEST_APPS": "rolling", "PYTHONPATH": paths}


def test_runs_of_new_code_that_old_workers_took_heal_when_those_have_gone(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    old, new = deployed(tmp_path / "old", OLD, subprocess_env), deployed(tmp_path / "new", NEW, subprocess_env)
    runs = [start("Rolling", number) for number in range(6)]
    with worker(new, tmp_path, name="new"):
        wait_for(lambda: all("signal" in str(run.waiting_for) for run in Instance.objects.all()))
    with worker(old, tmp_path, name="old") as before:
        for run in runs:
            insert_message(run.chain_id, kind="signal", name="go", body=None, storage=DjangoStorage())
        wait_for(lambda: Instance.objects.filter(blocked__code="nondeterminism").count() == 6)
        with worker(new, tmp_path, name="newer"):
            # as after many tries: the next one is far away
            Chain.objects.filter(closed=False, failed_tries__gt=0).update(due_at=F("activated_at") + timedelta(hours=1))
            before.terminate()
            wait_for(lambda: closed(runs))
    assert {run.status for run in Instance.objects.all()} == {"completed"}


def test_classes_and_activities_that_old_workers_lack_are_left_to_new_ones(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    old, new = deployed(tmp_path / "old", OLD, subprocess_env), deployed(tmp_path / "new", NEW, subprocess_env)
    hold = tmp_path / "hold"
    hold.touch()
    with worker(old, tmp_path, name="old") as before:
        runs = [start("Fresh", number) for number in range(3)]
        wait_for(lambda: Instance.objects.filter(blocked__code="unknown_workflow").count() == 3)
        with worker(new, tmp_path, name="new"):
            runs += [start("Fresh", number) for number in range(3, 20)]
            wait_for(lambda: closed(runs))
            # more than the new one has threads for: the old one comes to them
            runs += [start("Held", number, str(hold)) for number in range(20)]
            before.says("rolling.workflows.held is not in this process: deferred to a worker that has it")
            hold.unlink()
            wait_for(lambda: closed(runs))
    assert {run.status for run in Instance.objects.all()} == {"completed"}
    assert not ActivityTask.objects.exists()
