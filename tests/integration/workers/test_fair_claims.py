"""What one worker claims where many wait: some of each kind, in an order that keeps nobody waiting for a crowd."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from temporalex_django.db.inserts import insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling import Capacity
from temporalex_django.models import ActivityTask, Chain

pytestmark = [pytest.mark.django_db, pytest.mark.each_lane, pytest.mark.usefixtures("each_wire")]

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def due(count: int) -> list[UUID]:
    """So many runs that are due, the oldest first."""
    storage, chains = DjangoStorage(), []
    for n in range(count):
        started = insert_start(RunStart(workflow_id=f"w-{n}", workflow="Cart", args={}), storage=storage)
        Chain.objects.filter(pk=started.chain_id).update(due_at=LONG_AGO + timedelta(seconds=n))
        chains.append(started.chain_id)
    return chains


def waiting(chains: list[UUID]) -> list[UUID]:
    """They are not due any more."""
    Chain.objects.filter(pk__in=chains).update(due_at=None)
    return chains


def claimed(storage: DjangoStorage, limit: int, first: list[UUID] | None = None) -> list[UUID]:
    with storage.transaction():
        return [run.chain_id for run in storage.claim(limit=limit, queues=["default"], first=first or [])]


def test_a_quarter_of_a_claim_are_the_newest_where_more_are_due() -> None:
    storage, chains = DjangoStorage(), due(24)
    assert claimed(storage, 12) == chains[:12]  # nobody knows of a crowd yet

    found = claimed(storage, 12)

    assert found[:2] == [chains[-1], chains[0]]  # time may not suffice for the others
    assert set(found) == {*chains[:9], *chains[-3:]}
    assert set(claimed(storage, 1) + claimed(storage, 1) + claimed(storage, 1) + claimed(storage, 1)) == {
        chains[0],
        chains[-1],
    }
    assert set(claimed(storage, 100)) == set(chains)
    assert claimed(storage, 100) == chains  # the crowd is over


def test_some_of_each_kind_come_before_the_many_whose_activities_have_ended() -> None:
    storage, chains = DjangoStorage(), due(40)
    ended, talked_to, crowd = waiting(chains[:12]), waiting(chains[12:14]), chains[14:]
    for chain in talked_to:
        insert_message(chain, kind="signal", name="x", body=None, storage=storage)
    claimed(storage, 16)

    found = claimed(storage, 16, first=ended)

    assert set(ended) | set(talked_to) < set(found)
    assert found[:3] == [crowd[-1], crowd[0], talked_to[0]]
    assert set(found[3:15]) == set(ended)


def test_of_a_crowd_that_is_due_no_more_come_than_are_wanted_and_all_others_do() -> None:
    storage, chains = DjangoStorage(), due(40)
    ended, talked_to, crowd = waiting(chains[:6]), waiting(chains[6:9]), chains[9:]
    for chain in talked_to:
        insert_message(chain, kind="signal", name="x", body=None, storage=storage)

    def found() -> list[UUID]:
        with storage.transaction():
            with storage.sql.pipeline():
                asked = storage.submit_claim(limit=16, queues=["default"], first=ended, due=4)
            return [run.chain_id for run in asked(ended)]

    assert set(found()) == {*ended, *talked_to, *crowd[:4]}  # nobody knows of a crowd yet
    assert set(found()) == {*ended, *talked_to, *crowd[:3], crowd[-1]}


@pytest.mark.postgres
def test_a_quarter_of_the_activities_that_are_taken_are_the_newest() -> None:
    storage, now = DjangoStorage(), LONG_AGO
    storage.priority_queues = ["default"]
    for n in range(40):
        at = now + timedelta(seconds=n)
        fields = {"workflow_id": "", "workflow": "", "activity": "quick", "queue": "default", "run_queue": "default"}
        ActivityTask.objects.create(
            run_id=uuid7(), seq=n, call=b"[[], {}]", options=b"{}", scheduled_at=at, due_at=at, **fields
        )

    def taken(**capacity: object) -> list[int]:
        room = Capacity(**capacity)  # type: ignore[arg-type]
        return [task.seq for task in storage.claim_tasks(capacity=room, queues=["default"], owner=1)]

    assert taken(threads=8) == [*range(8)]
    assert taken(threads=8) == [*range(8, 14), 38, 39]
    assert taken(tasks=8, async_names={"slow"}) == []  # says nothing of the others
    assert taken(prefetch={"quick": 4}) == [14, 15, 16, 37]
    assert [seq for _ in range(4) for seq in taken(threads=1)] == [17, 18, 19, 36]
