"""What a worker takes it begins: what it cannot begin is another worker's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from temporalex_django.db.inserts import StartedRun, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import UNMEASURED, Capacity
from temporalex_django.models import ActivityTask, Instance, Worker
from temporalex_django.workers.loop import WorkerLoop
from tests.support.processes import worker
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


def own(env: dict[str, str], temporalex: str) -> dict[str, str]:
    return {**env, "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes", "TX_TEST_TEMPORALEX": temporalex}


def test_quick_activities_do_not_wait_behind_long_ones_of_one_worker(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    """It has measured that they are quick, so it takes them ahead of its threads; then all of these are held up."""
    log, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()
    env = own(subprocess_env, '{"ACTIVITY_THREADS": 2}')
    with worker(env, tmp_path, name="busy"):
        measured = start("Mixed", {"tiny": 30, "path": str(log)}, workflow_id="measured")
        wait_for(lambda: closed(measured))
        holding = start("Mixed", {"long": 2, "hold": str(hold)}, workflow_id="holding")
        quick = start("Mixed", {"tiny": 30, "path": str(log)}, workflow_id="quick")
        wait_for(lambda: ActivityTask.objects.filter(started_at__isnull=False).count() == 2)
        with worker(env, tmp_path, name="idle"):
            wait_for(lambda: closed(quick))
            assert not closed(holding)
            hold.unlink()
            wait_for(lambda: closed(holding))
    assert len(log.read_text().split()) == 60


def test_an_attempt_that_has_not_begun_does_not_time_out(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """12 attempts of 0.3 s for one thread, each of which may take 2 s from its beginning, and has no second one."""
    env = own(subprocess_env, '{"ACTIVITY_THREADS": 1}')
    with worker(env, tmp_path):
        many = start("Many", {"n": 12, "seconds": 0.3})
        wait_for(lambda: closed(many))
    kinds = [event.kind for event in instance(many).events.all()]
    assert kinds.count("ActivityCompleted") == 12
    assert "ActivityTimedOut" not in kinds


def test_what_is_taken_ahead_and_not_begun_is_given_back_uncounted(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    started = start("Mixed", {"long": 3, "hold": str(hold)})
    loop = WorkerLoop()
    loop.pool._threads = 1
    loop.row.register(loop.storage)
    try:
        loop.poll()
        waiting = loop.storage.claim_tasks(capacity=Capacity(threads=3), queues=["default"], owner=loop.row.epoch)
        loop.pool.submit(waiting)
        assert ActivityTask.objects.filter(owner=loop.row.epoch, attempt=1, started_at=None).count() == 3
        back = wait_for(loop.pool.overdue)
        loop.storage.release_tasks(back)
        assert ActivityTask.objects.filter(owner=None, attempt=0).count() == 2
        (begun,) = loop.pool.started_tasks()
        loop.storage.mark_tasks_started([begun])
        assert ActivityTask.objects.get(owner=loop.row.epoch).started_at == begun.started_at
    finally:
        hold.unlink()
        loop._shut_down(None, hurried=False)
    assert not closed(started)


def test_room_is_for_what_can_begin_and_for_what_was_measured() -> None:
    capacity = Capacity(threads=1, tasks=1, prefetch={"quick": 2}, async_names={"waits"})
    taken = [name for name in ("slow", "slow", "waits", "waits", "quick", "quick", "quick") if capacity.acquire(name)]
    assert taken == ["slow", "waits", "quick", "quick"]
    assert not capacity
    assert not Capacity(tasks=5)  # nothing is async: nothing could use them
    capacity = Capacity(
        prefetch={"quick": 2, UNMEASURED: 2}, prefetch_limit=3, async_names={"waits"}, measured_names={"quick", "slow"}
    )
    taken = [name for name in ("slow", "waits", "new", "quick", "other", "new", "quick") if capacity.acquire(name)]
    assert taken == ["new", "quick", "other"]
    assert not capacity


@pytest.mark.usefixtures("unhurried")  # all four have their activities after one turn
@pytest.mark.parametrize("asyncs", [set(), {"tests.app.durable.double"}], ids=["no async ones", "async ones"])
@pytest.mark.usefixtures("unhurried")
def test_a_claim_takes_what_there_is_room_for(asyncs: set[str]) -> None:
    for n in range(4):
        start("Doubling", {"n": n}, workflow_id=f"d-{n}")
    loop = WorkerLoop(inline=True)
    loop.engine.turn(limit=10, queues=["default"])
    loop._shut_down(None, hurried=True)
    (name,) = set(ActivityTask.objects.values_list("activity", flat=True))
    named = {name} if asyncs else set()
    storage = DjangoStorage()

    def claimed(**capacity: Any) -> int:
        return len(storage.claim_tasks(capacity=Capacity(async_names=named, **capacity), queues=["default"], owner=1))

    assert claimed(**({"threads": 3} if asyncs else {"tasks": 3})) == 0
    assert claimed(prefetch={"other": 5}) == 0
    assert claimed(**({"tasks": 1} if asyncs else {"threads": 1})) == 1
    assert claimed(prefetch={UNMEASURED: 5}, measured_names={name}) == 0
    if asyncs:
        assert claimed(prefetch={UNMEASURED: 5}) == 0
        assert claimed(prefetch={name: 1}) == 1
    else:
        assert claimed(prefetch={UNMEASURED: 1}, measured_names={"other"}) == 1
    assert claimed(prefetch={name: 1}) == 1
    assert claimed(threads=5, tasks=5, prefetch={name: 2}) == 1


@pytest.mark.postgres
def test_activities_whose_claim_was_committed_without_an_answer_are_given_back(
    subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    with proxied(connection.settings_dict) as proxy:
        env = environment(own(subprocess_env, '{"LEASE_SECONDS": 3.0}'), proxy, connection.settings_dict)
        with worker(env, tmp_path):
            epoch = Worker.objects.get().epoch
            proxy.lose_the_commit_of("insert into temporalex_activity_task")
            started = start("Recording", {"path": str(log)})
            wait_for(lambda: proxy.lost)
            wait_for(lambda: closed(started))
            assert Worker.objects.get().epoch == epoch  # it lives all the time
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["1"]


@pytest.mark.postgres
def test_ends_whose_commit_was_not_answered_are_told_once(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with proxied(connection.settings_dict) as proxy:
        env = environment(subprocess_env, proxy, connection.settings_dict)
        with worker(env, tmp_path):
            proxy.lose_the_commit_of("delete from temporalex_activity_task")
            started = start("Recording", {"path": str(log)})
            wait_for(lambda: closed(started))
            assert proxy.lost == 1
    assert len(log.read_text().splitlines()) == 1
    assert [event.kind for event in instance(started).events.all()].count("ActivityCompleted") == 1
