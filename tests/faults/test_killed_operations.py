"""kill -9 in the middle of what operators do to runs. Every process here is one that the test started."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from temporalex_django import WorkflowHandle
from temporalex_django.db.inserts import StartedRun, insert_message
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.process_identity import process_state
from temporalex_django.models import BulkItem, BulkJob, Chain, Instance, OperatorAction
from temporalex_django.operations.bulk import StartBulk
from tests.faults.test_crash_marks import closed, instance, start, supervised
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    return log, hold


def handle_of(run: StartedRun) -> WorkflowHandle:
    return WorkflowHandle(run.run_id)


@pytest.fixture
def env(subprocess_env: dict[str, str]) -> dict[str, str]:
    """Who died is found soon."""
    settings = json.dumps({"LEASE_SECONDS": 2.0})
    return {**subprocess_env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_TEMPORALEX": settings}


def test_a_paused_run_whose_worker_is_killed_stays_so_and_loses_nothing(
    env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    log, hold = paths
    recording = start("Recording", {"path": str(log), "hold": str(hold)})
    tally = start("Tally")
    with worker(env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        wait_for(lambda: instance(tally).status == "waiting")
        for one in (recording, tally):
            handle_of(one).pause("bank holiday")
        insert_message(tally.chain_id, kind="signal", name="stop", body=None, storage=DjangoStorage())
        before = [instance(one).events.count() for one in (recording, tally)]
        first.kill()
    hold.unlink()
    with worker(env, tmp_path, name="second"):
        other = start("Doubling", {"n": 2})
        wait_for(lambda: len(log.read_text().splitlines()) == 2)  # what was under way goes on
        wait_for(lambda: closed(other))
        assert [instance(one).events.count() for one in (recording, tally)] == before
        assert [instance(one).paused["reason"] for one in (recording, tally)] == ["bank holiday"] * 2
        for one in (recording, tally):
            handle_of(one).unpause()
        wait_for(lambda: closed(recording) and closed(tally))

    (_, key, _), (_, again, _) = [line.split() for line in log.read_text().splitlines()]
    assert instance(recording).closing_value == {"result": key}
    assert key == again
    assert instance(tally).status == "completed"


def test_an_activity_that_is_completed_by_hand_is_not_tried_again_when_its_worker_dies(
    env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    log, hold = paths
    run = start("Recording", {"path": str(log), "hold": str(hold)})
    with worker(env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        os.kill(first.child, signal.SIGSTOP)  # it takes no turn any more
        wait_for(lambda: process_state(first.child) == "T")
        handle_of(run).complete_activity(1, "by hand")
        assert not closed(run)
        first.kill()
    hold.unlink()
    with worker(env, tmp_path, name="second"):
        wait_for(lambda: closed(run))

    assert instance(run).closing_value == {"result": "by hand"}
    assert len(log.read_text().splitlines()) == 1
    assert [e.kind for e in instance(run).events.all()].count("ActivityCompleted") == 1


def test_a_bulk_job_goes_on_behind_a_run_that_kills_whoever_replays_it(env: dict[str, str], tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    runs = [start("DeadlyToReplay", {"path": str(tmp_path / "never")}, workflow_id="one")]
    runs.append(start("DeadlyToReplay", {"path": str(armed)}, workflow_id="killer"))
    runs.append(start("DeadlyToReplay", {"path": str(tmp_path / "never")}, workflow_id="two"))
    with worker(env, tmp_path, name="first"):
        wait_for(lambda: all(instance(run).status == "waiting" for run in runs))
    armed.touch()
    job = StartBulk("reset", runs=[str(run.run_id) for run in runs], to=2).execute()

    deaths = supervised(env, tmp_path, lambda: BulkJob.objects.get(pk=job.pk).state == "done")

    assert deaths == 3
    job.refresh_from_db()
    assert (job.done, job.failed, job.held_until) == (2, 1, None)
    bad = BulkItem.objects.get(outcome="failed")
    assert (bad.run_id, bad.code, bad.message) == (
        runs[1].run_id, "crash", "3 workers died while they replayed the run",
    )  # fmt: skip
    assert [Instance.objects.filter(chain_id=run.chain_id).count() for run in runs] == [2, 1, 2]
    assert Chain.objects.get(pk=runs[1].chain_id).crashes == 3  # and it is blocked: whoever advances it would die, too


def test_a_worker_that_is_killed_in_the_middle_of_a_bulk_job_leaves_the_rest_to_another(
    env: dict[str, str], tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    runs = [start("HangingToReplay", {"path": str(armed)}, workflow_id=f"h{n}") for n in range(3)]
    with worker(env, tmp_path, name="first") as first:
        wait_for(lambda: all(instance(run).status == "waiting" for run in runs))
        armed.touch()
        job = StartBulk("reset", runs=[str(run.run_id) for run in runs], to=2).execute()
        wait_for(lambda: BulkItem.objects.filter(crashes=1).exists())
        assert BulkJob.objects.get(pk=job.pk).held_until is not None
        first.kill()
    armed.unlink()
    with worker(env, tmp_path, name="second"):
        wait_for(lambda: BulkJob.objects.get(pk=job.pk).state == "done")

    job.refresh_from_db()
    assert (job.done, job.failed) == (3, 0)
    assert [Instance.objects.filter(chain_id=run.chain_id).count() for run in runs] == [2, 2, 2]
    assert OperatorAction.objects.filter(action="reset").count() == 3
