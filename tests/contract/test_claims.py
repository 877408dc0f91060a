"""``claim``, ``decline``, ``wait_for_locks``: which runs a turn gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from temporalex_django.engine.contracts.records import RunWrite
from tests.contract.places import NOW, DatabasePlace

if TYPE_CHECKING:
    from uuid import UUID

    from tests.contract.places import Place


def test_a_start_is_due_at_once(place: Place) -> None:
    chain = place.start(execution_timeout=60)

    with place.storage.transaction():
        (run,) = place.storage.claim(limit=10, queues=["default"])

    assert (run.chain_id, run.run_id, run.queue) == (chain, place.runs(chain)[0], "default")
    assert (run.head_token, run.length, run.activations, run.activated_at, run.failed_tries, run.crashes) == (
        None,
        0,
        0,
        None,
        0,
        0,
    )
    assert (run.closed, run.paused, run.atomic_due) == (False, False, None)
    assert run.due_at == NOW
    assert run.deadline is not None
    assert (run.deadline - NOW).total_seconds() == 60


def test_a_claim_brings_the_clock_of_the_storage(place: Place) -> None:
    place.start()

    with place.storage.transaction():
        assert place.storage.claim(limit=10, queues=["default"]).now == place.storage.now() == NOW


def test_the_first_of_two_limits_is_the_deadline(place: Place) -> None:
    assert place.state(place.start(execution_timeout=60, run_timeout=20)).deadline == place.storage.now().replace(
        second=20
    )


def test_only_runs_of_the_named_queues(place: Place) -> None:
    mine, other = place.start("mine"), place.start("other", queue="slow")
    third = place.start("third", queue="third")

    assert place.claim("default") == [mine]
    assert place.claim("slow") == [other]
    assert set(place.claim("slow", "third")) == {other, third}
    assert place.claim("nobody's") == []


def test_messages_ring_in_the_queue_of_their_run_alone(place: Place) -> None:
    chain = place.start(queue="slow")
    place.quiet(chain)
    place.send(chain)

    assert place.claim("default") == []
    assert place.claim("slow") == [chain]


def test_what_is_not_due_stays(place: Place) -> None:
    chain = place.start()
    place.write(chain, run={"due_at": place.now.replace(minute=1)})

    assert place.claim() == []
    place.advance(59)
    assert place.claim() == []
    place.advance(1)
    assert place.claim() == [chain]


def test_the_longest_due_come_first(place: Place) -> None:
    chains = [place.start(f"w-{i}") for i in range(4)]
    for chain, minute in zip(chains, (3, 1, 4, 2), strict=True):
        place.write(chain, run={"due_at": NOW.replace(minute=minute)})
    place.advance(600)

    assert place.claim() == [chains[1], chains[3], chains[0], chains[2]]


def test_no_more_than_the_limit(place: Place) -> None:
    for i in range(5):
        place.start(f"w-{i}")

    assert len(place.claim(limit=3)) == 3


def test_a_run_that_is_due_and_has_messages_comes_once(place: Place) -> None:
    chain = place.start()
    place.send(chain)
    place.send(chain)

    assert place.claim() == [chain]


def test_a_message_rings_until_a_turn_took_note_of_it(place: Place) -> None:
    chain = place.start()
    place.quiet(chain)
    assert place.claim() == []

    first, second = place.send(chain), place.send(chain)
    assert place.claim() == [chain]
    place.write(chain, consumed=[first])
    assert place.claim() == [chain]
    place.write(chain, parked=[second])
    assert place.claim() == []


def test_named_chains_come_whatever_they_are(place: Place) -> None:
    """Not due, of another queue, closed: whoever names a run knows why."""
    quiet, other, closed, left = (
        place.start(f"w-{i}", queue=q) for i, q in enumerate(("default", "slow", "default", "default"))
    )
    place.quiet(quiet)
    place.write(closed, run={"closed": True, "due_at": None})

    assert set(place.claim(chains=[quiet, other, closed])) == {quiet, other, closed}
    assert left not in place.claim(chains=[quiet])


def test_a_chain_that_nobody_started_is_no_run(place: Place) -> None:
    chain = place.start()

    assert place.claim(chains=[chain, place.storage.new_run_id()]) == [chain]


def test_what_is_claimed_is_a_copy(place: Place) -> None:
    chain = place.start()
    with place.storage.transaction():
        (run,) = place.storage.claim(limit=1, queues=["default"])
        run.length, run.due_at = 99, None

    assert place.state(chain).length == 0
    assert place.claim() == [chain]


def test_what_is_written_is_a_copy(place: Place) -> None:
    chain = place.start()
    with place.storage.transaction():
        (run,) = place.storage.claim(limit=1, queues=["default"])
        run.length = 3
        place.storage.write([RunWrite(run=run)])
        run.length, run.closed = 99, True

    assert (place.state(chain).length, place.state(chain).closed) == (3, False)


def test_a_closed_run_is_never_due(place: Place) -> None:
    chain = place.start(execution_timeout=5)
    place.write(chain, run={"closed": True})
    place.advance(60)

    assert place.claim() == []
    assert (place.state(chain).due_at, place.state(chain).deadline) == (None, None)


def test_a_deferred_run_is_left_alone_until_it_is_taken_back(place: Place) -> None:
    one, two, three = (place.start(f"w-{i}") for i in range(3))
    place.quiet(three)
    place.send(three)
    place.storage.defer([one, three], seconds=60.0)

    assert place.claim() == [two]
    assert place.claim(chains=[one]) == [one]
    place.storage.defer([one], seconds=0)
    assert set(place.claim()) == {one, two}
    place.storage.defer([three], seconds=0)
    assert set(place.claim()) == {one, two, three}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_runs_that_somebody_else_has_are_skipped() -> None:
    """Only PostgreSQL locks single runs: SQLite has one writer at a time, memory one caller."""
    place = DatabasePlace()
    chains = [place.start(f"w-{i}") for i in range(4)]
    taken, go = Event(), Event()

    def hold() -> list[UUID]:
        other = DatabasePlace()
        with other.storage.transaction():
            held = [run.chain_id for run in other.storage.claim(limit=2, queues=["default"])]
            taken.set()
            assert go.wait(30)
        connections.close_all()
        return held

    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(hold)
        assert taken.wait(30)
        try:
            mine, named = place.claim(), place.claim(chains=chains)
        finally:
            go.set()
        held = elsewhere.result(30)

    assert len(held) == 2
    assert set(mine) == set(named) == set(chains) - set(held)
    assert set(place.claim()) == set(chains)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_an_inbox_that_was_read_before_its_run_was_locked_does_not_count() -> None:
    """What comes with the locks of those that are wanted first is of those alone that were free then."""
    place, free, busy = DatabasePlace(), *(DatabasePlace().start(name) for name in ("free", "busy"))
    message = place.send(busy)
    taken, go = Event(), Event()

    def consume() -> None:
        other = DatabasePlace()
        with other.storage.transaction():
            (run,) = other.storage.claim(limit=1, queues=[], chains=[busy])
            taken.set()
            assert go.wait(30)
            other.storage.write([RunWrite(run=run, consumed=[message])])
        connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(consume)
        assert taken.wait(30)
        try:
            with place.storage.transaction():
                with place.storage.sql.pipeline():
                    asked = place.storage.submit_claim(limit=10, queues=["default"], first=[free, busy])
                go.set()
                elsewhere.result(30)
                claimed = asked([free, busy])
                assert {run.chain_id for run in claimed} == {free, busy}  # it is free by now
                assert set(claimed.inbox([free, busy])) == {free}
                assert place.storage.inbox([busy]) == {busy: []}
        finally:
            go.set()


def test_standing_in_line_for_a_free_run(place: Place) -> None:
    chain = place.start()
    with place.storage.transaction():
        place.storage.wait_for_locks(chain, timeout=1.0)
        (run,) = place.storage.claim(limit=1, queues=[], chains=[chain])

    assert run.chain_id == chain


def test_no_worker_lives_who_never_said_so(place: Place) -> None:
    assert not place.storage.has_live_worker("Cart", 1)
