"""Code that ends whoever runs it, with real processes that the test starts again like a supervisor."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Chain, Instance
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.once_on_postgres]


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def closed(started: StartedRun) -> bool:
    return not instance(started).is_open


def supervised(env: dict[str, str], tmp_path: Path, done: Callable[[], bool], *, most: int = 12) -> int:
    """Start a worker again each time it ends, until ``done()``; the number of those that ended before."""
    for deaths in range(most):
        with running(["temporalex", "worker"], env, tmp_path / f"supervised{deaths}.log") as process:
            # A guardian reports the death of its worker before it ends: without a worker, it is about to end.
            wait_for(lambda p=process: p.popen.poll() is not None or (done() and p.has_child), seconds=120)  # type: ignore[misc]
            if process.popen.poll() is None:
                return deaths
    raise AssertionError(f"{most} workers died")


def test_a_run_that_kills_whoever_replays_it_is_blocked_and_its_neighbours_go_on(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    killer = start("DeadlyToReplay", {"path": str(armed)})
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(lambda: instance(killer).status == "waiting")
        first.kill()
    armed.touch()
    insert_message(killer.chain_id, kind="signal", name="go", body=None, storage=DjangoStorage())
    others = [start("Doubling", {"n": n}, workflow_id=f"d{n}") for n in range(20)]

    deaths = supervised(
        subprocess_env, tmp_path, lambda: bool(instance(killer).blocked) and all(closed(other) for other in others)
    )

    assert deaths == 3
    blocked = instance(killer).blocked
    assert blocked is not None
    assert (blocked["code"], blocked["attempt"]) == ("crash", 3)
    assert "3 processes in a row died while running the code of this run" in blocked["error"]
    assert [instance(other).closing_value["result"] for other in others] == [2 * n for n in range(20)]


def test_a_worker_that_has_it_in_memory_does_not_make_its_crashes_forgotten(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """What is dangerous is the rebuilding: that a run goes on where it is cached proves nothing."""
    armed = tmp_path / "armed"
    killer = start("DeadlyToReplay", {"path": str(armed)})
    with worker(subprocess_env, tmp_path, name="has-it") as first:
        wait_for(lambda: instance(killer).status == "waiting")
        armed.touch()
        Chain.objects.filter(pk=killer.chain_id).update(crashes=1)
        insert_message(killer.chain_id, kind="signal", name="go", body=None, storage=DjangoStorage())
        assert first.popen.wait(30) != 0
    supervised(subprocess_env, tmp_path, lambda: bool(instance(killer).blocked))


def test_an_activity_that_kills_its_worker_fails_at_the_third_death_and_innocent_ones_end(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    others = [
        start("Patient", {"path": str(log), "hold": str(hold), "name": f"p{n}"}, workflow_id=f"p{n}") for n in range(3)
    ]
    with worker(subprocess_env, tmp_path, name="first") as first:
        wait_for(lambda: len(log.read_text().splitlines()) == 3)
        killer = start("DeadlyActivity", {"path": str(log)})
        assert first.popen.wait(30) == 139
    deaths = supervised(subprocess_env, tmp_path, lambda: closed(killer))
    hold.unlink()
    with worker(subprocess_env, tmp_path, name="last"):
        wait_for(lambda: all(closed(other) for other in others))

    assert deaths == 2
    assert len([line for line in log.read_text().splitlines() if line.startswith("deadly")]) == 3
    failure = instance(killer).closing_value
    assert failure["type"] == "ActivityFailure"
    assert "3 workers died while running it" in failure["message"]
    assert [instance(other).closing_value for other in others] == [{"result": f"p{n}"} for n in range(3)]


def test_a_web_process_that_dies_of_a_query_or_an_update_leaves_it_to_workers(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    run = start("DeadlyToAsk", {"path": str(armed)})
    with worker(subprocess_env, tmp_path, name="one") as process:
        wait_for(lambda: instance(run).status == "waiting")
        armed.touch()
        asking = "import django; django.setup()\nfrom tests.app.killers import DeadlyToAsk as D\nD.handle('DeadlyToAsk-1').query('ask')"
        ended = subprocess.run([sys.executable, "-c", asking], env=subprocess_env, check=False, timeout=60)
        assert ended.returncode == -signal.SIGSEGV
        wait_for(lambda: Chain.objects.get(pk=run.chain_id).crashes == 1)
        assert process.popen.poll() is None

        poking = asking.replace("query('ask')", "update('poke', None, timeout=5)")
        asked = subprocess.run([sys.executable, "-c", poking], env=subprocess_env, check=False, timeout=60)
        assert asked.returncode == 1  # it is asked of a worker, which dies in its place
        assert process.popen.wait(30) != 0
    supervised(subprocess_env, tmp_path, lambda: bool(instance(run).blocked))
    blocked = instance(run).blocked
    assert blocked is not None
    assert blocked["code"] == "crash"


def test_a_run_that_dies_of_the_end_of_its_activity_is_blocked_although_it_can_be_rebuilt(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """The end is lost with the worker, so the run is rebuilt without it, and that proves nothing.

    Each worker has a temporary folder of its own, as in a container that is made anew: its guardian testifies.
    """
    armed = tmp_path / "armed"
    armed.touch()
    env = {
        **subprocess_env,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_TEMPORALEX": json.dumps({"TURN_SIZE": 4}),
    }
    others = [start("Doubling", {"n": n}, workflow_id=f"d{n}") for n in range(8)]
    killer = start("DeadlyToReplay", {"path": str(armed)})
    deaths = 0
    while not instance(killer).blocked and deaths < 12:
        own = tmp_path / f"container{deaths}"
        own.mkdir()
        with running(["temporalex", "worker"], {**env, "TMPDIR": str(own)}, tmp_path / f"w{deaths}.log") as process:
            assert process.popen.wait(120) != 0
        deaths += 1
    with worker(env, tmp_path, name="last"):
        wait_for(lambda: all(closed(other) for other in others))

    blocked = instance(killer).blocked
    assert blocked is not None
    assert (deaths, blocked["code"], blocked["attempt"]) == (3, "crash", 3)
    assert not Instance.objects.exclude(pk=killer.run_id).filter(blocked__isnull=False).exists()
