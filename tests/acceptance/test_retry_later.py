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
from tests.support.runs import flow, kinds, other

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

    return flow(run, name=f"test.Calling-{act.name}")


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
        *[("RetryLater", "The activity asked to be retried later.", None)] * 2,
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
    cls = calling(ask, retry=retry)
    handles = [env.start(cls) for _ in range(8)]
    env.advance(100)

    assert {h.result() for h in handles} == {"done"}
    pauses = [second - first for first, second in times.values()]
    assert all(50 <= pause <= 100 for pause in pauses)
    assert len(set(pauses)) > 1


def banking(env, *later):
    """Let the first calls of ``pay`` raise ``later``; return the key and the time of each attempt."""
    attempts = []

    def stand_in(key):
        attempts.append((key, (env.clock - begun).total_seconds()))
        if len(attempts) <= len(later):
            raise later[len(attempts) - 1]
        return key

    begun = env.clock
    env.mock(pay, stand_in)
    return attempts


@activity(name="test.pay", queue="bank")
def pay(key):
    return key


async def pay_for(self, key):
    return Ok(await pay.options(concurrency_key=key)(key))


Paying = flow(pay_for, name="test.PayingLater")


@pytest.mark.parametrize(
    ("hold", "times"),
    [
        (None, [("a", 0), ("a", 0), ("b", 0), ("a", 300)]),
        ("key", [("a", 0), ("b", 0), ("a", 300), ("a", 300)]),
        ("queue", [("a", 0), ("a", 300), ("a", 300), ("b", 300)]),
    ],
)
def test_a_hold_keeps_back_the_others_of_the_queue_or_of_the_key(env, hold, times):
    attempts = banking(env, RetryLater("busy", after=300, hold=hold))
    handles = [env.start(Paying, key) for key in ("a", "a", "b")]
    elsewhere = env.start(calling(ask))

    assert elsewhere.result() == 1
    env.advance(299)
    assert [time for time in sorted(times) if time[1] == 0] == sorted(attempts)
    env.advance(1)
    assert [h.status for h in handles] == ["completed"] * 3
    assert sorted(attempts) == sorted(times)


def test_a_hold_lasts_at_most_an_hour_and_the_retry_as_long_as_it_says(env):
    attempts = banking(env, RetryLater("busy", after=7200, hold="queue"))
    env.start(Paying, "a")
    env.start(Paying, "b")

    env.advance(7200)

    assert attempts == [("a", 0), ("b", 3600), ("a", 7200)]


def test_a_last_attempt_still_holds_others_back(env):
    attempts = banking(env, RetryLater("busy", after=60, hold="queue"))

    async def run(self, args):
        try:
            await pay.options(retry=RetryPolicy(max_attempts=1))("once")
        except errors.ActivityFailure as exc:
            return Ok(exc.type)

    h = env.start(flow(run, name="test.PaysOnce"))
    env.start(Paying, "b")
    env.advance(60)

    assert h.result() == "RetryLater"
    assert attempts == [("once", 0), ("b", 60)]


def test_nothing_is_held_without_a_key_and_by_atomic_activities(env):
    asking(env, ask, RetryLater(after=60, hold="key"))
    asking(env, ask_atomically, RetryLater(after=60, hold="queue"))
    env.start(calling(ask))
    env.start(calling(ask_atomically))
    env.mock(other, lambda value=None: "done")

    assert env.start(calling(other)).result() == "done"
