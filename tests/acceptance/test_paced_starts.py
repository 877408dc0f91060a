"""Starts that follow each other too fast: the last input counts, or a run begins later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import Ok, Unique, Workflow, api, errors
from tests.support.people import person
from tests.support.runs import flow

SHORT = timedelta(seconds=10)
START = "temporalex_django.start_instance"


class PacedIndex(Workflow):
    async def run(self, args: Any) -> Any:
        await api.sleep(1)
        return Ok(args)


class PacedNone(Workflow):
    unique = Unique("paced", scope="none")

    async def run(self, args: Any) -> Any:
        return Ok(args)


def test_the_last_input_counts_and_the_time_begins_anew(env: Any) -> None:
    first = env.start(PacedIndex, 1, id="i", debounce=SHORT)
    env.advance(9)
    second = env.start(PacedIndex, 2, id="i", debounce=SHORT)
    env.advance(9)
    third = env.start(PacedIndex, 3, id="i", debounce=SHORT)

    assert [h.start_outcome for h in (first, second, third)] == ["started", "debounced", "debounced"]
    assert first.run_id == second.run_id == third.run_id
    assert (first.status, first.describe().starts_at) == ("pending", env.clock + SHORT)
    env.advance(9)
    assert first.status == "pending"
    env.advance(2)
    assert first.result() == 3


def test_a_run_that_has_begun_keeps_its_input(env: Any) -> None:
    first = env.start(PacedIndex, 1, id="i", debounce=SHORT)
    env.advance(SHORT)
    with pytest.raises(errors.AlreadyRunning):
        env.start(PacedIndex, 2, id="i", debounce=SHORT)
    used = env.start(PacedIndex, 2, id="i", debounce=SHORT, on_conflict="use_existing")
    assert used.start_outcome == "existing"
    env.advance(1)
    assert first.result() == 1
    again = env.start(PacedIndex, 2, id="i", debounce=SHORT)
    assert (again.start_outcome, again.status) == ("started", "pending")


def test_signals_that_waited_stay(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok([args, await api.wait_for_signal("note")])

    cls = flow(run)
    h = env.start(cls, 1, id="i", debounce=SHORT)
    h.signal("note", "kept")
    env.start(cls, 2, id="i", debounce=SHORT)
    env.advance(SHORT)
    assert h.result() == [2, "kept"]


def test_a_pause_outlives_a_debounced_start(env: Any) -> None:
    h = env.start(PacedIndex, 1, id="i", debounce=SHORT)
    h.pause()
    env.start(PacedIndex, 2, id="i", debounce=SHORT)
    env.advance(60)
    assert h.status == "pending"
    h.unpause()
    env.advance(1)
    assert h.result() == 2


def test_not_more_begin_in_a_period(env: Any) -> None:
    begin = env.clock
    handles = [env.start(PacedIndex, n, throttle=(2, 60)) for n in range(5)]
    times = [h.describe().starts_at for h in handles]
    assert times == [None, None, *[begin + timedelta(seconds=60)] * 2, begin + timedelta(seconds=120)]
    assert [h.status for h in handles] == ["waiting"] * 2 + ["pending"] * 3
    env.advance(150)
    assert [h.result() for h in handles] == [*range(5)]


def test_keys_have_limits_of_their_own(env: Any) -> None:
    statuses = [env.start(PacedIndex, throttle=(1, 60, key)).status for key in ("a", "b", "a")]
    assert statuses == ["waiting", "waiting", "pending"]


def test_a_start_that_fails_does_not_count(env: Any) -> None:
    env.start(PacedIndex, id="taken")
    with pytest.raises(errors.AlreadyRunning):
        env.start(PacedIndex, id="taken", throttle=(1, 60))
    assert env.start(PacedIndex, throttle=(1, 60)).status == "waiting"


def test_everybody_who_replaced_the_input_started_the_run(env: Any) -> None:
    async def run(self: Any, args: Any) -> Any:
        return Ok((await api.approval("Pay?", users=["ann", "bob", "cid"], four_eyes=True)).outcome)

    people = {name: person(env, name, START) for name in ("ann", "bob", "cid")}
    cls = flow(run)
    for name in ("ann", "bob"):
        h = env.start(cls, id="i", debounce=SHORT, by=people[name])
    env.advance(SHORT)
    for name in ("ann", "bob"):
        with pytest.raises(errors.FourEyes, match="started"):
            h.decide("approved", by=people[name])
    h.decide("approved", by=people["cid"])
    assert h.result() == "approved"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"debounce": 5}, "debounce needs an id"),
        ({"id": "x", "debounce": 0}, "debounce must be longer than 0 seconds"),
        ({"id": "x", "debounce": "5"}, "debounce must be a timedelta or a number of seconds"),
        ({"id": "x", "debounce": 5, "start_delay": 5}, "only one of debounce, start_delay"),
        ({"throttle": (1, 5), "id": "x", "debounce": 5}, "only one of debounce, throttle"),
        ({"throttle": 5}, r"throttle must be \(count, period\)"),
        ({"throttle": (0, 5)}, "count of throttle must be a whole number from 1 to 1000"),
        ({"throttle": (1, -5)}, "period of throttle must not be negative"),
        ({"throttle": (1, 5, "")}, "key of throttle must be a string"),
    ],
)
def test_bad_options_are_refused(env: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidStart, match=text):
        env.start(PacedIndex, **options)
    with pytest.raises(errors.InvalidStart, match="debounce needs an id"):
        env.start(PacedNone, value="1", debounce=5)
