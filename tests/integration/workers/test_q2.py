"""A real django-q2 cluster with our broker: it advances workflows and runs the project's own tasks."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from django_q.models import OrmQ
from django_q.tasks import async_task

from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Instance, Worker
from tests.support.processes import cluster, members, running
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def closed(started: StartedRun) -> bool:
    return not instance(started).is_open


def test_one_cluster_does_workflows_and_the_projects_tasks(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with cluster(subprocess_env, tmp_path) as process:
        runs = [start("Booking", {"name": f"u{i}"}, workflow_id=f"b{i}") for i in range(10)]
        for i in range(10):
            async_task("tests.app.durable.note", str(log), f"task {i}")

        wait_for(lambda: all(closed(run) for run in runs))
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 10)
        wait_for(lambda: not OrmQ.objects.exists())
        began = time.monotonic()
        assert process.terminate() == 0
        assert time.monotonic() - began < 20

    assert {instance(run).status for run in runs} == {"completed"}
    assert sorted(log.read_text().splitlines()) == [f"task {i}" for i in range(10)]
    assert not Worker.objects.exists()


def test_a_killed_worker_is_replaced_by_the_cluster(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    with cluster(subprocess_env, tmp_path) as process:
        started = start("Recording", {"path": str(log), "hold": str(hold)})
        wait_for(log.read_text)
        victim = Worker.objects.get()
        os.kill(victim.pid, signal.SIGKILL)
        hold.unlink()

        wait_for(lambda: closed(started))
        assert Worker.objects.get().pid != victim.pid
        process.terminate()

    assert [line.split()[0] for line in log.read_text().splitlines()] == ["1", "2"]


def test_a_cluster_that_is_killed_takes_its_workers_with_it(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with cluster(subprocess_env, tmp_path) as process:
        worker = Worker.objects.get().pid
        (sentinel,) = members(process, parent=process.pid)
        os.kill(process.pid, signal.SIGKILL)
        os.kill(sentinel, signal.SIGKILL)

        wait_for(lambda: not Worker.objects.exists(), what="the orphaned worker to leave")
        wait_for(lambda: _gone(worker), what="the orphaned worker to end")

        assert not Worker.objects.exists()
        assert _gone(worker)


def _gone(pid: int) -> bool:
    """Whether a process has ended; its parent may not have asked for its status yet."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_sigterm_to_the_whole_group_ends_the_workers_cleanly_or_is_survived(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """Stock django-q2 hangs on it, hence KillMode=mixed; what a worker had is not lost either way."""
    with cluster(subprocess_env, tmp_path) as process:
        started = start("Doubling", {"n": 1})
        wait_for(lambda: closed(started))
        os.killpg(process.pid, signal.SIGTERM)
        later = start("Doubling", {"n": 2}, workflow_id="later")
    with running(["temporalex", "worker", "--burst"], subprocess_env, tmp_path / "burst.log") as burst:
        assert burst.popen.wait(40) == 0

    assert instance(later).closing_value == {"result": 4}


def test_a_cluster_survives_that_its_temporary_files_are_cleaned_away(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "t"
    place.mkdir()
    with cluster({**subprocess_env, "TMPDIR": str(place)}, tmp_path) as process:
        worker = Worker.objects.get().pid
        for path in place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        started = start("Doubling", {"n": 1})
        wait_for(lambda: closed(started))
        assert Worker.objects.get().pid == worker
        assert process.terminate() == 0
