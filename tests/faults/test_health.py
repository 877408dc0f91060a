"""What supervisors are told of a worker, and how one is drained, stopped and bounded. With real processes."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from temporalex_django.errors import ActionNotPossible, WorkerNotFound
from temporalex_django.liveness.health import Health, judge_health
from temporalex_django.models import ActivityTask, OperatorAction, Worker
from temporalex_django.operations.fleet.switches import DrainWorker, UndrainWorker
from tests.faults.test_crash_marks import closed, instance, start
from tests.faults.test_guardian import env_with
from tests.support.processes import cluster, worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    path = tmp_path / "hold"
    path.touch()
    return path


def health(*arguments: str) -> dict[str, Any]:
    """What it prints, and that it ends as it says."""
    out = io.StringIO()
    ended = 0
    with override_settings(TEMPORALEX={"HEALTH_SECONDS": 1.0}):
        try:
            call_command("temporalex", "health", "--json", *arguments, stdout=out)
        except CommandError as exc:
            ended = exc.returncode
    found: dict[str, Any] = json.loads(out.getvalue())
    assert ended == (0 if found["well"] else 1)
    return found


def only(*arguments: str) -> dict[str, Any]:
    (one,) = health(*arguments)["workers"]
    return dict(one)


def test_a_worker_says_how_it_is_is_drained_from_elsewhere_and_leaves_in_time(
    subprocess_env: dict[str, str], tmp_path: Path, hold: Path
) -> None:
    env = env_with(subprocess_env, HEALTH_SECONDS=1.0, LEASE_SECONDS=1.5, DRAIN_SECONDS=0.2, LEAVE_SECONDS=1.0)
    with worker(env, tmp_path) as process:
        me = ("--pid", str(process.pid))
        wait_for(lambda: health(*me)["well"])
        here = only("--pid", str(process.child))
        assert (here["guardian"], here["state"], here["why"]) == (process.pid, "working", [])
        assert here["connections"] == 15
        assert 0 < here["lease"] <= 1.5

        # drained from elsewhere: what it has in hand ends, nothing new begins
        log = tmp_path / "log"
        busy = start("Recording", {"path": str(log), "hold": str(hold)})
        wait_for(log.exists)
        row = Worker.objects.get()
        DrainWorker(row.pk, reason="the node goes").execute()
        with pytest.raises(ActionNotPossible):
            DrainWorker(row.pk).execute()
        wait_for(lambda: only(*me)["state"] == "draining")
        wait_for(lambda: (health("--check", "live", *me)["well"], health(*me)["well"]) == (True, False))
        other = start("Doubling", {"n": 2})
        hold.unlink()
        wait_for(lambda: not ActivityTask.objects.exists(), what="what it had in hand")
        polls = only(*me)["turns"]
        beat = Worker.objects.get().beat_at
        wait_for(lambda: Worker.objects.get().beat_at > beat)
        assert (instance(other).started_at, closed(busy), only(*me)["turns"]) == (None, False, polls)
        UndrainWorker(row.pk).execute()
        wait_for(lambda: closed(busy) and closed(other))
        assert [a.action for a in OperatorAction.objects.order_by("pk")] == ["drain_worker", "undrain_worker"]

        # frozen: neither live nor ready
        os.kill(process.child, signal.SIGSTOP)
        wait_for(lambda: any("maintenance" in why for why in only(*me)["why"]))
        assert not health("--check", "live", *me)["well"]
        os.kill(process.child, signal.SIGCONT)
        wait_for(lambda: health(*me)["well"])

        # an atomic activity does not come back: the guardian ends it all the same
        hold.touch()
        start("Booking", {"name": "ann", "path": str(tmp_path / "booked"), "hold": str(hold)})
        wait_for((tmp_path / "booked").exists)
        assert process.terminate() == 137  # the activity would end by itself after a while
    assert health(*me) == {"well": False, "checked": "ready", "workers": []}
    with pytest.raises(WorkerNotFound, match="there is no worker"):
        DrainWorker("nobody").execute()


def test_so_do_the_workers_of_a_cluster(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with cluster(subprocess_env, tmp_path) as process:
        pid = str(Worker.objects.get().pid)
        said = wait_for(lambda: (found := health("--pid", pid))["well"] and found["workers"][0])  # of one look
        assert (said["kind"], said["guardian"] != 0, said["live"]) == ("q2", True, True)
        assert process.terminate() == 0
    assert not health("--pid", pid)["workers"]


@pytest.mark.postgres
def test_a_worker_has_no_more_connections_than_it_says(
    subprocess_env: dict[str, str], tmp_path: Path, hold: Path
) -> None:
    """Two threads are left for activities; there are six plain ones and six async ones that hold on to theirs."""
    with worker(env_with(subprocess_env, WORKER_CONNECTIONS=7), tmp_path) as process:
        run = start("Asking", {"hold": str(hold), "n": 6})
        wait_for(lambda: ActivityTask.objects.filter(started_at__isnull=False).count() == 8)
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            )
            (count,) = cursor.fetchone()
        assert 5 <= count <= 7 == only("--pid", str(process.child))["connections"]
        hold.unlink()
        wait_for(lambda: closed(run))


@pytest.mark.parametrize(
    ("changed", "started", "live", "ready", "why"),
    [
        ({}, True, True, True, ""),
        ({"state": "starting", "lease_until": 0.0}, False, True, False, "starting"),
        ({"lease_until": 99.0}, True, True, False, "no lease"),
        ({"looked_at": 40.0}, True, False, False, "not looked for work for 60 s"),
        ({"wrote_at": 40.0}, True, False, False, "maintenance has been silent"),
        ({"state": "leaving", "leaves_by": 101.0, "looked_at": 10.0}, True, True, False, "asked to stop"),
        ({"state": "leaving", "leaves_by": 99.0}, True, False, False, "still running"),
        ({"guardian": 7}, True, False, False, "guardian 7 is gone"),
    ],
)
def test_what_a_supervisor_makes_of_it(
    changed: dict[str, Any], started: bool, live: bool, ready: bool, why: str
) -> None:
    said = {"state": "working", "wrote_at": 99.0, "looked_at": 99.0, "lease_until": 105.0, "guardian": 0, **changed}
    health = Health(worker="w", pid=1, kind="worker", queues=["default"], **said)
    verdict = judge_health(health, now=100.0, limit=50.0, guardian_at=None)
    assert (verdict.started, verdict.live, verdict.ready) == (started, live, ready)
    assert why in "; ".join(verdict.problems)
    assert bool(verdict.problems) != ready
