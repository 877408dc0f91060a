"""What several connections do to each other. Each thread here has a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django.db.dialects.sqlite import SqliteDialect
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import Outcome, RunWrite
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.errors import AlreadyRunning
from temporalex_django.models import Chain, Instance, Message

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.each_lane]

T = TypeVar("T")


def start(workflow_id: str = "w-1", **options: Any) -> StartedRun:
    return insert_start(
        RunStart(workflow_id=workflow_id, workflow="Nobody", args=None, **options), storage=DjangoStorage()
    )


def send(started: StartedRun, name: str = "go", **options: Any) -> int:
    return insert_message(started.chain_id, kind="signal", name=name, body=None, storage=DjangoStorage(), **options).id


class Elsewhere:
    """Another connection: a thread that does one thing after the other."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    def begin(self, what: Callable[[], T]) -> Future[T]:
        return self.pool.submit(what)

    def do(self, what: Callable[[], T]) -> T:
        return self.begin(what).result(30)


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    other = Elsewhere()
    yield other
    other.do(connections.close_all)
    other.pool.shutdown()


@contextmanager
def held_open(other: Elsewhere, what: Callable[[], Any]) -> Iterator[None]:
    """``what`` in a transaction of another connection that stays open for the block."""
    done, go = threading.Event(), threading.Event()

    def body() -> None:
        with transaction.atomic():
            what()
            done.set()
            assert go.wait(30)

    future = other.begin(body)
    assert done.wait(30)
    try:
        yield
    finally:
        go.set()
        future.result(30)


@pytest.mark.postgres
def test_a_turn_does_not_wait_for_senders_nor_they_for_it(elsewhere: Elsewhere) -> None:
    started, storage = start(), DjangoStorage()
    with held_open(elsewhere, lambda: send(started, "uncommitted")), storage.transaction():
        (run,) = storage.claim(limit=5, queues=["default"])  # the sender holds nothing of the run
        assert storage.inbox([run.chain_id])[run.chain_id] == []
        other = Elsewhere()
        message = other.do(lambda: send(started, "committed"))  # nor does the turn hold up a sender
        other.do(connections.close_all)
        assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == [message]


@pytest.mark.postgres
def test_a_message_that_commits_during_a_turn_rings_again(elsewhere: Elsewhere) -> None:
    started, storage = start(), DjangoStorage()
    first = send(started, "first")
    with storage.transaction():
        (run,) = storage.claim(limit=5, queues=["default"])
        assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == [first]
        second = elsewhere.do(lambda: send(started, "second"))
        run.due_at = None
        storage.write([RunWrite(run=run, consumed=[first])])

    with storage.transaction():
        (run,) = storage.claim(limit=5, queues=["default"])
        assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == [second]


@pytest.mark.postgres
def test_a_lower_number_that_commits_later_is_still_delivered(elsewhere: Elsewhere) -> None:
    started, storage = start(), DjangoStorage()
    numbers: list[int] = []
    with held_open(elsewhere, lambda: numbers.append(send(started, "early number"))):
        late = send(started, "late number")
        with storage.transaction():
            (run,) = storage.claim(limit=5, queues=["default"])
            assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == [late]
            run.due_at = None
            storage.write([RunWrite(run=run, consumed=[late])])

    assert numbers[0] < late
    with storage.transaction():
        (run,) = storage.claim(limit=5, queues=["default"])
        assert [m.id for m in storage.inbox([run.chain_id])[run.chain_id]] == numbers


@pytest.mark.postgres
def test_two_workers_never_have_the_same_run(elsewhere: Elsewhere) -> None:
    """ST-077 HE-111."""
    for i in range(10):
        start(f"w-{i}")
    taken: list[Any] = []
    with held_open(elsewhere, lambda: taken.extend(DjangoStorage().claim(limit=6, queues=["default"]))):
        storage = DjangoStorage()
        with storage.transaction():
            mine = storage.claim(limit=10, queues=["default"])

    assert len(taken) == 6
    assert len(mine) == 4
    assert {r.chain_id for r in mine}.isdisjoint(r.chain_id for r in taken)


@pytest.mark.postgres
def test_a_start_waits_for_another_that_is_not_committed_and_says_so(elsewhere: Elsewhere) -> None:
    short = override_settings(TEMPORALEX={"START_LOCK_WAIT": 0.2})
    with held_open(elsewhere, lambda: start("same")), short, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set local lock_timeout = '7s'")
        with pytest.raises(AlreadyRunning) as caught:
            start("same")
        assert caught.value.pending
        start("other")  # the caller's transaction is whole
        with connection.cursor() as cursor:
            cursor.execute("show lock_timeout")
            assert cursor.fetchone() == ("7s",)  # and as it was

    with pytest.raises(AlreadyRunning) as caught:
        start("same")
    assert not caught.value.pending
    assert set(Instance.objects.values_list("workflow_id", flat=True)) == {"same", "other"}


@pytest.mark.postgres
def test_a_start_outside_of_a_transaction_is_one_statement_that_bounds_its_wait(elsewhere: Elsewhere) -> None:
    with connection.cursor() as cursor:
        cursor.execute("set statement_timeout = '30s'")  # else one that knows no bound would wait for this test
    try:
        short = override_settings(TEMPORALEX={"START_LOCK_WAIT": 0.2})
        with held_open(elsewhere, lambda: start("same")), short, pytest.raises(AlreadyRunning) as caught:
            start("same")
        assert caught.value.pending

        with CaptureQueriesContext(connection) as sent:
            start("other")
        assert len(sent) == 1
        with connection.cursor() as cursor:
            cursor.execute("show lock_timeout")
            assert cursor.fetchone() == ("0",)  # as it was: nobody else is bound by that
    finally:
        connection.close()
    assert set(Instance.objects.values_list("workflow_id", flat=True)) == {"same", "other"}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own")
def test_one_thread_of_a_process_at_a_time_looks_for_the_writer_lock(elsewhere, monkeypatch):
    """Thirty that look every few milliseconds keep the one that has the lock from going on: see ``atomic``."""
    arrived, looking, at_once = threading.Semaphore(0), set[int](), set[int]()
    atomic, entered = SqliteDialect.atomic, SqliteDialect._enter_transaction

    def arriving(self: SqliteDialect) -> AbstractContextManager[None]:
        arrived.release()
        return atomic(self)

    def counted(self: SqliteDialect, until: float) -> Any:
        looking.add(threading.get_ident())
        at_once.add(len(looking))
        try:
            return entered(self, until)
        finally:
            looking.discard(threading.get_ident())

    def begin(number: int) -> None:
        try:
            start(f"w-{number}")
        finally:
            connection.close()

    with ThreadPoolExecutor(7) as pool:
        with held_open(elsewhere, lambda: start("w-held")):
            monkeypatch.setattr(SqliteDialect, "atomic", arriving)
            monkeypatch.setattr(SqliteDialect, "_enter_transaction", counted)
            begun = [pool.submit(begin, number) for number in range(7)]
            assert all(arrived.acquire(timeout=30) for _ in begun)
        for one in begun:
            one.result(60)
    assert Instance.objects.count() == 8
    assert at_once == {1}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own")
def test_a_start_that_does_not_get_the_one_lock_says_nothing_of_its_id(elsewhere: Elsewhere) -> None:
    """Who takes ``AlreadyRunning`` for a start that was made before must not lose one."""
    with held_open(elsewhere, lambda: start("another")), connection.cursor() as cursor:
        cursor.execute("pragma busy_timeout")
        (patience,) = cursor.fetchone()
        cursor.execute("pragma busy_timeout = 50")
        try:
            with pytest.raises(OperationalError, match="locked"):
                start("same")
        finally:
            cursor.execute(f"pragma busy_timeout = {patience}")
    assert not Instance.objects.filter(workflow_id="same").exists()


@pytest.mark.postgres
def test_a_start_whose_rival_rolls_back_goes_through(elsewhere: Elsewhere) -> None:
    began, go = threading.Event(), threading.Event()

    def rival() -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012 - the block is the transaction
            start("same")
            began.set()
            assert go.wait(30)
            raise ZeroDivisionError

    future = elsewhere.begin(rival)
    assert began.wait(30)
    mine = Elsewhere()
    waiting = mine.begin(lambda: start("same"))
    go.set()
    future.result(30)

    assert waiting.result(30).run_id == Instance.objects.get().pk
    mine.do(connections.close_all)


@pytest.mark.postgres
def test_waiting_for_a_lock_leaves_the_transaction_whole(elsewhere: Elsewhere) -> None:
    started, storage = start(), DjangoStorage()

    def take() -> None:
        assert DjangoStorage().claim(limit=1, queues=["default"], chains=[started.chain_id])

    with held_open(elsewhere, take), transaction.atomic():
        assert not storage.lock_chain(started.chain_id, wait=0.3)
        start("other")
        assert Instance.objects.count() == 2
    with transaction.atomic():
        assert storage.lock_chain(started.chain_id, wait=0.3)
        assert len(storage.claim(limit=1, queues=["default"], chains=[started.chain_id])) == 1
        with connection.cursor() as cursor:
            cursor.execute("show lock_timeout")
            assert cursor.fetchone() == ("0",)


@pytest.mark.postgres
def test_two_requests_that_signal_two_runs_crosswise_do_not_deadlock(elsewhere: Elsewhere) -> None:
    one, two = start("one"), start("two")
    with held_open(elsewhere, lambda: send(one)), transaction.atomic():
        send(two)
        send(one)
    assert Message.objects.count() == 3


def test_the_same_update_sent_by_many_at_once_is_one_message() -> None:
    started = start()
    others = [Elsewhere() for _ in range(4)]
    found = [
        other.begin(
            lambda: insert_message(
                started.chain_id, kind="update", name="add", body=1, request_id="same", storage=DjangoStorage()
            )
        )
        for other in others
    ]
    inserted = [future.result(30) for future in found]
    for other in others:
        other.do(connections.close_all)

    assert len({one.id for one in inserted}) == 1
    assert [one.new for one in inserted].count(True) == 1
    assert Message.objects.count() == 1


def test_the_same_id_started_by_many_at_once_is_one_run() -> None:
    others = [Elsewhere() for _ in range(4)]

    def attempt() -> bool:
        try:
            start("same")
        except AlreadyRunning:
            return False
        return True

    found = [future.result(30) for future in [other.begin(attempt) for other in others]]
    for other in others:
        other.do(connections.close_all)

    assert found.count(True) == 1
    assert Chain.objects.count() == Instance.objects.count() == 1


def test_a_result_that_comes_too_late_changes_nothing() -> None:
    from temporalex_django.engine.contracts.records import NewTask, TaskResult

    storage = DjangoStorage()
    started = start()
    with storage.transaction():
        (run,) = storage.claim(limit=1, queues=["default"])
        now = storage.now()
        new = NewTask(
            run_id=run.run_id,
            chain_id=run.chain_id,
            workflow_id="w-1",
            workflow="Nobody",
            seq=1,
            activity="a",
            args=[],
            kwargs={},
            options={"retry": {"max_attempts": 0}},
            queue="default",
            atomic=False,
            scheduled_at=now,
        )
        run.due_at = None
        storage.write([RunWrite(run=run, tasks=[new])])
    (first,) = storage.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=1)
    done = TaskResult(task=first, outcome=("ActivityCompleted", {"seq": 1, "result": "late"}))
    assert storage.finish_tasks([TaskResult(task=first, retry_at=storage.now())]) == [first.id]
    (second,) = storage.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=2)

    assert (second.attempt, second.owner) == (2, 2)
    assert storage.finish_tasks([done]) == []
    assert storage.record_heartbeats({(first.id, 1, 1): "x", (second.id, 2, 2): "y"}) == {(second.id, 2, 2)}
    again = TaskResult(task=second, outcome=("ActivityCompleted", {"seq": 1, "result": "in time"}))
    assert storage.finish_tasks([again]) == [second.id]
    assert storage.finish_tasks([again]) == []  # delivered twice
    (message,) = storage.inbox([started.chain_id])[started.chain_id]
    assert (message.kind, message.name, message.payload, message.run_id) == (
        "activity",
        "ActivityCompleted",
        {"seq": 1, "result": "in time"},
        started.run_id,
    )


def test_an_attempt_given_back_is_not_counted() -> None:
    from temporalex_django.engine.contracts.records import NewTask

    storage = DjangoStorage()
    start()
    with storage.transaction():
        (run,) = storage.claim(limit=1, queues=["default"])
        storage.write(
            [
                RunWrite(
                    run=run,
                    settled={},
                    outcomes={"nobody": Outcome(status="completed")},
                    tasks=[
                        NewTask(
                            run_id=run.run_id,
                            chain_id=run.chain_id,
                            workflow_id="w-1",
                            workflow="Nobody",
                            seq=1,
                            activity="a",
                            args=[],
                            kwargs={},
                            options={},
                            queue="default",
                            atomic=False,
                            scheduled_at=storage.now(),
                        )
                    ],
                )
            ]
        )
    (first,) = storage.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=1)
    assert first.owner is not None
    storage.release_tasks({(first.id, first.attempt, first.owner)})
    (again,) = storage.claim_tasks(capacity=Capacity(threads=1), queues=["default"], owner=1)

    assert (first.attempt, again.attempt) == (1, 1)
