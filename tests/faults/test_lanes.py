"""Lanes of activities in a real worker: a process of their own for those that compute, one loop for async ones."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from temporalex_django.db.inserts import insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.liveness.process_identity import identity_of
from temporalex_django.models import ActivityTask, Instance
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_runs_in_a_process_beats_is_cancelled_and_may_die(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    hold, log = tmp_path / "hold", tmp_path / "log"
    hold.touch()
    log.touch()
    args = {"hold": str(hold), "log": str(log)}
    with worker(subprocess_env, tmp_path) as running:
        started = insert_start(RunStart(workflow="Laned", workflow_id="l-1", args=args), storage=DjangoStorage())
        wait_for(lambda: ActivityTask.objects.filter(heartbeat__isnull=False).exists(), what="the heartbeat")
        assert ActivityTask.objects.get().heartbeat_details == {"at": 10}
        hold.unlink()
        wait_for(lambda: "spins" in log.read_text() and "watches" in log.read_text(), what="both")
        spinning = next(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("spins"))
        insert_message(started.chain_id, kind="signal", name="enough", body=None, storage=DjangoStorage())
        wait_for(lambda: "saw it" in log.read_text(), what="that it is cancelled")
        wait_for(lambda: not identity_of(spinning), what="the end of what does not look")
        row = wait_for(lambda: Instance.objects.filter(pk=started.run_id, status="completed").first(), what="the end")
        (pid, total), attempt, missed, weighed, declined = row.closing_value["result"]
        assert pid != running.child
        assert (total, attempt, missed[:2]) == (45, 2, ["KeyError", 1])
        assert declined == ["Declined", 1, {"code": 7}], "raised with non_retryable"
        assert (
            weighed[:2] == ["PayloadError", 1]
            and "a Decimal" in weighed[2]
            and "would come back as a string" in weighed[2]
        )


def test_a_process_ends_with_its_worker_whatever_it_computes(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with worker(subprocess_env, tmp_path) as running:
        insert_start(RunStart(workflow="Grinding", workflow_id="g-1", args={"log": str(log)}), storage=DjangoStorage())
        wait_for(lambda: "\n" in log.read_text(), what="that it grinds")
        grinding = int(log.read_text().split()[1])
        running.kill()
    try:
        assert wait_for(lambda: not identity_of(grinding), what="the end of what listens to nobody")
    finally:
        with suppress(ProcessLookupError):
            os.kill(grinding, signal.SIGKILL)


def test_async_activities_wait_side_by_side(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """2,000 on one worker, of which none ends before all have begun."""
    env = {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps({"ACTIVITY_TASKS": 2000}),
    }
    with worker(env, tmp_path):
        started = insert_start(
            RunStart(workflow="Napping", workflow_id="n-1", args={"n": 2000}), storage=DjangoStorage()
        )
        row = wait_for(
            lambda: Instance.objects.filter(pk=started.run_id, status="completed").first(), what="the end", seconds=90
        )
        assert row.closing_value["result"] == 2000 * 2000
