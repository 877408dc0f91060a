"""kill -9 in the worst places. Every process here is one that the test started."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Chain, Instance, Worker
from tests.support.campaign import scaled
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def closed(started: StartedRun) -> bool:
    return not instance(started).is_open


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    return log, hold


def test_killed_during_an_activity_the_next_attempt_has_the_same_key(
    subprocess_env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    log, hold = paths
    started = start("Recording", {"path": str(log), "hold": str(hold)})
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        first.kill()
    hold.unlink()

    with worker(subprocess_env, tmp_path, name="second"):
        wait_for(lambda: closed(started))

    (one, key, pid), (two, again, other) = [line.split() for line in log.read_text().splitlines()]
    assert (one, two, key) == ("1", "2", again)
    assert pid != other
    assert instance(started).closing_value == {"result": key}
    assert key.startswith(str(started.run_id))


def test_at_most_once_is_at_most_once(subprocess_env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]) -> None:
    log, hold = paths
    started = start("AtMostOnce", {"path": str(log), "hold": str(hold)})
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        first.kill()
    hold.unlink()

    with worker(subprocess_env, tmp_path, name="second"):
        wait_for(lambda: closed(started))

    assert len(log.read_text().splitlines()) == 1
    assert instance(started).closing_value["reason"] == "WorkerLost"


def test_killed_during_an_atomic_activity_nothing_happened(
    subprocess_env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    log, hold = paths
    started = start("Booking", {"name": "ann", "path": str(log), "hold": str(hold)})
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(log.read_text)
        if connection.vendor == "postgresql":
            assert not get_user_model().objects.exists()
        first.kill()
    assert not get_user_model().objects.exists()
    assert not closed(started)
    hold.unlink()

    with worker(subprocess_env, tmp_path, name="second"):
        wait_for(lambda: closed(started))

    user = get_user_model().objects.get()
    assert instance(started).closing_value == {"result": [2, user.pk]}


def test_a_run_that_kills_its_worker_goes_alone_and_the_others_go_on(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.touch()
    deadly = start("Deadly", {"path": str(counter), "times": 2})
    others = [start("Doubling", {"n": i}, workflow_id=f"d{i}") for i in range(20)]

    for turn in range(3):
        with running(["temporalex", "worker"], subprocess_env, tmp_path / f"w{turn}.log") as process:
            wait_for(lambda p=process: p.popen.poll() is not None or closed(deadly))  # type: ignore[misc]
            if closed(deadly):
                wait_for(lambda: all(closed(other) for other in others))
                break

    assert instance(deadly).closing_value == {"result": 2}
    assert Chain.objects.get(pk=deadly.chain_id).crashes == 0


def test_a_run_that_kills_three_workers_is_blocked(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.touch()
    deadly = start("Deadly", {"path": str(counter), "times": 99})

    for turn in range(3):
        with running(["temporalex", "worker"], subprocess_env, tmp_path / f"w{turn}.log") as process:
            assert process.popen.wait(30) == 137
    other = start("Doubling", {"n": 4})
    with worker(subprocess_env, tmp_path, name="survivor") as survivor:
        wait_for(lambda: instance(deadly).blocked)
        wait_for(lambda: closed(other))
        assert survivor.popen.poll() is None

    blocked = instance(deadly).blocked
    assert blocked is not None
    assert (blocked["code"], blocked["attempt"]) == ("crash", 3)
    assert Chain.objects.get(pk=deadly.chain_id).due_at is None


def test_killed_again_and_again_under_load_nothing_is_lost_or_doubled(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    runs: dict[str, StartedRun] = {}
    for turn in range(scaled(3)):
        names = [f"user-{turn}-{i}" for i in range(20)]
        runs |= {name: start("Booking", {"name": name}, workflow_id=name) for name in names}
        with worker(subprocess_env, tmp_path, name=f"w{turn}") as victim:
            done = Instance.objects.closed().count()
            wait_for(lambda d=done: Instance.objects.closed().count() > d)  # type: ignore[misc]
            victim.kill()
    with worker(subprocess_env, tmp_path, name="last"):
        wait_for(lambda: not Instance.objects.open().exists())

    assert {instance(s).status for s in runs.values()} == {"completed"}
    assert sorted(get_user_model().objects.values_list("username", flat=True)) == sorted(runs)
    assert not ActivityTask.objects.exists()


def test_a_worker_that_is_told_to_stop_gives_back_and_goes(
    subprocess_env: dict[str, str], tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    log, hold = paths
    started = start("Recording", {"path": str(log), "hold": str(hold)})
    with worker(subprocess_env, tmp_path) as process:
        wait_for(log.read_text)
        process.popen.send_signal(signal.SIGTERM)
        hold.unlink()

        assert process.popen.wait(30) == 0

    assert not Worker.objects.exists()
    with running(["temporalex", "worker", "--burst"], subprocess_env, tmp_path / "burst.log") as burst:
        assert burst.popen.wait(30) == 0
    assert closed(started)
    assert len(log.read_text().splitlines()) == 1


def test_burst_ends_when_nothing_is_due(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    started = [start("Doubling", {"n": i}, workflow_id=f"d{i}") for i in range(10)]
    sleeping = start("Sleeping", {"seconds": 3600})
    with running(["temporalex", "worker", "--burst"], subprocess_env, tmp_path / "log") as process:
        assert process.popen.wait(60) == 0

    assert [instance(s).closing_value["result"] for s in started] == [2 * i for i in range(10)]
    assert instance(sleeping).status == "waiting"


def test_two_workers_share_the_work(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with worker(subprocess_env, tmp_path, name="one"), worker(subprocess_env, tmp_path, name="two"):
        runs = [start("Tally", workflow_id=f"t{i}") for i in range(20)]
        for s in runs:
            for n in range(5):
                insert_message(
                    s.chain_id, kind="update", name="add", body=n, request_id=str(n), storage=DjangoStorage()
                )
            insert_message(s.chain_id, kind="signal", name="stop", body=None, storage=DjangoStorage())
        wait_for(lambda: not Instance.objects.open().exists())

    assert {instance(s).closing_value["result"] for s in runs} == {10}
