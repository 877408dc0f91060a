"""Deadlines: a wait ends at an instant, also at one that has passed while nothing ran."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from temporalex_django import Done, NoReply, Ok, Stop, TimedOut, WaitForEvent, api, errors
from temporalex_django.graph.steps import Approval
from tests.acceptance.graphs import graph
from tests.support.runs import flow, work

DAY = timedelta(days=1)
ADD = {"add": lambda n, state: NoReply(state + n), "stop": lambda _, state: Stop(state)}


def after_a_day(wait):
    """Code that works for a while, and then waits up to a deadline that it has computed before."""

    async def run(self, args):
        deadline = api.now() + DAY
        await api.sleep(timedelta(hours=1))
        return Ok(await wait(deadline))

    return flow(run)


@pytest.mark.parametrize("form", ["until", "timeout"])
def test_a_phase_ends_at_its_deadline_and_takes_what_is_there_when_it_has_passed(env, form):
    async def wait(deadline):
        options = {"until": deadline} if form == "until" else {"timeout": deadline - api.now()}
        state = await api.phase(0, signal=ADD, **options)
        return [isinstance(state, TimedOut), state.state if isinstance(state, TimedOut) else state]

    early, late = (env.start(after_a_day(wait)) for _ in range(2))
    env.advance(hours=2)
    early.signal("add", 1)
    early.signal("stop")
    env.advance(DAY)
    assert (early.result(), late.result()) == ([False, 1], [True, 0])

    missed, stopped = (env.start(after_a_day(wait)) for _ in range(2))
    missed.signal("add", 2)
    for name in ("add", "stop"):
        stopped.signal(name, 3)
    env.outage(days=3)
    assert (missed.result(), stopped.result()) == ([True, 2], [False, 3])


@pytest.mark.parametrize("form", ["until", "timeout"])
def test_a_condition_is_decided_by_its_predicate_when_the_deadline_has_passed(env, form):
    async def wait(deadline):
        options = {"until": deadline} if form == "until" else {"timeout": deadline - api.now()}
        return [await api.wait_condition(lambda: True, **options), await api.wait_condition(lambda: False, **options)]

    run = env.start(after_a_day(wait))
    env.outage(days=3)
    assert run.result() == [True, False]


@pytest.mark.parametrize("due", [lambda at: at, lambda at: at - api.now(), lambda at: 0])
def test_an_approval_is_overdue_at_once_when_its_due_date_has_passed(env, due):
    async def wait(deadline):
        return (await api.approval("Pay?", users=["ann"], due=due(deadline))).outcome

    run = env.start(after_a_day(wait))
    env.outage(days=3)
    assert run.result() == "overdue"


def test_a_late_timer_does_not_make_the_next_one_late(env):
    """Nothing ran for three days: the days that were missed are not waited for once more."""

    async def run(self, args):
        begin = api.now()
        for day in (1, 2, 3, 4):
            await api.sleep_until(begin + day * DAY)
            await work(day)
        return Ok((api.now() - begin) / DAY)

    handle = env.start(flow(run))
    env.outage(days=3, hours=12)
    assert handle.status == "waiting"
    env.advance(DAY / 2)
    assert handle.result() == 4


@pytest.mark.parametrize("passed", [False, True])
def test_a_step_waits_until_an_instant(env, passed):
    until = env.now() + (-DAY if passed else DAY)
    parcel = WaitForEvent("came", until=until, key="parcel")
    handle = env.start(
        graph(parcel, {(parcel, "came"): Done, (parcel, "timeout"): Done}, name="Awaited"), {}, value="1"
    )
    assert handle.status == ("completed" if passed else "waiting")
    env.advance(DAY)
    assert handle.status == "completed"


@pytest.mark.parametrize("due", [DAY, "instant", -5, -DAY])
def test_a_step_is_decided_by_a_deadline(env, due):
    """A negative duration has passed, as in ``api.approval``."""
    ask = Approval(users=("ann",), due=env.now() + DAY if due == "instant" else due, key="ask")
    handle = env.start(
        graph(ask, {(ask, "approved"): Done, (ask, "rejected"): Done, (ask, "overdue"): Done}, name="Asked"),
        {},
        value="1",
    )
    assert handle.status == ("waiting" if due in (DAY, "instant") else "completed")
    env.outage(days=2)
    assert handle.status == "completed"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: api.phase(0, signal=ADD, timeout=1, until=api.now()), errors.WorkflowDefinitionError, "not both"),
        (lambda: api.wait_condition(lambda: True, 1, until=api.now()), errors.WorkflowDefinitionError, "not both"),
        (lambda: api.phase(0, signal=ADD, until=datetime(2026, 1, 1)), ValueError, "time zone"),  # noqa: DTZ001
        (lambda: api.wait_condition(lambda: True, until=5), TypeError, "until must be a datetime"),
        (lambda: api.approval("Pay?", users=["a"], due=datetime(2026, 1, 1)), ValueError, "time zone"),  # noqa: DTZ001
        (lambda: api.sleep(-1), ValueError, "sleep_until.*max"),
    ],
)
def test_a_deadline_that_is_none_is_refused(env, call, error, words):
    async def wait(_):
        with pytest.raises(error, match=words):
            await call()
        return True

    run = env.start(after_a_day(wait))
    env.advance(hours=1)
    assert run.result() is True


def test_a_step_has_one_deadline():
    with pytest.raises(errors.WorkflowDefinitionError, match="not both"):
        WaitForEvent("came", timeout=1, until=datetime.fromisoformat("2030-01-01T00:00:00+00:00"))
    with pytest.raises(errors.WorkflowDefinitionError, match="time zone"):
        WaitForEvent("came", until=datetime(2030, 1, 1))  # noqa: DTZ001


def test_the_units_of_an_outage_are_added_up(env):
    before = env.now()
    env.outage(DAY, days=2, hours=3, minutes=4, seconds=5)
    assert env.now() - before == timedelta(days=3, hours=3, minutes=4, seconds=5)
    with pytest.raises(ValueError, match="outage must not be negative"):
        env.outage(-1)
