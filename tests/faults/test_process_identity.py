"""Living workers that look dead: on machines of one snapshot, and after a step of the database's clock."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import F

from temporalex_django.db.inserts import StartedRun
from temporalex_django.models import Worker
from tests.faults.test_crash_marks import closed, start
from tests.support.processes import worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LEASE = 2.0
MANY = 6


@pytest.fixture
def env(subprocess_env: dict[str, str]) -> dict[str, str]:
    return {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps({"LEASE_SECONDS": LEASE}),
    }


def held_activities(tmp_path: Path) -> tuple[Path, Path, list[StartedRun]]:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    args = {"path": str(log), "hold": str(hold)}
    return log, hold, [start("Recording", args, workflow_id=f"r{n}") for n in range(MANY)]


def after_leases(number: float) -> None:
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began > number * LEASE, what="some leases")


def test_machines_of_one_snapshot_do_not_bury_each_other(env: dict[str, str], tmp_path: Path) -> None:
    """They share boot id and process namespace; on each the pids of the others are those of nobody."""
    log, hold, runs = held_activities(tmp_path)
    machines = [tmp_path / "one", tmp_path / "two"]
    for machine in machines:
        machine.mkdir()
    with worker({**env, "TMPDIR": str(machines[0])}, tmp_path, name="one") as one:
        wait_for(lambda: len(log.read_text().splitlines()) == MANY)
        row = Worker.objects.get()
        space, _, _ = row.process_identity.rsplit(":", 2)
        Worker.objects.update(process_identity=f"{space}:1:0")
        with worker({**env, "TMPDIR": str(machines[1])}, tmp_path, name="two"):
            after_leases(2)
            assert Worker.objects.filter(pk=row.pk, epoch=row.epoch, buried_at=None).exists()
            assert one.popen.poll() is None
            hold.unlink()
            wait_for(lambda: all(closed(run) for run in runs))
    assert len(log.read_text().splitlines()) == MANY


def test_a_step_of_the_database_clock_makes_nobody_begin_an_activity_twice(env: dict[str, str], tmp_path: Path) -> None:
    log, hold, runs = held_activities(tmp_path)
    with worker(env, tmp_path, name="one"), worker(env, tmp_path, name="two"):
        wait_for(lambda: len(log.read_text().splitlines()) == MANY)
        after_leases(1.5)  # both may judge others
        before = set(Worker.objects.values_list("epoch", flat=True))
        hour = timedelta(hours=1)  # behind the clock, which is as good as a clock that was set forward
        Worker.objects.update(beat_at=F("beat_at") - hour, expires_at=F("expires_at") - hour)
        after_leases(1.5)
        assert set(Worker.objects.values_list("epoch", flat=True)) == before
        hold.unlink()
        wait_for(lambda: all(closed(run) for run in runs))
    assert len(log.read_text().splitlines()) == MANY
