"""The database goes away, sessions freeze, rows are locked crosswise.

Every process here is one that the test started.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import ActivityTask, Instance, Worker
from temporalex_django.workers.loop import WorkerLoop
from tests.support.processes import running, worker
from tests.support.proxy import environment, proxied
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def closed(started: StartedRun) -> bool:
    return not instance(started).is_open


def end_other_sessions() -> int:
    """What a restart of the server does to others: every session of this database ends, whatever it was doing."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.postgres
def test_a_worker_survives_the_loss_of_all_its_connections(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    with worker(subprocess_env, tmp_path) as process:
        epoch = Worker.objects.get().epoch
        runs = [start("Booking", {"name": f"u{i}"}, workflow_id=f"b{i}") for i in range(40)]
        ended = 0
        for _ in range(3):
            ended += end_other_sessions()
            done = Instance.objects.closed().count()
            wait_for(lambda d=done: Instance.objects.closed().count() > d or d == len(runs))  # type: ignore[misc]
        wait_for(lambda: all(closed(run) for run in runs))
        assert process.popen.poll() is None
        assert Worker.objects.get().epoch == epoch  # nobody took it for dead

    assert ended >= 3
    assert {instance(run).status for run in runs} == {"completed"}
    assert get_user_model().objects.count() == 40


@pytest.mark.postgres
@pytest.mark.parametrize("after", range(12))
def test_a_worker_whose_first_connection_is_cut_waits_like_any_other(
    after: int, subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """Wherever it is cut: while it is made, while the worker looks for its tables, while it registers."""
    settings = connection.settings_dict
    with proxied(settings) as proxy:
        proxy.cut_next(after=after)
        with running(["temporalex", "worker"], environment(subprocess_env, proxy, settings), tmp_path / "log") as one:
            wait_for(lambda: one.popen.poll() is not None or Worker.objects.exists(), what="a worker")
            assert proxy.has_cut
            assert one.popen.poll() is None, one.log.read_text()
            assert one.terminate() == 0


@pytest.mark.postgres
def test_an_activity_goes_on_through_the_loss_of_connections_and_is_not_doubled(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    with worker(subprocess_env, tmp_path, name="one"), worker(subprocess_env, tmp_path, name="two"):
        started = start("Recording", {"path": str(log), "hold": str(hold)})
        wait_for(log.read_text)
        end_other_sessions()
        beats = dict(Worker.objects.values_list("pk", "beat_at"))
        wait_for(lambda: all(w.beat_at > beats[w.pk] for w in Worker.objects.all()))
        hold.unlink()
        wait_for(lambda: closed(started))

    assert len(log.read_text().splitlines()) == 1
    assert instance(started).status == "completed"


@pytest.mark.postgres
def test_a_worker_frozen_inside_a_transaction_loses_its_locks(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    with worker(subprocess_env, tmp_path, name="frozen") as frozen:
        started = start("Booking", {"name": "ann", "path": str(log), "hold": str(hold)})
        wait_for(log.read_text)
        os.kill(frozen.child, signal.SIGSTOP)
        hold.unlink()
        with worker(subprocess_env, tmp_path, name="other"):
            wait_for(lambda: closed(started))
        os.kill(frozen.child, signal.SIGCONT)
        again = start("Doubling", {"n": 3})
        wait_for(lambda: closed(again))
        wait_for(lambda: Worker.objects.filter(pid=frozen.child).exists(), what="the frozen one to be back")

    assert get_user_model().objects.count() == 1
    assert instance(started).status == "completed"


@pytest.mark.postgres
def test_a_worker_that_was_taken_for_dead_takes_a_new_epoch_and_its_result_is_refused(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    log, hold = tmp_path / "log", tmp_path / "hold"
    log.touch()
    hold.touch()
    with worker(subprocess_env, tmp_path, name="frozen") as frozen:
        started = start("Recording", {"path": str(log), "hold": str(hold)})
        wait_for(log.read_text)
        epoch = Worker.objects.get().epoch
        os.kill(frozen.child, signal.SIGSTOP)
        with connection.cursor() as cursor:  # its session lock goes, as when its machine is cut off
            cursor.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )
        with worker(subprocess_env, tmp_path, name="other"):
            wait_for(lambda: len(log.read_text().splitlines()) == 2)
            os.kill(frozen.child, signal.SIGCONT)
            wait_for(lambda: Worker.objects.filter(pid=frozen.child).exclude(epoch=epoch).exists())
            hold.unlink()
            wait_for(lambda: closed(started))

    first, second = [line.split() for line in log.read_text().splitlines()]
    assert (first[0], second[0]) == ("1", "2")
    assert first[1] == second[1]
    kinds = [e.kind for e in instance(started).events.all()]
    assert kinds.count("ActivityCompleted") == 1


def test_rows_locked_crosswise_by_two_workers_reach_nobody_as_a_deadlock(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    names = [f"p{i}" for i in range(4)]
    for name in names:
        get_user_model().objects.create(username=name)
    with worker(subprocess_env, tmp_path, name="one"), worker(subprocess_env, tmp_path, name="two"):
        runs = [
            start("Crosswise", {"names": names if i % 2 else names[::-1], "times": 3}, workflow_id=f"c{i}")
            for i in range(20)
        ]
        wait_for(lambda: all(closed(run) for run in runs))

    assert {instance(run).status for run in runs} == {"completed"}
    assert set(get_user_model().objects.values_list("last_name", flat=True)) == {"60"}
    assert not ActivityTask.objects.exists()


@activity(retry=RetryPolicy(max_attempts=1))
def counts_users() -> int:
    from django.contrib.auth import get_user_model

    return int(get_user_model().objects.count())


class CountsUsers(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await counts_users())


@pytest.mark.postgres
def test_a_connection_that_broke_while_nobody_used_it_costs_no_attempt() -> None:
    """A thread for activities keeps its connection; the server has restarted since."""
    loop = WorkerLoop(queues=["default"])
    loop.pool._threads = 1

    def counted(workflow_id: str) -> Any:
        run = CountsUsers.start(id=workflow_id)

        def is_over() -> bool:
            loop.poll()
            return not Instance.objects.get(pk=run.run_id).is_open

        wait_for(is_over)
        return Instance.objects.get(pk=run.run_id).closing_value

    try:
        assert counted("before") == {"result": 0}
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            assert cursor.fetchone()[0] >= 1
        assert counted("behind") == {"result": 0}
    finally:
        loop._shut_down(None, hurried=True)
