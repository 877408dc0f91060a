"""A long inbox and a long history are worked off piece by piece: progress is kept, and others are served in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import override_settings
from django.utils.timezone import now

from temporalex_django import WorkflowHandle
from temporalex_django.backends.tables import requests
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.run_reader import iterate_pages
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.run_start import RunStart
from temporalex_django.errors import UpdateRejected
from temporalex_django.models import Chain, HistoryEvent, Instance, Message
from temporalex_django.testing import DjangoEnvironment
from temporalex_django.workers.loop import WorkerLoop
from tests.app.turns import spins
from tests.support.runs import flow

pytestmark = pytest.mark.django_db(transaction=True)


def start(workflow: str, args: Any = None, **options: Any) -> StartedRun:
    options.setdefault("workflow_id", f"{workflow}-1")
    return insert_start(RunStart(workflow=workflow, args=args, **options), storage=DjangoStorage())


def send(started: StartedRun, name: str, body: Any = None, **more: Any) -> None:
    insert_message(started.chain_id, kind="signal", name=name, body=body, storage=DjangoStorage(), **more)


def send_ticks(started: StartedRun, numbers: range) -> None:
    with transaction.atomic():
        for number in numbers:
            send(started, "tick", number)


def instance(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def left(started: StartedRun) -> int:
    return Message.objects.filter(chain_id=started.chain_id).count()


def replays(started: StartedRun) -> None:
    """The history as a whole: going through each of its prefixes would take all of its milliseconds each time."""
    env = DjangoEnvironment()
    env.replay(env.handle(str(started.run_id)))


@pytest.fixture
def loop() -> Iterator[WorkerLoop]:
    made = WorkerLoop(inline=True)
    yield made
    made.marker.close()


def polls_until(loop: WorkerLoop, done: Any, *, most: int = 20_000) -> int:
    for count in range(most):
        if done():
            return count
        loop.poll()
    raise AssertionError(f"not after {most} polls")


def test_a_turn_has_the_writer_lock_for_a_moment(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one: it takes more runs as long as that is short, and few when it was not."""
    if not loop.storage.sql.writer_lock:
        pytest.skip("PostgreSQL locks rows")
    for number in range(80):
        start("Tally", workflow_id=f"t-{number}")
    # No other limit may end a turn on a slow machine.
    for limit in ("TURN_SECONDS", "RUN_SECONDS", "LATE_SECONDS", "REBUILD_IN_TURN_SECONDS", "MAX_LOCK_SECONDS"):
        monkeypatch.setattr(f"temporalex_django.engine.policy.{limit}", 60.0)
    assert [loop.poll().runs for _ in range(3)] == [20, 25, 31]

    monkeypatch.setattr("temporalex_django.engine.policy.MAX_LOCK_SECONDS", 1e-9)
    assert loop.poll().runs == 4
    assert loop.turn_runner._reachable_runs == 20


def test_a_backlog_of_slow_signals_is_consumed_and_a_neighbour_goes_on(loop: WorkerLoop) -> None:
    busy = start("Ticking", {"spins": spins(1)})
    neighbour = start("Tally")
    polls_until(loop, lambda: not Chain.objects.filter(head_token=None).exists())
    send_ticks(busy, range(1_500))

    loop.poll()
    before = left(busy)
    assert before > 1_000
    send(neighbour, "stop")
    polls_until(loop, lambda: not instance(neighbour).is_open, most=4)
    assert left(busy) > 1_000

    send(busy, "stop")
    polls_until(loop, lambda: not instance(busy).is_open)
    assert instance(busy).closing_value == {"result": [1_500, 1_500]}
    assert instance(busy).blocked is None


def late_with(loop: WorkerLoop, signals: int) -> StartedRun:
    """A run that has so many signals in its mailbox, each of which takes a millisecond.

    Its phase is open from the next turn on.
    """
    busy = start("Ticking", {"spins": spins(1), "late": 1})
    loop.storage.inbox_page = 10_000
    send_ticks(busy, range(signals))
    polls_until(loop, lambda: not left(busy))
    send(busy, "go")
    return busy


@pytest.mark.parametrize("kept", [True, False])
def test_signals_that_came_before_their_phase_take_several_activations_too(loop: WorkerLoop, kept: bool) -> None:
    busy = late_with(loop, 600)
    neighbour = start("Tally")
    loop.poll()
    before = HistoryEvent.objects.filter(run_id=busy.run_id, kind="ActivationStarted").count()
    send(busy, "stop")
    send(neighbour, "stop")
    polls_until(loop, lambda: not instance(neighbour).is_open, most=4)
    assert instance(busy).is_open

    if not kept:  # another worker takes it, in the middle
        for run in (busy, neighbour):
            loop.engine.cache.take(run.run_id)
    polls_until(loop, lambda: not instance(busy).is_open, most=2_000)
    assert instance(busy).closing_value == {"result": [600, 600]}
    assert HistoryEvent.objects.filter(run_id=busy.run_id, kind="ActivationStarted").count() > before + 3
    replays(busy)


@pytest.mark.usefixtures("collector_at_rest")
@pytest.mark.parametrize("kept", [True, False])
def test_signals_that_a_loop_of_waits_finds_take_several_activations_too(
    loop: WorkerLoop, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them take longer than the limit of a deadlock."""
    monkeypatch.setattr(loop.engine, "_deadlock_timeout", 1.0)
    # However quick the machine is, an activation takes few of them.
    for limit in ("RUN_SECONDS", "MIN_RUN_SECONDS"):
        monkeypatch.setattr(policy, limit, 0.001)
    loop.storage.inbox_page = 10_000
    busy = start("Counting", {"spins": spins(4), "ticks": 300})
    send_ticks(busy, range(300))
    polls_until(loop, lambda: not left(busy))
    send(busy, "go")
    neighbour = start("Tally")
    loop.poll()
    send(neighbour, "stop")
    polls_until(loop, lambda: not instance(neighbour).is_open, most=4)
    assert instance(busy).is_open

    if not kept:  # another worker takes it, in the middle
        loop.engine.cache.take(busy.run_id)
    polls_until(loop, lambda: not instance(busy).is_open, most=2_000)
    assert instance(busy).closing_value == {"result": list(range(300))}
    assert instance(busy).blocked is None
    replays(busy)


def test_a_run_that_came_to_no_wait_is_not_tried_because_an_update_came(
    loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others of the turn would wait for it, as often as anybody sends one."""
    tried = []

    async def run(self: Any, args: Any) -> None:
        tried.append(1)
        while True:
            pass

    monkeypatch.setattr(loop.engine, "_deadlock_timeout", 0.2)
    spinning = start(flow(run).name)
    polls_until(loop, lambda: instance(spinning).blocked)
    Chain.objects.filter(pk=spinning.chain_id).update(due_at=now() + timedelta(hours=1))
    store = DjangoStorage()
    insert_message(spinning.chain_id, kind="update", name="add", body=1, request_id="u-1", storage=store)
    polls_until(loop, lambda: not Message.objects.filter(fresh=True).exists())
    assert Message.objects.get(request_id="u-1").outcome_status == "rejected"
    assert len(tried) == 1


def test_an_update_in_a_request_is_answered_behind_signals_that_came_before_their_phase(
    loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_READ_WITHIN", 60.0)  # however slow this machine is
    late_with(loop, 100)
    with transaction.atomic():  # nobody else is there to go on
        assert WorkflowHandle("Ticking-1").update("so_far") == 100


@pytest.mark.parametrize("inside", [False, True])
def test_an_update_in_a_request_is_answered_behind_messages_that_fill_several_activations(
    inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_READ_WITHIN", 60.0)  # however slow this machine is
    busy = start("Ticking", {"spins": spins(5)})
    handle = WorkflowHandle("Ticking-1")
    assert handle.update("so_far") == 0
    send_ticks(busy, range(40))

    with transaction.atomic() if inside else nullcontext():  # nobody else is there to read them
        assert handle.update("so_far") == 40
    with pytest.raises(UpdateRejected):
        handle.update("no_such_update")


def test_of_a_long_inbox_a_turn_reads_so_many_messages_and_so_many_bytes() -> None:
    storage = DjangoStorage()
    many, large = start("Tally", workflow_id="many"), start("Tally", workflow_id="large")
    send_ticks(many, range(2_500))
    with transaction.atomic():
        for _ in range(20):
            send(large, "tick", "x" * 1_000_000)
        insert_message(many.chain_id, kind="cancel", name="", body={"reason": "enough"}, storage=storage)

    inboxes = storage.inbox([many.chain_id, large.chain_id])
    assert (len(inboxes[many.chain_id]), inboxes[many.chain_id].has_more) == (1_001, True)
    assert inboxes[many.chain_id][-1].kind == "cancel"
    assert [m.payload for m in inboxes[many.chain_id][:-1]] == list(range(1_000))
    assert (len(inboxes[large.chain_id]), inboxes[large.chain_id].has_more) == (7, True)
    assert {len(m.payload) for m in inboxes[large.chain_id]} == {1_000_000}


def test_each_of_many_long_inboxes_gives_some_whatever_the_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DjangoStorage()
    storage.inbox_page = 20
    runs = [start("Tally", workflow_id=f"t-{number}") for number in range(10)]
    for started in runs:
        send_ticks(started, range(15))
        send(started, "tick", "x" * 9_000)
    monkeypatch.setattr(policy, "MAX_READ_BYTES", 10_000)

    found = storage.inbox([started.chain_id for started in runs])

    assert [len(found[started.chain_id]) for started in runs] == [16] * 10
    assert not any(one.has_more for one in found.values())


def test_the_time_of_a_run_that_is_paused_is_not_over(loop: WorkerLoop) -> None:
    started = start("Tally", execution_timeout=3600.0)
    Chain.objects.update(paused=True, deadline=DjangoStorage().now())
    loop.poll()
    assert instance(started).is_open
    Chain.objects.update(paused=False, due_at=DjangoStorage().now())
    loop.poll()
    assert instance(started).status == "timed_out"


def test_rows_are_read_in_pieces_each_once_and_in_order() -> None:
    runs = [start("Tally", workflow_id=f"t-{number}").run_id for number in range(5)]
    assert [run.pk for run in iterate_pages(Instance.objects.all(), by="-id", size=2)] == runs[::-1]
    assert [run.pk for run in iterate_pages(Instance.objects.all(), by="id", size=5)] == runs


def test_what_waits_and_what_brings_it_on_is_read_however_long_the_inbox_is() -> None:
    storage = DjangoStorage()
    storage.inbox_page = 10
    started = start("Tally")
    for number in range(30):
        insert_message(
            started.chain_id, kind="update", name="add", body=number, request_id=f"u{number}", storage=storage
        )
    Message.objects.filter(request_id__in=[f"u{n}" for n in range(12, 25)]).update(after=0, fresh=False)

    inbox = storage.inbox([started.chain_id])[started.chain_id]

    assert [m.payload for m in inbox] == [*range(10), *range(12, 25)]
    assert inbox.has_more


def test_messages_that_were_parked_are_all_delivered(loop: WorkerLoop) -> None:
    """A blocked or paused run's messages ring no more; those that do not fit into the first turn come all the same."""
    loop.storage.inbox_page = 10
    busy = start("Ticking", {"spins": 0})
    send_ticks(busy, range(25))
    Message.objects.update(fresh=False)
    send(busy, "stop")
    polls_until(loop, lambda: not instance(busy).is_open, most=100)
    assert instance(busy).closing_value == {"result": [25, 25]}


@pytest.fixture
def long_run(loop: WorkerLoop) -> StartedRun:
    """A run with a history of 1,200 signals whose handlers take a while, in no cache any more."""
    started = start("Ticking", {"spins": spins(1)})
    send_ticks(started, range(1_200))
    polls_until(loop, lambda: not left(started))
    loop.engine.cache.clear()
    return started


@pytest.mark.usefixtures("collector_at_rest")
def test_a_long_history_is_rebuilt_in_slices_that_hold_no_lock(
    loop: WorkerLoop, long_run: StartedRun, request: pytest.FixtureRequest
) -> None:
    """The rebuild takes several times the deadlock timeout: each step of it is short."""
    request.getfixturevalue("unhurried")  # not before: the history is of many activations
    neighbour = start("Tally")
    send(long_run, "stop")
    with override_settings(TEMPORALEX={"DEADLOCK_TIMEOUT": 0.5}):
        fresh = WorkerLoop(inline=True)
    try:
        fresh.poll()
        assert fresh.engine.rebuild_count == 1
        assert instance(neighbour).status != "pending"
        send(neighbour, "stop")
        fresh.poll()
        fresh.poll()
        assert not instance(neighbour).is_open
        assert fresh.engine.rebuild_count == 1
        if connection.vendor == "postgresql":
            with transaction.atomic():
                assert Chain.objects.select_for_update(nowait=True).get(pk=long_run.chain_id)
        polls_until(fresh, lambda: not fresh.engine.rebuild_count)
        assert not fresh.storage.is_deferred(long_run.chain_id)  # at once: it was left alone long enough
        polls_until(fresh, lambda: not instance(long_run).is_open)
    finally:
        fresh.marker.close()
    assert instance(long_run).closing_value == {"result": [1_200, 1_200]}
    assert instance(long_run).blocked is None


def test_what_others_write_while_it_is_rebuilt_is_caught_up_with(loop: WorkerLoop, long_run: StartedRun) -> None:
    other = WorkerLoop(inline=True)
    try:
        send(long_run, "tick", 1_200)
        while not other.engine.rebuild():
            other.poll()
        polls_until(loop, lambda: not left(long_run))  # somebody else was quicker
        send(long_run, "stop")
        polls_until(other, lambda: not instance(long_run).is_open)
    finally:
        other.marker.close()
    assert instance(long_run).closing_value == {"result": [1_201, 1_201]}


def test_a_history_that_does_not_fit_blocks_after_the_rebuild(loop: WorkerLoop, long_run: StartedRun) -> None:
    event = HistoryEvent.objects.filter(run_id=long_run.run_id).last()
    assert event is not None
    HistoryEvent.objects.filter(run_id=long_run.run_id, seq=event.seq).update(
        kind="TimerStarted", attributes=b'{"seq": 77, "duration": 1.0, "due": "2026-01-01T00:00:00+00:00"}'
    )
    send(long_run, "stop")
    polls_until(loop, lambda: instance(long_run).blocked)
    assert instance(long_run).blocked["code"] == "nondeterminism"  # type: ignore[index] # just waited for
    assert loop.engine.rebuild_count == 0


def test_pages_end_at_activations(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a page, also below that of an activation."""
    started = start("Ticking", {"spins": 0})
    for numbers in (range(3), range(3, 10), range(10, 11)):
        send_ticks(started, numbers)
        polls_until(loop, lambda: not left(started))
    monkeypatch.setattr(policy, "LONG_HISTORY", 2)
    for page in (1, 2, 3, 5, 100):
        monkeypatch.setattr(policy, "HISTORY_PAGE", page)
        loop.engine.cache.clear()
        send(started, "tick", 10 + page)
        polls_until(loop, lambda: not left(started))
        assert instance(started).blocked is None
    connections.close_all()
