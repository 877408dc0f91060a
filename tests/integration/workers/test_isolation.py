"""What goes wrong with one run or activity holds up nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.engine.turn import WorkflowEngine
from temporalex_django.models import ActivityTask, Chain, Instance, Message, Worker
from temporalex_django.workers import attempts, maintenance
from temporalex_django.workers.loop import WorkerLoop, run_until_idle
from temporalex_django.workers.pool import Pool
from tests.integration.liveness.test_recovery import left_by_a_dead_process
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def send(started: StartedRun, name: str) -> None:
    insert_message(started.chain_id, kind="signal", name=name, body=None, storage=DjangoStorage())


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def turn() -> None:
    storage = DjangoStorage(worker=True)
    WorkflowEngine(storage, storage).turn(limit=10, queues=["default"])


@contextmanager
def locked_by_another(name: str) -> Iterator[None]:
    """A business row that somebody holds for the length of the block."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            get_user_model().objects.select_for_update().get(username=name)
            held.set()
            go.wait(30)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    try:
        yield
    finally:
        go.set()
        thread.join(30)


def test_an_activity_that_cannot_be_read_fails_for_good_and_the_others_go_on() -> None:
    broken = start("Doubling", {"n": 1}, workflow_id="broken")
    turn()
    ActivityTask.objects.update(call=b"\xff not json")
    other = start("Doubling", {"n": 2}, workflow_id="other")

    run_until_idle()

    assert instance(other).status == "completed"
    assert instance(broken).status == "failed"
    (failed,) = instance(broken).events.filter(kind="ActivityFailed")
    assert failed.data["type"] == "PayloadError"
    assert not ActivityTask.objects.exists()


def test_an_expired_activity_that_cannot_be_read_fails_for_good() -> None:
    started = start("Doubling", {"n": 1})
    turn()
    past = datetime(2020, 1, 1, tzinfo=UTC)
    ActivityTask.objects.update(options=b"\xff not json", owner=1, attempt=1, started_at=past, expires_at=past)

    assert DjangoStorage().expired_tasks(limit=10) == []

    assert not ActivityTask.objects.exists()
    assert Message.objects.get(chain_id=started.chain_id).name == "ActivityFailed"


def test_a_round_that_raises_does_not_end_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    started = start("Doubling", {"n": 1})
    loop, stop, raised = WorkerLoop(), threading.Event(), threading.Event()
    real = loop.poll

    def once() -> Any:
        if not raised.is_set():
            raised.set()
            raise RuntimeError("unexpected")
        return real()

    monkeypatch.setattr(loop, "poll", once)

    def work() -> None:
        loop.run(stop)
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for(lambda: not instance(started).is_open)
    finally:
        stop.set()
        thread.join(30)
    assert raised.is_set()


def test_what_a_drain_gives_back_never_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has taken an attempt up and has not come to its function yet when the worker is told to stop."""
    log = tmp_path / "log"
    log.touch()
    start("AtMostOnce", {"path": str(log), "hold": str(tmp_path / "none")})
    turn()
    (task,) = DjangoStorage(worker=True).claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=1)
    taken, go = threading.Event(), threading.Event()
    real = attempts.Attempt.run

    def run(self: attempts.Attempt, **options: Any) -> Any:
        taken.set()
        assert go.wait(30)
        return real(self, **options)

    monkeypatch.setattr(attempts.Attempt, "run", run)
    pool = Pool(threads=1, tasks=1, now=lambda: datetime.now(UTC), on_result=lambda: None)
    pool.submit([task])
    assert taken.wait(30)

    back = pool.drain(0.0)
    go.set()

    assert back == set()
    wait_for(pool.results)
    assert len(log.read_text().splitlines()) == 1
    pool.close()


def test_what_waits_in_vain_for_a_thread_is_offered_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for the next look of a worker that has nothing else to do."""
    loop = WorkerLoop(inline=True)
    monkeypatch.setattr(loop.pool, "overdue", lambda: {(1, 1, loop.row.epoch)})
    maintenance.Maintenance(loop)._record_heartbeats()
    assert loop.wake.is_set()
    loop.marker.close()


def test_a_run_that_waits_with_many_messages_does_not_starve_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DjangoStorage, "inbox_page", 3)
    blocked, other = start("Tally", workflow_id="blocked"), start("Tally", workflow_id="other")
    run_until_idle()
    for _ in range(5):
        send(blocked, "stop")
    Message.objects.update(fresh=False)
    Chain.objects.filter(pk=blocked.chain_id).update(due_at=None, failed_tries=5)
    send(blocked, "stop")
    send(other, "stop")

    run_until_idle()

    assert instance(other).status == "completed"
    assert not Message.objects.filter(fresh=True).exists()
    assert Message.objects.filter(chain_id=blocked.chain_id).count() == 6


def test_a_blocked_run_that_is_terminated_answers_its_parked_messages_too() -> None:
    blocked = start("Tally")
    run_until_idle()
    insert_message(blocked.chain_id, kind="update", name="add", body=1, request_id="u", storage=DjangoStorage())
    Message.objects.update(fresh=False)
    Chain.objects.filter(pk=blocked.chain_id).update(due_at=None, failed_tries=5)
    body = {"reason": "its parent closed"}
    insert_message(blocked.chain_id, kind="terminate", name="", body=body, storage=DjangoStorage())

    run_until_idle()

    assert instance(blocked).status == "terminated"
    assert Message.objects.get(request_id="u").outcome_status == "rejected"


def test_messages_of_a_run_that_is_blocked_for_its_crashes_are_parked() -> None:
    started = start("Tally")
    run_until_idle()
    Chain.objects.filter(pk=started.chain_id).update(due_at=None, failed_tries=3, crashes=3)
    send(started, "stop")
    storage = DjangoStorage(worker=True)
    assert storage.next_due(queues=["default"]) == 0.0

    run_until_idle()

    assert storage.next_due(queues=["default"]) is None
    assert Message.objects.get().fresh is False
    assert instance(started).is_open


@pytest.mark.postgres
@pytest.mark.usefixtures("unhurried")
def test_business_rows_that_somebody_holds_do_not_freeze_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    get_user_model().objects.create(username="hot", last_name="0")
    waiting = [start("Crosswise", {"times": 1, "names": ["hot"]}, workflow_id=f"c{i}") for i in range(5)]
    loop = WorkerLoop(inline=True)
    tried: list[Any] = []
    real = loop.engine.advance_atomic

    def counted(chain: Any, **options: Any) -> Any:
        tried.append(chain)
        return real(chain, **options)

    monkeypatch.setattr(loop.engine, "advance_atomic", counted)
    for pause in ("CONTENDED_SECONDS", "LONGEST_LOCK_PAUSE"):
        monkeypatch.setattr(policy, pause, 60.0)  # however slow this machine is
    with connection.cursor() as cursor:
        cursor.execute("set lock_timeout = '150ms'")
    try:
        with locked_by_another("hot"):
            loop.poll()
            assert len(tried) == 1  # the time of a poll is over: the others are still due
            assert loop.storage.next_due(queues=["default"]) == 0.0
            assert not loop.poll()
            assert len(set(tried)) == 2  # it is left alone for a while, and nothing was done
    finally:
        with connection.cursor() as cursor:
            cursor.execute("reset lock_timeout")
    loop.single_runs._pauses.clear()  # the row is free, and the minute is over
    loop.storage.defer(set(tried), seconds=0.0)
    wait_for(lambda: loop.poll() is not None and all(not instance(run).is_open for run in waiting))
    loop.marker.close()
    assert get_user_model().objects.get().last_name == "5"


def test_a_worker_starts_although_another_is_burying_the_same_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = DjangoStorage().now()
    dead = Worker.objects.create(
        id="018f0000-0000-7000-8000-000000000000",
        epoch=7,
        kind="worker",
        host="h",
        pid=1,
        crash_marker=left_by_a_dead_process(DjangoStorage()),
        queues=[],
        workflows={},
        started_at=now,
        beat_at=now,
        expires_at=now - timedelta(hours=1),
    )
    loop = WorkerLoop(inline=True)
    real, failures = maintenance.recover, [1, 1]

    class Locked(maintenance.DatabaseError):
        pass

    def contended(*args: Any, **options: Any) -> Any:
        if failures:
            failures.pop()
            raise Locked("canceling statement due to lock timeout")
        return real(*args, **options)

    monkeypatch.setattr(maintenance, "recover", contended)
    tended = maintenance.Maintenance(loop)
    monkeypatch.setattr(tended.storage, "is_transient", lambda exc: isinstance(exc, Locked))

    tended.register()

    assert not Worker.objects.filter(pk=dead.pk, buried_at=None).exists()
    assert Worker.objects.filter(pk=loop.row.id).exists()
    loop.marker.close()


def test_which_classes_live_workers_have_is_asked_once_a_turn() -> None:
    storage = DjangoStorage()
    with CaptureQueriesContext(connection) as queries:
        for _ in range(50):
            storage.has_live_worker("Foreign", 1)
    assert len([q for q in queries if "temporalex_worker" in q["sql"]]) == 1
