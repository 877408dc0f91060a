"""Activities that say when they are to be tried again, and what they know of the attempt before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from temporalex_django import (
    Done,
    Event,
    Ok,
    RetryLater,
    RetryPolicy,
    Step,
    activity,
    activity_context,
    errors,
)
from tests.acceptance.graphs import graph
from tests.support.runs import flow, kinds

POLICY = RetryPolicy(max_attempts=3, initial_interval=10, max_interval=10)


@activity(retry=POLICY)
def ask(value=None):
    return value


@activity(atomic=True, retry=POLICY)
def ask_atomically(value=None):
    return value


def asking(env, act, *later):
    """Let the first attempts of ``act`` raise ``later``; return what each attempt saw."""
    attempts = []

    def stand_in(value=None):
        context = activity_context()
        previous = context.previous_failure
        attempts.append((context.attempt, env.clock, previous and (previous.type, previous.message, previous.details)))
        if len(attempts) <= len(later):
            raise later[len(attempts) - 1]
        return "done"

    env.mock(act, stand_in)
    return attempts


def calling(act, **options):
    async def run(self, args):
        try:
            return Ok(await (act.options(**options) if options else act)(1))
        except errors.ActivityFailure as exc:
            return Ok([exc.type, exc.cause, exc.attempts, exc.details])

    return flow(run)


@pytest.mark.parametrize("act", [ask, ask_atomically], ids=["external", "atomic"])
def test_the_next_attempt_begins_when_the_activity_says(env, act):
    """It beats the pause of the policy and its maximum. Attempts that do not count keep their number."""
    begun = env.clock
    attempts = asking(
        *(env, act),
        RetryLater("the bank is busy", after=3600, details={"code": 429}),
        RetryLater("closed", after=begun + timedelta(hours=3), counts=False, type="Closed"),
        RetryLater(after=-1, counts=False),
        RetryLater(counts=False),
    )
    h = env.start(calling(act))
    (one,) = h.describe().activities
    assert (one.state, one.attempt, one.next_try) == ("retrying", 1, begun + timedelta(hours=1))
    failure = one.last_failure
    assert (failure.message, failure.details, failure.retry_later) == ("the bank is busy", {"code": 429}, True)

    env.advance(4 * 3600)

    assert h.result() == "done"
    assert [(number, (at - begun).total_seconds()) for number, at, _ in attempts] == [
        *((1, 0), (2, 3600), (2, 10_800), (2, 10_800), (2, 10_810)),
    ]
    assert [previous for _, _, previous in attempts] == [
        None,
        ("RetryLater", "the bank is busy", {"code": 429}),
        ("Closed", "closed", None),
        *[("RetryLater", "The activity asked to be tried again later.", None)] * 2,
    ]
    assert [kind for kind in kinds(h) if kind.startswith("Activity")][-1] == "ActivityCompleted"


def test_without_attempts_it_is_the_failure_of_the_activity(env):
    attempts = asking(env, ask, *[RetryLater("busy", after=60, details=[number]) for number in range(9)])
    h = env.start(calling(ask))

    env.advance(300)

    assert h.result() == ["RetryLater", "busy", 3, [2]]
    assert len(attempts) == 3


def test_no_attempt_begins_after_schedule_to_close(env):
    attempts = asking(env, ask, RetryLater("busy", after=40, counts=False), RetryLater("busy", after=40, counts=False))

    h = env.start(calling(ask, schedule_to_close=60))
    env.advance(40)

    assert h.result() == ["RetryLater", "busy", 1, None]
    assert len(attempts) == 2


def test_async_activities_and_steps_of_graphs_can_ask(env):
    begun = []

    @activity(name="test.asks_async")
    async def asks_async():
        begun.append(activity_context().previous_failure)
        if len(begun) == 1:
            raise RetryLater("not yet", after=timedelta(minutes=7))
        return len(begun)

    class Asks(Step):
        events = ("ok",)
        retry = RetryPolicy(max_attempts=1)

        def execute(self, instance, config, context):
            begun.append(activity_context().previous_failure)
            if activity_context().previous_failure is None:
                raise RetryLater("not yet", after=timedelta(minutes=7), counts=False)
            return Event("ok", activity_context().attempt)

    async def run(self, args):
        return Ok(await asks_async())

    h = env.start(flow(run))
    env.advance(7 * 60)
    assert h.result() == 2
    begun.clear()
    h = env.start(graph(Asks, {(Asks, "ok"): Done}), {}, value="1")
    env.advance(7 * 60 - 1)
    assert h.status == "running"
    env.advance(1)
    assert h.status == "completed"
    assert [previous and previous.message for previous in begun] == [None, "not yet"]


def test_a_failed_attempt_and_a_timeout_are_previous_failures(env):
    seen = []

    def stand_in(value=None):
        seen.append(activity_context().previous_failure)
        if len(seen) == 1:
            raise errors.ApplicationError("no stock", type="OutOfStock", details={"sku": "cup"})
        return len(seen)

    env.mock(ask, stand_in)
    h = env.start(calling(ask))
    env.crash_at("after_activity")
    env.advance(60)

    assert h.result() == 3
    assert seen[0] is None
    assert (seen[1].type, seen[1].message, seen[1].details) == ("OutOfStock", "no stock", {"sku": "cup"})
    assert (seen[2].type, seen[2].details) == ("WorkerLost", None)


def test_jitter_spreads_the_attempts_of_activities_that_failed_together(env):
    times = {}

    def stand_in(value=None):
        key = activity_context().idempotency_key
        times.setdefault(key, []).append(env.clock.timestamp())
        if len(times[key]) == 1:
            raise ConnectionError("down")
        return "done"

    env.mock(ask, stand_in)
    retry = RetryPolicy(initial_interval=100, jitter=0.5)
    handles = [env.start(calling(ask, retry=retry)) for _ in range(8)]
    env.advance(100)

    assert {h.result() for h in handles} == {"done"}
    pauses = [second - first for first, second in times.values()]
    assert all(50 <= pause <= 100 for pause in pauses)
    assert len(set(pauses)) > 1
