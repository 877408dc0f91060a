"""``TaskStorage``: scheduled activities, who has them, and whose word about them counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from temporalex_django.core.failures import AttemptFailure
from temporalex_django.engine.contracts.records import Retry, TaskResult, TaskState
from temporalex_django.engine.scheduling import Capacity
from tests.contract.places import NOW, QUEUES

if TYPE_CHECKING:
    from temporalex_django.authoring.backend import OpenActivity
    from tests.contract.places import Place


def done(task: TaskState, value: Any = 1) -> TaskResult:
    return TaskResult(task=task, outcome=("ActivityCompleted", {"seq": task.seq, "result": value}))


def again(place: Place, task: TaskState, seconds: float = 0, **options: Any) -> TaskResult:
    return TaskResult(task=task, retry_at=place.now + timedelta(seconds=seconds), **options)


@pytest.fixture
def chain(place: Place) -> UUID:
    return place.start()


def test_a_task_has_all_that_it_was_given(place: Place, chain: UUID) -> None:
    place.schedule(chain, 3, options={"retry": {"max_attempts": 3}, "start_to_close": 5.0})

    (task,) = place.take(owner=9)

    assert (task.chain_id, task.run_id, task.workflow_id, task.workflow) == (chain, place.runs(chain)[0], "w-1", "Cart")
    assert (task.seq, task.activity, list(task.args), dict(task.kwargs)) == (3, "contract.plain", [1], {"a": 2})
    assert task.options == {"retry": {"max_attempts": 3}, "start_to_close": 5.0}
    assert (task.queue, task.atomic, task.attempt, task.owner, task.crashes) == ("default", False, 1, 9, 0)
    assert (task.scheduled_at, task.due_at, task.started_at, task.beat_at) == (NOW, NOW, None, None)
    assert task.heartbeat_details is None


def test_nobody_else_gets_what_is_taken(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2)

    assert [t.seq for t in place.take(capacity=Capacity(threads=1))] == [1]
    assert [t.seq for t in place.take(owner=2)] == [2]
    assert place.take(owner=3) == []


def test_only_activities_of_the_named_queues(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    place.schedule(chain, 2, queue="slow")

    assert place.take("nobody's") == []
    assert [t.seq for t in place.take("slow")] == [2]
    assert [t.seq for t in place.take("default", "slow")] == [1]


def test_what_is_due_for_longest_comes_first(place: Place, chain: UUID) -> None:
    state = place.state(chain)
    later = {1: 3, 2: 1, 3: 2, 4: 100}
    place.write(
        chain,
        tasks=[place.task(state, seq, due_at=NOW + timedelta(seconds=s), attempt=0) for seq, s in later.items()],
    )
    assert place.take() == []
    place.advance(10)

    assert [t.seq for t in place.take(capacity=Capacity(threads=2))] == [2, 3]
    assert [t.seq for t in place.take()] == [1]


def test_a_task_that_was_tried_before_it_became_a_row(place: Place, chain: UUID) -> None:
    """An atomic one that failed in the very turn that scheduled it."""
    state = place.state(chain)
    place.write(chain, tasks=[place.task(state, 1, atomic=True, attempt=2, due_at=NOW + timedelta(seconds=5))])

    (task,) = place.storage.atomic_tasks(chain)

    assert (task.attempt, task.due_at) == (3, NOW + timedelta(seconds=5))


def test_room_is_what_begins_now(place: Place, chain: UUID) -> None:
    """What there is no room for stays, also where others behind it are taken."""
    state = place.state(chain)
    names = ["plain", "plain", "waiting", "plain", "waiting", "quick"]
    place.write(chain, tasks=[place.task(state, i, activity=f"contract.{name}") for i, name in enumerate(names, 1)])

    capacity = Capacity(threads=1, tasks=1, async_names=["contract.waiting"], prefetch={"contract.quick": 1})
    taken = {t.seq for t in place.take(capacity=capacity)}
    assert taken == {1, 3, 6}
    assert {t.seq for t in place.take(owner=2)} == {2, 4, 5}


def test_no_room_takes_nothing(place: Place, chain: UUID) -> None:
    place.schedule(chain)

    assert place.take(capacity=Capacity()) == []
    assert len(place.take()) == 1


def test_what_is_taken_is_a_copy(place: Place, chain: UUID) -> None:
    place.schedule(chain)
    (task,) = place.take()
    seen = TaskResult(task=task, retry_at=NOW)
    task.args = [99]
    assert place.storage.finish_tasks([seen]) == [task.id]

    (next_time,) = place.take()
    assert list(next_time.args) == [1]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_an_end_becomes_a_message_of_the_chain(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    place.quiet(chain)
    (task,) = place.take()
    assert place.claim() == []

    assert place.storage.finish_tasks([done(task, {"a": "ü"})]) == [task.id]

    assert place.claim() == [chain]
    (message,) = place.inbox(chain)
    assert (message.kind, message.name, message.run_id) == ("activity", "ActivityCompleted", place.runs(chain)[0])
    assert message.payload == {"seq": 1, "result": {"a": "ü"}}
    assert place.take() == []


def test_an_end_in_hand_is_told_by_whoever_has_it(place: Place, chain: UUID) -> None:
    """Fenced as any other; the run that it is of can be claimed by name, before all others."""
    place.schedule(chain, 1, 2)
    other = place.start("w-2")
    place.quiet(chain)
    one, two = place.take()

    with place.storage.transaction():
        valid, ended = place.storage.finish_undelivered(
            [done(one, {"a": "ü"}), again(place, two, 30), done(replace(one, attempt=2))]
        )
        (end,) = ended
        assert (set(valid), end.id, end.chain_id, end.run_id) == ({one.id, two.id}, one.id, chain, place.runs(chain)[0])
        assert (end.queue, end.kind, end.attributes) == (
            "default",
            "ActivityCompleted",
            {"seq": 1, "result": {"a": "ü"}},
        )
        assert place.storage.inbox([chain])[chain] == []
        claimed = place.storage.claim(limit=10, queues=QUEUES, first=[chain])
        assert {run.chain_id for run in claimed} == {chain, other}
        assert [run.chain_id for run in place.storage.claim(limit=10, queues=["nobody's"], first=[chain])] == []
        place.storage.defer([chain], seconds=60)
        assert [run.chain_id for run in place.storage.claim(limit=10, queues=QUEUES, first=[chain])] == [other]
        place.storage.defer([chain], seconds=0)
        place.storage.deliver(ended)

    assert chain in place.claim()
    assert [(message.kind, message.payload) for message in place.inbox(chain)] == [("activity", end.attributes)]
    assert place.storage.finish_tasks([done(one)]) == []


def test_an_end_counts_once(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (task,) = place.take()

    assert place.storage.finish_tasks([done(task)]) == [task.id]
    assert place.storage.finish_tasks([done(task)]) == []
    assert len(place.inbox(chain)) == 1


def test_another_attempt(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (task,) = place.take()
    place.storage.record_heartbeats({(task.id, 1, 1): {"at": 5}})

    assert place.storage.finish_tasks([again(place, task, 30)]) == [task.id]

    assert place.inbox(chain) == []
    assert place.take() == []
    place.advance(30)
    (second,) = place.take(owner=2)
    assert (second.id, second.attempt, second.owner) == (task.id, 2, 2)
    assert (second.started_at, second.beat_at, second.heartbeat_details) == (None, None, {"at": 5})


def test_an_attempt_that_does_not_count(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (task,) = place.take()
    assert place.storage.finish_tasks([again(place, task, count=False, waits_for="a key")]) == [task.id]

    (second,) = place.take()

    assert second.attempt == 1


def test_a_late_word_changes_nothing(place: Place, chain: UUID) -> None:
    """Of an attempt that is over, or of a worker that has lost it: no end, no other attempt, no heartbeat."""
    place.schedule(chain, 1)
    (first,) = place.take(owner=1)
    place.storage.finish_tasks([again(place, first)])
    (second,) = place.take(owner=2)

    assert place.storage.finish_tasks([done(first)]) == []
    assert place.storage.finish_tasks([again(place, first, 60)]) == []
    assert place.storage.record_heartbeats({(first.id, 1, 1): "late", (second.id, 2, 2): "now"}) == {(second.id, 2, 2)}
    assert place.inbox(chain) == []
    assert place.storage.finish_tasks([again(place, second)]) == [second.id]
    (third,) = place.take(owner=3)
    assert (third.attempt, third.heartbeat_details) == (3, "now")


@pytest.mark.parametrize("late_first", [True, False])
def test_a_late_word_beside_the_one_that_counts(place: Place, chain: UUID, *, late_first: bool) -> None:
    """A worker has taken the activity again whose first attempt it had lost, and both end at once."""
    place.schedule(chain, 1)
    (first,) = place.take(owner=1)
    place.storage.finish_tasks([again(place, first)])
    (second,) = place.take(owner=1)

    ends = [done(first, "late"), done(second, "counts")]
    assert place.storage.finish_tasks(ends if late_first else ends[::-1]) == [second.id]

    assert [message.payload["result"] for message in place.inbox(chain)] == ["counts"]
    assert place.storage.finish_tasks([done(second), done(second)]) == []


def test_the_same_attempt_of_another_owner(place: Place, chain: UUID) -> None:
    """It was given back uncounted, and somebody else has it."""
    place.schedule(chain, 1)
    (first,) = place.take(owner=1)
    place.storage.finish_tasks([again(place, first, count=False)])
    (second,) = place.take(owner=2)
    assert (first.attempt, second.attempt) == (1, 1)

    assert place.storage.finish_tasks([done(first)]) == []
    assert place.storage.record_heartbeats({(first.id, 1, 1): "late"}) == set()
    assert place.storage.finish_tasks([done(second)]) == [second.id]


def test_what_waits_for_another_attempt_is_nobodys(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (first,) = place.take()
    place.storage.finish_tasks([again(place, first, 60)])

    assert place.storage.finish_tasks([done(first)]) == []
    assert place.storage.record_heartbeats({(first.id, 1, 1): 1}) == set()


def test_a_cancelled_activity_is_gone(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2)
    (first, second) = place.take()
    place.write(chain, cancelled_tasks=[1])

    assert place.storage.record_heartbeats({(first.id, 1, 1): 1, (second.id, 1, 1): 2}) == {(second.id, 1, 1)}
    assert place.storage.finish_tasks([done(first), done(second)]) == [second.id]
    assert [m.payload["seq"] for m in place.inbox(chain)] == [2]


def test_many_ends_at_once(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2, 3)
    one, two, three = place.take()
    place.write(chain, cancelled_tasks=[3])

    assert set(place.storage.finish_tasks([done(one), again(place, two), done(three)])) == {one.id, two.id}
    assert place.storage.finish_tasks([]) == []
    assert [t.seq for t in place.take()] == [2]


def test_heartbeats_keep_the_last_details(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (task,) = place.take()
    key = (task.id, task.attempt, 1)

    assert place.storage.record_heartbeats({key: [1]}) == {key}
    assert place.storage.record_heartbeats({key: None}) == {key}  # alive, nothing to say
    assert place.storage.record_heartbeats({}) == set()
    assert place.storage.record_heartbeats({(task.id + 1, 1, 1): 1}) == set()

    place.storage.finish_tasks([again(place, task)])
    (second,) = place.take()
    assert second.heartbeat_details == [1]


def test_details_may_come_encoded(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (task,) = place.take()
    place.storage.record_heartbeats({(task.id, 1, 1): b'{"page":7}'})
    place.storage.finish_tasks([again(place, task)])

    assert place.take()[0].heartbeat_details == {"page": 7}


# -- timeouts ----------------------------------------------------------------------------------------------------------


def expired(place: Place, limit: int = 10) -> list[int]:
    return [t.seq for t in place.storage.expired_tasks(limit=limit)]


def test_nobody_begins_it(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, options={"schedule_to_start": 10})
    place.schedule(chain, 2, options={"schedule_to_close": 20})
    place.schedule(chain, 3)

    assert expired(place) == []
    place.advance(10)
    assert expired(place) == [1]
    place.advance(10)
    assert expired(place) == [1, 2]
    assert expired(place, limit=1) == [1]


def test_those_that_are_over_for_longest_come_first(place: Place, chain: UUID) -> None:
    for seq, seconds in ((1, 30), (2, 10), (3, 20)):
        place.schedule(chain, seq, options={"schedule_to_close": seconds})
    place.advance(60)

    assert expired(place) == [2, 3, 1]
    assert expired(place, limit=2) == [2, 3]


def test_another_attempt_is_not_one_that_never_began(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, options={"schedule_to_start": 10, "schedule_to_close": 50})
    (task,) = place.take()
    place.storage.finish_tasks([again(place, task)])

    place.advance(20)
    assert expired(place) == []
    place.advance(30)
    assert expired(place) == [1]


def test_what_was_given_back_may_begin_late_again(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, options={"schedule_to_start": 10})
    (task,) = place.take()
    place.advance(8)
    place.storage.finish_tasks([again(place, task, count=False)])

    place.advance(9)
    assert expired(place) == []
    place.advance(1)
    assert expired(place) == [1]


def test_an_expired_one_is_ended_like_any_other(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, options={"schedule_to_start": 10})
    place.advance(10)
    (task,) = place.storage.expired_tasks(limit=1)
    ended = TaskResult(task=task, outcome=("ActivityTimedOut", {"seq": 1}))

    assert place.storage.finish_tasks([ended]) == [task.id]
    assert expired(place) == []
    assert [m.name for m in place.inbox(chain)] == ["ActivityTimedOut"]


def test_atomic_ones_do_not_expire(place: Place, chain: UUID) -> None:
    """They run inside a turn of their own run: nobody but the turn can time them out."""
    place.schedule(chain, 1, atomic=True, options={"schedule_to_close": 10, "schedule_to_start": 5})
    place.advance(60)

    assert expired(place) == []


# -- atomic ones -------------------------------------------------------------------------------------------------------


def test_workers_take_no_atomic_ones(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, atomic=True)
    place.schedule(chain, 2)

    assert [t.seq for t in place.take()] == [2]
    assert [(t.seq, t.attempt, t.owner) for t in place.take(atomic=True)] == [(1, 1, 1)]


def test_a_turn_reads_the_atomic_ones_of_its_run(place: Place, chain: UUID) -> None:
    other = place.start("other")
    place.schedule(other, 1, atomic=True)
    place.schedule(chain, 2, atomic=True)
    place.schedule(chain, 1, atomic=True)
    place.schedule(chain, 3)

    assert [(t.seq, t.attempt, t.owner) for t in place.storage.atomic_tasks(chain)] == [(1, 1, None), (2, 1, None)]
    assert [t.attempt for t in place.storage.atomic_tasks(chain)] == [1, 1]  # nothing was written
    assert place.storage.atomic_tasks(place.storage.new_run_id()) == []


def test_an_atomic_one_that_is_tried_later(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2, atomic=True)
    due = NOW + timedelta(seconds=5)
    place.write(chain, cancelled_tasks=[2], retried_tasks={1: Retry(attempt=1, due_at=due)})

    (task,) = place.storage.atomic_tasks(chain)
    assert (task.seq, task.attempt, task.due_at) == (1, 2, due)


def test_atomic_ones_of_a_run_that_went_on_as_new_are_gone(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, atomic=True)
    place.write(
        chain,
        run={"activated_at": NOW},
        drop_tasks=True,
        next_run=place.successor(chain, place.storage.new_run_id(), seed=1),
    )

    assert place.storage.atomic_tasks(chain) == []


# -- how open ones stand -----------------------------------------------------------------------------------------------


def failure(place: Place, task: TaskState, message: str = "refused") -> AttemptFailure:
    return AttemptFailure(
        type="ConnectionError", message=message, at=place.now, attempt=task.attempt, traceback="shop.py:1"
    )


def open_ones(place: Place, chain: UUID, limit: int = 10) -> list[OpenActivity]:
    return place.storage.open_activities(place.runs(chain)[0], limit=limit)


def test_open_ones_in_their_order(place: Place, chain: UUID) -> None:
    place.schedule(chain, 2, 1, 3, options={"retry": {"max_attempts": 5}, "heartbeat": 9.0})
    place.take(owner=7, capacity=Capacity(threads=1))

    found = open_ones(place, chain)

    assert [(one.seq, one.activity, one.queue, one.max_attempts) for one in found] == [
        (seq, "contract.plain", "default", 5) for seq in (1, 2, 3)
    ]
    assert sorted((one.state, one.attempt, one.owner) for one in found) == [
        ("queued", 0, None),
        ("queued", 0, None),
        ("running", 1, 7),
    ]
    assert [(one.heartbeat_timeout, one.last_failure, one.next_try) for one in found] == [(9.0, None, None)] * 3
    assert [one.seq for one in open_ones(place, chain, limit=2)] == [1, 2]
    assert place.storage.open_activities(place.storage.new_run_id(), limit=9) == []


def test_the_last_failure_is_kept(place: Place, chain: UUID) -> None:
    """With when the first one was; while the next attempt runs, and when that is given back."""
    place.schedule(chain, 1)
    (first,) = place.take()
    place.storage.finish_tasks([again(place, first, 30, failure=failure(place, first, "first"))])
    place.advance(30)
    (second,) = place.take()
    why = failure(place, second, "second")
    place.storage.finish_tasks([again(place, second, 60, failure=why)])

    (one,) = open_ones(place, chain)
    assert (one.state, one.attempt) == ("retrying", 2)
    assert one.next_try == one.due_at == place.now + timedelta(seconds=60)
    assert one.last_failure == replace(why, since=NOW)

    place.advance(60)
    (third,) = place.take()
    (one,) = open_ones(place, chain)
    assert (one.state, one.attempt, one.next_try) == ("running", 3, None)
    assert one.last_failure == replace(why, since=NOW)
    place.storage.finish_tasks([again(place, third, count=False)])
    (one,) = open_ones(place, chain)
    assert (one.state, one.last_failure) == ("retrying", replace(why, since=NOW))


def test_a_late_failure_is_not_kept(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1)
    (first,) = place.take(owner=1)
    place.storage.finish_tasks([again(place, first)])
    place.take(owner=2)

    place.storage.finish_tasks([again(place, first, failure=failure(place, first))])

    assert open_ones(place, chain)[0].last_failure is None


def test_the_failure_of_an_atomic_one(place: Place, chain: UUID) -> None:
    """Of one that was a row, and of one that becomes one after its first attempt; the end takes it along."""
    state = place.state(chain)
    why = AttemptFailure(type="E", message="no", at=NOW, attempt=1)
    due = NOW + timedelta(seconds=5)
    place.write(chain, tasks=[place.task(state, 1, atomic=True, attempt=1, due_at=due, failure=why)])
    assert open_ones(place, chain)[0].last_failure == replace(why, since=NOW)

    later = replace(why, at=due, attempt=2)
    place.write(chain, retried_tasks={1: Retry(attempt=2, due_at=due, failure=later)})
    (one,) = open_ones(place, chain)
    assert (one.attempt, one.last_failure) == (2, replace(later, since=NOW))

    place.write(chain, cancelled_tasks=[1])
    assert open_ones(place, chain) == []


def test_one_activity_is_read_by_its_number_whoever_has_it(place: Place, chain: UUID) -> None:
    place.schedule(chain, 3)
    (run,) = place.runs(chain)
    waiting = place.storage.find_task(run, 3)
    (taken,) = place.take(owner=9)
    running = place.storage.find_task(run, 3)

    assert (waiting.fence, list(waiting.args), dict(waiting.kwargs)) == ((taken.id, 0, None), [1], {"a": 2})
    assert running.fence == taken.fence == (taken.id, 1, 9)
    assert place.storage.find_task(run, 4) is None

    place.schedule(chain, 2, atomic=True)
    assert [(task.seq, task.attempt) for task in place.storage.tasks_of_run(run)] == [(2, 1), (3, 1)]
    assert place.storage.tasks_of_run(run) == [place.storage.find_task(run, seq) for seq in (2, 3)]
    assert place.storage.tasks_of_run(place.storage.new_run_id()) == []


def test_whoever_read_one_ends_it_unless_its_worker_was_quicker(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2)
    (run,) = place.runs(chain)
    place.take(owner=9)
    one, two = (place.storage.find_task(run, seq) for seq in (1, 2))

    assert place.storage.finish_tasks([done(one, "by hand")]) == [one.id]
    assert place.storage.finish_tasks([done(one, "late")]) == []
    assert place.storage.finish_tasks([again(place, two)]) == [two.id]
    assert place.storage.finish_tasks([done(two, "too late")]) == []
    assert [message.payload["result"] for message in place.inbox(chain)] == ["by hand"]


def test_an_atomic_one_that_nobody_has_is_ended_by_whoever_read_it(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, atomic=True)
    task = place.storage.find_task(place.runs(chain)[0], 1)

    assert task.attempt == 1
    assert place.storage.finish_tasks([done(task)]) == [task.id]


def test_the_input_of_an_activity_is_changed_while_nobody_has_it(place: Place, chain: UUID) -> None:
    place.schedule(chain, 1, 2)
    (run,) = place.runs(chain)
    first = place.storage.find_task(run, 1)
    place.storage.edit_task(replace(first, args=[7], kwargs={}, options={"key": "new"}))
    taken = {task.seq: task for task in place.take(owner=9)}
    place.storage.edit_task(replace(taken[2], args=[8]))

    assert (list(taken[1].args), dict(taken[1].kwargs), taken[1].options) == ([7], {}, {"key": "new"})
    assert list(place.storage.find_task(run, 2).args) == [1]


def test_a_chain_is_held_whatever_state_it_is_in(place: Place, chain: UUID) -> None:
    place.write(chain, run={"due_at": place.now + timedelta(hours=1), "crashes": 3})

    with place.storage.transaction():
        run = place.storage.lock_run(chain, wait=0.1)
        assert (run.chain_id, run.crashes) == (chain, 3)
        assert place.storage.lock_run(UUID(int=5), wait=0.1) is None
