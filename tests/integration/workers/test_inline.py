"""What a worker does, in this thread on committed data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django.conf import get_settings
from temporalex_django.db.inserts import CHANNEL, NOTIFY, StartedRun, insert_message, insert_start, update_outcome
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.models import ActivityTask, Chain, Instance, Message, Worker
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def result(started: StartedRun) -> Any:
    row = instance(started)
    return row.status, (row.closing_value or {}).get("result", row.closing_value)


def test_a_run_with_an_activity_completes() -> None:
    started = start("Doubling", {"n": 21})

    run_until_idle()

    assert result(started) == ("completed", 42)
    assert not ActivityTask.objects.exists()
    assert not Message.objects.exists()
    assert not Worker.objects.exists()
    kinds = [e.kind for e in instance(started).events.all()]
    assert kinds == [
        *("WorkflowStarted", "ActivationStarted", "ActivityScheduled"),
        *("ActivationStarted", "ActivityCompleted", "WorkflowCompleted"),
    ]


def test_async_activities_run_too() -> None:
    started = start("AsyncDoubling", {"n": 5})

    run_until_idle()

    assert result(started) == ("completed", [0, 2, 4, 6, 8])


@pytest.mark.parametrize(("failures", "ends"), [(2, ("completed", 3)), (9, ("failed", ["ValueError", 3]))])
def test_a_failing_activity_is_tried_again_by_its_policy(tmp_path: Path, failures: int, ends: tuple[str, Any]) -> None:
    path = str(tmp_path / "log")
    started = start("Flaky", {"path": path, "failures": failures})

    def ended() -> bool:
        run_until_idle()  # idle means that nothing is due now: the next attempt is due in a moment
        return not instance(started).is_open

    wait_for(ended)

    status, value = result(started)
    assert (status, value if status == "completed" else value["reason"]) == ends
    assert Path(path).read_text().split() == ["1", "2", "3"]


def test_an_atomic_activity_commits_with_its_run() -> None:
    started = start("Booking", {"name": "ann"})

    run_until_idle()

    user = get_user_model().objects.get(username="ann")
    assert result(started) == ("completed", [2, user.pk])


def test_a_timer_is_not_due_before_its_time() -> None:
    started = start("Sleeping", {"seconds": 0.4})

    run_until_idle()
    assert instance(started).status == "waiting"
    wait_for(lambda: run_until_idle() and not instance(started).is_open)

    assert result(started) == ("completed", "awake")


def test_messages_are_delivered_in_order() -> None:
    started, storage = start("Tally"), DjangoStorage()
    run_until_idle()
    for i in range(1, 4):
        insert_message(started.chain_id, kind="update", name="add", body=i, request_id=f"u{i}", storage=storage)
    insert_message(started.chain_id, kind="signal", name="stop", body=None, storage=storage)
    late = insert_message(started.chain_id, kind="update", name="add", body=9, request_id="late", storage=storage)

    run_until_idle()

    assert result(started) == ("completed", 6)
    outcomes = [update_outcome(started.chain_id, f"u{i}", storage=storage) for i in range(1, 4)]
    assert outcomes == [Outcome(status="completed", value=v) for v in (1, 3, 6)]
    refused = update_outcome(started.chain_id, "late", storage=storage)
    assert refused is not None
    assert refused.status == "rejected"
    assert late.new


def test_a_run_without_its_class_is_blocked_and_goes_on_when_a_worker_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from temporalex_django.authoring import workflow

    started = start("Doubling", {"n": 1})
    cls = workflow.registry.pop("Doubling")
    try:
        run_until_idle()
        blocked = instance(started).blocked
        assert blocked is not None
        assert blocked["code"] == "unknown_workflow"
        assert "version 1 of 'Doubling'" in blocked["error"]
        assert Chain.objects.get(pk=started.chain_id).due_at is None
    finally:
        workflow.registry["Doubling"] = cls

    run_until_idle()

    assert result(started) == ("completed", 2)
    assert instance(started).blocked is None


def test_a_run_that_another_live_worker_has_is_left_to_it() -> None:
    from temporalex_django.authoring import workflow

    other = WorkerLoop(kind="worker")
    other.row.register(other.storage)
    started = start("Doubling", {"n": 1})
    cls = workflow.registry.pop("Doubling")
    try:
        run_until_idle()
        assert instance(started).blocked is None
        assert instance(started).status == "pending"
    finally:
        workflow.registry["Doubling"] = cls
        other.row.remove(other.storage)
        other.marker.close()

    run_until_idle()

    assert result(started) == ("completed", 2)


def test_a_poison_run_is_blocked_and_the_others_of_its_batch_go_on() -> None:
    good = [start("Doubling", {"n": i}, workflow_id=f"d{i}") for i in range(5)]
    bad = start("Doubling", {"n": 1}, workflow_id="bad")
    Instance.objects.filter(pk=bad.run_id).update(args=b"\xff not json")

    run_until_idle()

    assert [result(s) for s in good] == [("completed", 2 * i) for i in range(5)]
    blocked = instance(bad).blocked
    assert blocked is not None
    assert blocked["code"] == "payload"
    assert Chain.objects.get(pk=bad.chain_id).failed_tries == 1


def test_a_name_that_no_database_can_store_fails_its_run_alone() -> None:
    bad = start("Stuck", {"name": "nul\x00"})
    good = start("Doubling", {"n": 4})

    run_until_idle()

    assert result(good) == ("completed", 8)
    assert (instance(bad).status, instance(bad).closing_value["type"]) == ("failed", "WorkflowDefinitionError")


def test_a_heartbeat_that_stops_ends_the_attempt_and_its_details_are_there_for_the_next(tmp_path: Path) -> None:
    path, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()
    started = start("Silent", {"path": str(path), "hold": str(hold)})
    stop = threading.Event()
    worker = threading.Thread(target=WorkerLoop().run, args=[stop])
    worker.start()
    try:
        wait_for(lambda: not instance(started).is_open)
    finally:
        hold.unlink()
        stop.set()
        worker.join()

    assert result(started) == ("completed", {"at": 7})
    assert path.read_text().splitlines() == ["1 None", "2 {'at': 7}"]


def test_start_to_close_ends_an_attempt_whose_thread_is_stuck(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    started = start("Slow", {"hold": str(hold)})
    stop = threading.Event()
    worker = threading.Thread(target=WorkerLoop().run, args=[stop])
    worker.start()
    try:
        wait_for(lambda: not instance(started).is_open)
    finally:
        hold.unlink()
        stop.set()
        worker.join()

    assert instance(started).closing_value["reason"] == "start_to_close"


def test_a_worker_shows_itself_and_goes_without_a_trace() -> None:
    stop = threading.Event()
    loop = WorkerLoop(queues=["default", "slow"])
    others = loop.marker.holders - 1  # what updates in this process mark, when any did
    worker = threading.Thread(target=loop.run, args=[stop])
    worker.start()
    try:
        row = wait_for(Worker.objects.first)
        assert (row.epoch, row.queues) == (loop.row.epoch, ["default", "slow"])
        assert row.workflows["Doubling"] == [1]
        assert (row.expires_at - row.beat_at).total_seconds() == get_settings().LEASE_SECONDS
    finally:
        stop.set()
        worker.join()
    assert not Worker.objects.exists()
    assert loop.marker.holders == others
    assert Path(loop.marker.path).exists() == bool(others)


def test_the_local_runner_runs_in_threads_of_this_process() -> None:
    from temporalex_django.workers.development import DevelopmentWorker

    runner = DevelopmentWorker()
    runner.start()
    runner.start()
    try:
        started = start("Doubling", {"n": 2})
        runner.wake()
        wait_for(lambda: not instance(started).is_open)
        assert Worker.objects.get().kind == "local"
    finally:
        runner.stop()

    assert result(started) == ("completed", 4)
    assert not Worker.objects.exists()
    runner.stop()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("inline", [True, False])
def test_statements_of_a_round_do_not_depend_on_the_number_of_runs(inline: bool) -> None:
    def statements(size: int) -> int:
        for i in range(size):
            started = start("Tally", workflow_id=f"{size}-{i}")
            for number in range(2):
                body: Any = {"kind": "update", "name": "add", "body": 1, "request_id": f"update-{number}"}
                insert_message(started.chain_id, **body, storage=DjangoStorage())
        loop = WorkerLoop(inline=inline)
        try:
            with CaptureQueriesContext(connection) as queries:
                assert loop.poll().runs == size
            return len(queries)
        finally:
            loop.marker.close()

    with override_settings(TEMPORALEX={"TURN_SIZE": 200}):
        assert statements(10) == statements(100)


@pytest.mark.postgres
def test_a_worker_that_nobody_has_rung_for_looks_by_one_plain_read() -> None:
    """A turn in vain takes locks and a transaction: most looks of an idle worker find nothing."""
    loop = WorkerLoop(inline=True)
    try:
        loop.poller.expects_work = False
        with CaptureQueriesContext(connection) as queries:
            idle = loop.poll()
        assert idle.is_plain_read and not idle and idle.due_in is None
        assert [look["sql"] for look in queries if "skip locked" in look["sql"]] == [] and len(queries) == 1

        started = start("Doubling", {"n": 21})
        Chain.objects.filter(pk=started.chain_id).update(due_at=timezone.now() + timedelta(days=30))
        assert (loop.poll().due_in or 0) > 86_400, "it knows how long it may sleep"
        Chain.objects.filter(pk=started.chain_id).update(due_at=timezone.now())
        assert loop.poll().runs == 1, "what is due is taken at once"
    finally:
        loop.marker.close()


@pytest.mark.postgres
def test_a_hint_leaves_the_commits_of_its_session_as_durable_as_they_were() -> None:
    with listening() as heard, connection.cursor() as cursor:
        cursor.execute("set synchronous_commit = local")
        cursor.execute(NOTIFY, [CHANNEL, "default"])
        cursor.execute("show synchronous_commit")
        assert cursor.fetchone() == ("local",)
        cursor.execute("reset synchronous_commit")
        assert heard() == "default"


@contextmanager
def listening() -> Iterator[Callable[[], str]]:
    """Gives the payload of the next hint that another session sends."""
    from temporalex_django.workers.listener import connect  # psycopg is not there in every lane

    with connect("default") as other:
        other.execute(f"listen {CHANNEL}")
        yield lambda: next(other.notifies(timeout=30, stop_after=1)).payload


@pytest.mark.postgres
def test_behind_a_pooler_it_works_without_sessions() -> None:
    with override_settings(TEMPORALEX={"POOLED": True}):
        started = start("Booking", {"name": "ann"})
        stop = threading.Event()
        loop = WorkerLoop()
        worker = threading.Thread(target=loop.run, args=[stop])
        worker.start()
        try:
            wait_for(lambda: not instance(started).is_open)
            assert not Worker.objects.get().session_lock
        finally:
            stop.set()
            worker.join()

    assert instance(started).status == "completed"


@pytest.mark.postgres
def test_local_activities_begin_in_the_worker_that_advances_however_busy_it_is() -> None:
    """TX-215: what waits in a queue leaves no row to claim for them; elsewhere they wait in the queue of their run."""
    started = start("LocalDoubling", {"n": 3})
    loop = WorkerLoop(kind="test", inline=True)
    loop.row.register(loop.storage)
    taken: list[str] = []
    submit, loop.pool.capacity = loop.pool.submit, Capacity  # type: ignore[method-assign]

    def submitted(tasks: Any) -> None:
        taken.extend(task.activity.rsplit(".", 1)[-1] for task in tasks)
        submit(tasks)

    loop.pool.submit = submitted  # type: ignore[method-assign]
    for _ in range(4):
        loop.poll()
    assert taken == ["double_here"] * 3
    assert instance(started).status == "running"  # the one that is not local finds no capacity
    assert [task.queue for task in ActivityTask.objects.all()] == ["default"]
