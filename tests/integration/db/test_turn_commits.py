"""The commit of a turn goes with its last statements: one wait for all, and where one of them fails nothing is left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection, transaction

from temporalex_django import Ok, Workflow
from temporalex_django.core import process
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.contracts.records import RunWrite
from temporalex_django.models import Chain, HistoryEvent, Instance
from temporalex_django.workers.loop import WorkerLoop
from tests.integration.db.test_storage_turn import event, start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres, pytest.mark.usefixtures("each_wire")]


class AtOnce(Workflow):
    """Is over in its first turn."""

    async def run(self, args: int) -> Ok[int]:
        """Give back what it was given."""
        return Ok(args)


@pytest.fixture
def storage() -> DjangoStorage:
    return DjangoStorage()


@contextmanager
def waits() -> Iterator[list[int]]:
    """How often this connection waits for the server inside: messages that ask it to answer all that was sent."""
    found: list[int] = []
    connection.ensure_connection()
    protocol = connection.connection.pgconn
    with tempfile.TemporaryFile("w+") as trace:
        protocol.trace(trace.fileno())
        try:
            yield found
        finally:
            protocol.untrace()
            trace.seek(0)
            found.append(sum("ReadyForQuery" in line for line in trace))


def write(storage: DjangoStorage, *, events: int = 1, last: bool = True, then: Callable[[], object] = int) -> None:
    """A turn that stores as many events of one number; ``then`` comes behind that."""
    with storage.transaction():
        (run,) = storage.claim(limit=1, queues=["default"])
        storage.write([RunWrite(run=run, events=[event(1)] * events)], is_last=last)
        then()


def breaks() -> None:
    raise ZeroDivisionError


@pytest.fixture
def unique_at_the_end() -> Iterator[Callable[[], object]]:
    """Stores what only the commit refuses."""
    with connection.cursor() as cursor:
        cursor.execute("create table last_things (id int primary key deferrable initially deferred)")
        cursor.execute("insert into last_things values (1)")
    yield lambda: connection.cursor().execute("insert into last_things values (1)")
    with connection.cursor() as cursor:
        cursor.execute("drop table last_things")


def test_they_are_one_wait(storage: DjangoStorage) -> None:
    took = {}
    for last in (True, False):
        started = start(storage, workflow_id=f"w-{last}")
        with waits() as found:
            write(storage, last=last)
        assert connection.connection.info.transaction_status.name == "IDLE"
        assert HistoryEvent.objects.filter(run_id=started.run_id).count() == 1
        Instance.objects.all().delete()
        Chain.objects.all().delete()
        took[last] = found[0]
    assert took[True] == took[False] - 1


def test_a_statement_that_fails_leaves_nothing_and_the_connection_good(storage: DjangoStorage) -> None:
    start(storage)
    with pytest.raises(DatabaseError):
        write(storage, events=2)  # the number of an event is unique
    assert not HistoryEvent.objects.exists()
    write(storage)
    assert HistoryEvent.objects.count() == 1


def test_a_commit_that_fails_leaves_nothing_and_the_connection_good(
    storage: DjangoStorage, unique_at_the_end: Callable[[], object]
) -> None:
    start(storage)
    with pytest.raises(DatabaseError):
        write(storage, then=unique_at_the_end)
    assert not HistoryEvent.objects.exists()
    write(storage)
    assert HistoryEvent.objects.count() == 1


def test_what_is_raised_behind_them_in_the_block_takes_them_back(storage: DjangoStorage) -> None:
    start(storage)
    with pytest.raises(ZeroDivisionError):
        write(storage, then=breaks)
    assert not HistoryEvent.objects.exists()


def test_somebody_elses_transaction_is_his_to_commit(storage: DjangoStorage) -> None:
    start(storage)

    def as_a_part() -> None:
        with transaction.atomic():
            write(storage)
            assert HistoryEvent.objects.count() == 1
            breaks()

    with pytest.raises(ZeroDivisionError):
        as_a_part()
    assert not HistoryEvent.objects.exists()


def test_a_process_that_ends_before_it_has_sent_the_commit_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash point is where it was: everything is ready to be sent, and nothing is stored."""
    handle = AtOnce.start(3)

    def dies(name: str) -> None:
        if name == "turn: before commit":
            raise KeyboardInterrupt

    loop = WorkerLoop(inline=True)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(process, "reached", dies)
            with pytest.raises(KeyboardInterrupt):
                loop.poll()
        assert Instance.objects.get().status == "pending"
        assert not HistoryEvent.objects.exists()
        loop.poll()
        assert handle.result() == 3
    finally:
        loop.marker.close()
