"""A django-q2 cluster whose processes are killed one after the other.

Workflows go on, and it still ends when it is told to.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from django_q.models import OrmQ
from django_q.tasks import async_task

from temporalex_django.db.inserts import StartedRun
from temporalex_django.liveness.process_identity import identity_of
from temporalex_django.models import Instance, Worker
from tests.faults.test_crash_marks import start as start_of
from tests.faults.test_guardian import env_with
from tests.support.campaign import scaled
from tests.support.processes import Process, cluster, members, parent_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def start(n: int) -> StartedRun:
    return start_of("Doubling", {"n": n}, workflow_id=f"d-{n}")


def closed(started: StartedRun) -> bool:
    return not Instance.objects.get(pk=started.run_id).is_open


def ready(process: Process) -> set[int]:
    """The processes of the cluster that said that they take tasks from its queue."""
    return {int(pid) for pid in re.findall(r"ready for work at (\d+)", process.log.read_text())}


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_workers_come_back_after_an_idle_process_died_with_the_lock_of_the_queue(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with cluster(subprocess_env, tmp_path) as process:
        worker = wait_for(lambda: len(ready(process)) >= 2 and Worker.objects.get().pid)
        for pid in ready(process) - {worker}:  # one of them sits on the queue and waits for a task
            kill(pid)
        kill(worker)

        wait_for(lambda: Worker.objects.exclude(pid=worker).exists(), what="another worker")
        started = start(1)
        wait_for(lambda: closed(started))
        async_task("tests.app.durable.note", str(log), "a task of the project")
        wait_for(log.exists, what="the project's own task")
        wait_for(lambda: not OrmQ.objects.exists())

        assert process.terminate() == 0
        assert members(process) == []
    assert not Worker.objects.exists()


def test_a_cluster_that_lost_all_its_processes_but_two_goes_on_and_ends(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """Pusher, monitor, task workers and workflow workers; its parent and the sentinel are who starts others."""
    with cluster(subprocess_env, tmp_path) as process:
        wait_for(lambda: len(ready(process)) >= 2)
        (sentinel,) = members(process, parent=process.pid)
        for n in range(scaled(1)):
            workers = wait_for(lambda: list(Worker.objects.values_list("pid", flat=True)))
            for pid in members(process):
                if pid not in {process.pid, sentinel}:
                    kill(pid)

            wait_for(lambda dead=workers: Worker.objects.exclude(pid__in=dead).exists(), what="another worker")  # type: ignore[misc]
            started = start(n)
            wait_for(lambda run=started: closed(run))  # type: ignore[misc]
        assert process.terminate() == 0
        assert members(process) == []


def test_a_run_that_no_worker_can_interrupt_is_blocked_and_the_others_go_on(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """The pusher ends the worker and starts another one."""
    armed = tmp_path / "armed"
    armed.touch()
    hanging = start_of("Hanging", {"path": str(armed), "in_c": True})
    others = [start(n) for n in range(3)]
    with cluster(env_with(subprocess_env, HARD_DEADLOCK_TIMEOUT=1.0), tmp_path) as process:
        wait_for(lambda: Instance.objects.get(pk=hanging.run_id).blocked)
        wait_for(lambda: all(closed(other) for other in others))
        assert process.terminate() == 0

    assert process.log.read_text().count("nothing could interrupt its work for ") == 3
    blocked = Instance.objects.get(pk=hanging.run_id).blocked
    assert blocked is not None
    assert "the guardian killed the last one, because nothing could interrupt it for 1 s" in blocked["error"]


def test_a_worker_that_hangs_ends_with_its_pusher(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """No thread of it could find out that it is an orphan."""
    log = tmp_path / "log"
    log.touch()
    start_of("HopelessActivity", {"path": str(log)})
    with cluster(env_with(subprocess_env, HARD_DEADLOCK_TIMEOUT=None), tmp_path):
        wait_for(log.read_text)
        worker = Worker.objects.get().pid
        kill(parent_of(worker))
        assert wait_for(lambda: not identity_of(worker), what="the worker to end with its pusher")
