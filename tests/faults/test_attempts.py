"""Attempts in real workers: what activities raise, what the clock says, a database that is away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction

from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.turn_writes import TurnWriter
from temporalex_django.engine.run_start import RunStart
from temporalex_django.management import outputs
from temporalex_django.models import ActivityTask, Instance, Worker
from temporalex_django.workers.loop import run_until_idle
from tests.support.processes import running, worker
from tests.support.proxy import environment, proxied
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SKEWED = Path(__file__).parent / "skewed"


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def closed(started: StartedRun) -> bool:
    return not instance(started).is_open


def result(started: StartedRun) -> Any:
    wait_for(lambda: closed(started))
    return instance(started).closing_value


def own(env: dict[str, str], temporalex: str) -> dict[str, str]:
    return {**env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_TEMPORALEX": temporalex}


def test_an_activity_that_exits_does_not_stop_the_others(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with worker(subprocess_env, tmp_path) as process:
        for which in ("SystemExit", "KeyboardInterrupt"):
            exited = start("Exiting", which, workflow_id=f"loop-{which}")
            atomic = start("ExitingAtomically", which, workflow_id=f"atomic-{which}")
            assert result(exited) == {"result": which}
            assert result(atomic) == {"result": which}
            after = start("AsyncDoubling", {"n": 2}, workflow_id=f"after-{which}")
            assert result(after) == {"result": [0, 2]}
        assert process.popen.poll() is None
    assert not get_user_model().objects.exists()


@pytest.mark.postgres
@pytest.mark.parametrize("failures", [1, 3])
def test_a_statement_timeout_in_an_atomic_activity_is_its_own_failure(tmp_path: Path, failures: int) -> None:
    log = tmp_path / "log"
    impatient = start("Impatient", {"path": str(log), "failures": failures})
    others = [start("Doubling", {"n": n}, workflow_id=f"d-{n}") for n in range(5)]
    run_until_idle()
    wait_for(lambda: run_until_idle() is not None and closed(impatient))

    assert [instance(other).closing_value for other in others] == [{"result": 2 * n} for n in range(5)]
    attempts = min(failures + 1, 3)
    assert log.read_text().split() == [str(n) for n in range(1, attempts + 1)]
    if failures == 1:
        assert instance(impatient).closing_value == {"result": 2}
        assert [user.username for user in get_user_model().objects.all()] == ["impatient-2"]
    else:
        assert "statement timeout" in str(instance(impatient).closing_value)
        assert not get_user_model().objects.exists()


@pytest.mark.postgres
def test_the_limit_of_statements_of_a_transaction_that_is_the_callers_stays_as_it_was(tmp_path: Path) -> None:
    """Whatever an activity sets for its own statements."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("set local statement_timeout = '7s'")
        impatient = start("Impatient", {"path": str(tmp_path / "log"), "failures": 0})
        run_until_idle()
        assert closed(impatient)
        cursor.execute("show statement_timeout")
        assert cursor.fetchone() == ("7s",)


@pytest.mark.postgres
def test_neighbours_of_a_statement_timeout_are_not_held_up(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """A worker does not take it for a lost database, so it neither reconnects nor waits."""
    with worker(subprocess_env, tmp_path) as process:
        impatient = start("Impatient", {"path": str(tmp_path / "log"), "failures": 2})
        assert result(impatient) == {"result": 3}
        logged = process.log.read_text()
        assert "does not answer" not in logged
        assert "is not responding" not in logged


@pytest.mark.postgres
def test_a_statement_of_a_turn_that_is_cancelled_is_tried_again(monkeypatch: Any) -> None:
    """Nobody's run is blocked because the server was slow."""
    started = start("Doubling", {"n": 4})
    write, slow = TurnWriter.write, iter([True, True])

    def cancelled(self: TurnWriter, writes: Any, **more: Any) -> Any:
        if writes and next(slow, False):
            with connection.cursor() as cursor:
                cursor.execute("set local statement_timeout = '10ms'; select pg_sleep(20)")
        return write(self, writes, **more)

    monkeypatch.setattr(TurnWriter, "write", cancelled)
    run_until_idle()

    assert instance(started).closing_value == {"result": 8}


@pytest.mark.postgres
@pytest.mark.parametrize("seconds", [600, -600], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_wrong_tries_again_when_the_database_says(
    subprocess_env: dict[str, str], tmp_path: Path, seconds: int
) -> None:
    runs = [start("SecondTime", n, workflow_id=f"s-{n}") for n in range(5)]
    env = {**subprocess_env, "TX_TEST_CLOCK": str(seconds)}
    env["PYTHONPATH"] = os.pathsep.join([str(SKEWED), env["PYTHONPATH"]])
    with worker(env, tmp_path):
        assert abs(Worker.objects.get().clock_skew - seconds) < 30  # known from its first moment
        assert [result(run) for run in runs] == [{"result": n} for n in range(5)]
    assert not ActivityTask.objects.exists()


@pytest.mark.postgres
def test_a_worker_that_starts_while_the_database_is_away_waits_for_it(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    started = start("Doubling", {"n": 3})
    with proxied(connection.settings_dict, listen=False) as proxy:
        env = environment(subprocess_env, proxy, connection.settings_dict)
        with running(["temporalex", "worker"], env, tmp_path / "log") as process:
            process.says("the database does not answer, retrying")
            proxy.listen()
            assert result(started) == {"result": 6}
            assert "Traceback" not in process.log.read_text()
            assert process.terminate() == 0


@pytest.mark.postgres
def test_a_worker_that_waits_for_the_database_can_be_stopped(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with proxied(connection.settings_dict, listen=False) as proxy:
        env = environment(subprocess_env, proxy, connection.settings_dict)
        with running(["temporalex", "worker"], env, tmp_path / "log") as process:
            process.says("the database does not answer, retrying")
            assert process.terminate() == 0
        with running(["temporalex", "worker", "--burst", "--timeout", "0.5"], env, tmp_path / "burst") as burst:
            assert burst.popen.wait(30) == outputs.NOT_SET_UP
            assert "the database does not answer" in burst.log.read_text()
