"""Limits: a rate holds in every period, room is what is not under way, queues come first by their weight."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temporalex_django import activity
from temporalex_django.core import names
from temporalex_django.core.limits import Limits, QueuePartition, Rate, interleave, queue_errors
from temporalex_django.engine.scheduling import Capacity, LimitUsage, NewestAndOldest, QueueRotation
from temporalex_django.errors import WorkflowDefinitionError

WRONG = [
    ([], "a dict of queues"),
    ({"a": 3}, "['a'] must be a dict with some of concurrency"),
    ({"": {}}, "names a queue ''"),
    ({"pay\n": {}}, "printable characters"),
    ({"a": {"concurency": 3}}, "has no 'concurency'"),
    ({"a": {"concurrency": 0}}, "['a']: concurrency must be a whole number above 0, not 0"),
    ({"a": {"concurrency": True}}, "concurrency must be"),
    ({"a": {"weight": 1.5}}, "weight must be"),
    ({"a": {"concurrency_per_key": None}}, "concurrency_per_key must be"),
    ({"a": {"rate": "fast"}}, "rate must be like '10/s'"),
    ({"a": {"rate": "0/s"}}, "rate must be"),
    ({"a": {"rate": 10}}, "rate must be"),
]


@pytest.mark.parametrize(("queues", "says"), WRONG)
def test_wrong_limits_are_named(queues: Any, says: str) -> None:
    (problem,) = queue_errors(queues)

    assert says in problem


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency must be"),
        ({"rate": "1"}, "rate must be"),
        ({"concurrency_key": ""}, "concurrency_key must be"),
        ({"concurrency_key": "a\nb"}, "concurrency_key must be"),
        ({"concurrency": 1, "local": True}, "a local activity does not wait in a queue"),
        ({"concurrency_key": "a", "atomic": True}, "an atomic activity runs in the turn"),
    ],
)
def test_what_an_activity_cannot_have_is_refused_where_it_is_defined(options: Any, says: str) -> None:
    with pytest.raises(WorkflowDefinitionError, match=says):
        activity(**options)(lambda: None)


def test_limits_belong_to_the_definition_and_keys_to_calls() -> None:
    @activity(name="limits.one", concurrency=2)
    def one() -> None: ...

    assert one.options(concurrency_key="red").options_set.as_dict() == {"concurrency_key": "red"}
    with pytest.raises(
        WorkflowDefinitionError, match="you cannot change concurrency for one call: set it in the definition"
    ):
        one.options(concurrency=3)  # type: ignore[call-arg]


@given(st.integers(1, 20), st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_a_rate_holds_in_every_period_wherever_it_begins(count: int, pauses: list[float]) -> None:
    rate, starts, begun, now = Rate(count, 1.0), [], [], 1000.0
    for pause in pauses:
        now += pause
        number = rate.remaining(starts, now)
        starts = rate.with_starts(starts, now, number)
        begun += [now] * number
        assert rate.remaining(starts, now) == 0
        assert rate.remaining(starts, now + rate.wait_seconds(starts, now) + 1e-6) > 0
    assert len(starts) <= 22
    for at in begun:
        assert sum(at - 1.0 < other <= at for other in begun) <= count


def test_slots_are_what_is_not_under_way() -> None:
    red = QueuePartition(None, "red").name
    live = [("q", "a", None, 1), ("q", "b", red, 1), ("other", "b", None, 5)]
    limits = Limits(concurrency=4, concurrency_per_key=2, rate=Rate(9, 1.0))
    room = LimitUsage("q", limits, {"b": Limits(concurrency=7)}, live, {"queue:q": [(0.0, 4)]}, 0.0)
    taken = []
    for name, key in [("b", "red"), ("b", "red"), ("b", None), ("a", "blue"), ("a", None)]:
        if room.wait_seconds(name, key) is None:
            room.acquire(name, key)
            taken.append((name, key))
    # red has two then, seven of b are under way then, and four in the queue
    assert taken == [("b", "red"), ("a", "blue")]
    assert not room.is_rate_limited("a")
    assert LimitUsage("q", limits, {}, [], {"queue:q": [(0.0, 9)]}, 0.5).is_rate_limited("a")


def test_what_was_renamed_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.ACTIVITIES, "b.old", "b.new")
    live = [("q", "b.new", QueuePartition("b.new", None).name, 2)]
    room = LimitUsage("q", Limits(), {"b.old": Limits(concurrency=3)}, live, {}, 0.0)
    assert room.wait_seconds("b.old", None) is None
    room.acquire("b.old", None)
    assert room.wait_seconds("b.old", None) is not None


def test_a_clock_that_is_put_back_holds_up_nobody_for_more_than_two_periods() -> None:
    rate = Rate(3, 60.0)
    starts = rate.with_starts([], 10_000.0, 3)
    assert rate.remaining(starts, 10_000.0 - 3600) == 3
    assert rate.remaining(starts, 10_000.0 - 30) == 0
    assert rate.remaining(starts, 10_000.0 - 30 + rate.wait_seconds(starts, 10_000.0 - 30)) == 3
    assert rate.wait_seconds(starts, 10_000.0 - 30) < 2 * 60


def test_what_has_not_begun_after_all_leaves_the_count_last_in_first_out() -> None:
    rate = Rate(9, 60.0)
    starts = rate.with_starts(rate.with_starts([], 1000.0, 4), 1010.0, 3)
    assert [count for _, count in starts] == [4, 3]
    assert [count for _, count in rate.without_starts(starts, 2)] == [4, 1]
    assert [count for _, count in rate.without_starts(starts, 5)] == [2]
    assert rate.without_starts(starts, 99) == []


def test_lines_are_known_by_their_names() -> None:
    for line in (
        QueuePartition(None, "a:b"),
        QueuePartition("shop.charge", None),
        QueuePartition("shop.charge", "k:1"),
    ):
        assert line.name is not None
        assert QueuePartition.from_name(line.name) == line
    assert QueuePartition(None, None).name is None
    assert interleave([[1, 2, 3], [], [4]]) == [1, 4, 2, 3]


def test_queues_come_first_as_often_as_they_weigh() -> None:
    rotation, weights = QueueRotation(), {"a": 3, "b": 1, "c": 1}
    firsts = [rotation.order([*weights], weights.__getitem__)[0] for _ in range(50)]

    assert {name: firsts.count(name) for name in weights} == {"a": 30, "b": 10, "c": 10}
    assert all({"b", "c"} <= {*firsts[i : i + 5]} for i in range(45))


def test_where_many_wait_a_quarter_of_each_claim_are_the_newest() -> None:
    backlog = NewestAndOldest()
    assert (backlog.newest_count(8), backlog.starts_with_newest()) == (0, False)
    backlog.record_claim(8, 8)
    assert [backlog.newest_count(8) for _ in range(2)] == [2, 2]
    assert [backlog.newest_count(1, "threads") for _ in range(8)] == [0, 0, 0, 1] * 2
    assert sum(backlog.newest_count(5, "tasks") for _ in range(4)) == 5
    assert [backlog.starts_with_newest() for _ in range(4)] == [True, False, True, False]
    backlog.record_claim(7, 8)
    assert (backlog.newest_count(8), backlog.starts_with_newest()) == (0, False)


def test_some_room_ahead_is_for_what_a_turn_makes_itself() -> None:
    capacity = Capacity(threads=2, prefetch={"quick": 40}, measured_names={"quick"})
    kept = capacity.reserve()
    waiting = sum(capacity.acquire("quick") for _ in range(100))
    assert (waiting, kept) == (2 + 38, 2)
    assert capacity.prefetch_limit is not None
    capacity.prefetch_limit += kept
    assert sum(capacity.acquire("quick") for _ in range(100)) == kept
