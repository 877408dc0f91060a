"""Which signals a race, or a wait that is given up, takes: what it returns, and nothing else."""

from __future__ import annotations

from functools import partial

import pytest

from temporalex_django import NoReply, Ok, Stop, api, errors
from tests.support.runs import events, flow, work


async def received(name):
    return [await api.wait_for_signal(name)]


#: Ways to wait for a signal in a branch.
WAYS = {
    "call": lambda name: api.wait_for_signal(name),
    "partial": lambda name: partial(api.wait_for_signal, name),
    "function": lambda name: lambda: api.wait_for_signal(name),
    "coroutine": received,
    "async function": lambda name: partial(received, name),
    "race in a race": lambda name: lambda: api.race(api.wait_for_signal(name), api.sleep(60)),
    "parallel in a race": lambda name: lambda: api.parallel([api.wait_for_signal(name), lambda: 1]),
}


async def rest():
    """What is still in the mailbox, in order."""
    return await api.phase([], signal={n: partial(_keep, n) for n in "abc"} | {"end": lambda _, s: Stop(s)})


def _keep(name, payload, state):
    return NoReply([*state, [name, payload]])


@pytest.mark.parametrize("way", WAYS)
def test_the_loser_of_a_race_leaves_its_signal_where_it_was(env, way):
    """ST-067: buffered before the race, which takes one of them; the other one keeps its place."""

    async def run(self, args):
        await work()
        await api.race(WAYS[way]("a"), WAYS[way]("b"))
        return Ok(await rest())

    env.hold(work)
    h = env.start(flow(run))
    for name, payload in (("b", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 5)):
        h.signal(name, payload)
    env.complete(work)
    h.signal("end")
    assert h.result() == [["b", 1], ["b", 3], ["a", 4], ["c", 5]]


def test_what_a_loser_leaves_goes_to_who_waits_for_it(env):
    async def run(self, args):
        await work()
        race = partial(api.race, api.wait_for_signal("a"), api.wait_for_signal("b"))
        return Ok(await api.parallel([race, partial(api.wait_for_signal, "b")]))

    env.hold(work)
    h = env.start(flow(run))
    h.signal("a", 1)
    h.signal("b", 2)
    env.complete(work)
    assert h.result() == [[0, 1], 2]


@pytest.mark.parametrize("first", ["signal", "timer"])
def test_a_wait_under_a_timeout(env, first):
    """A timeout that comes first leaves the signal, in one activation as well."""

    async def run(self, args):
        won = await api.race(api.sleep(10), received("a"))
        return Ok([won, await rest()])

    h = env.start(flow(run))
    with env.batch():
        if first == "timer":
            env.advance(10)
        h.signal("a", 1)
        h.signal("a", 2)
    h.signal("end")
    assert h.result() == ([[0, None], [["a", 1], ["a", 2]]] if first == "timer" else [[1, [1]], [["a", 2]]])


def test_a_tie_that_the_timer_wins(env):
    """The signal was there before the race, the sleep of no length has the lower index."""

    async def run(self, args):
        await work()
        won = await api.race(api.sleep(0), received("a"))
        return Ok([won, await rest()])

    env.hold(work)
    h = env.start(flow(run))
    h.signal("a", 1)
    env.complete(work)
    h.signal("end")
    assert h.result() == [[0, None], [["a", 1]]]


def test_what_a_branch_has_worked_on_is_taken(env):
    """A loser that went on with a signal, to another wait, has had it: nothing is worked on twice."""

    async def pump():
        while True:
            await work(await api.wait_for_signal("a"))

    async def run(self, args):
        won = await api.race(pump, api.wait_for_signal("stop"))
        return Ok([won, await rest()])

    h = env.start(flow(run))
    for number in range(3):
        h.signal("a", number)
    h.signal("stop", "now")
    h.signal("end")
    assert h.result() == [[1, "now"], []]


@pytest.mark.parametrize("kind", ["parallel", "race"])
def test_cancelled_it_returns_nothing_and_takes_nothing(env, kind):
    """ST-085: what its branches had is in the mailbox again, for who catches the cancel and for the end of the run."""

    async def slow():
        try:
            await api.sleep(60)
        except errors.Cancelled:
            await api.sleep(5)
            raise

    async def run(self, args):
        try:
            if kind == "parallel":
                await api.parallel([received("a"), slow])
            else:
                await api.race(received("a"), slow)
        except errors.Cancelled:
            return Ok(await rest() if args else None)

    for catches in (True, False):
        h = env.start(flow(run), catches)
        h.signal("a", 1)
        h.signal("b", 2)
        h.cancel()
        env.advance(5)
        if catches:
            h.signal("end")
            assert h.result() == [["a", 1], ["b", 2]]
        else:
            assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["a", "b"]


def test_a_value_that_is_used_takes_its_signals_once(env):
    """Through several levels."""

    async def run(self, args):
        inner = partial(api.parallel, [received("a"), partial(api.race, api.wait_for_signal("b"), api.sleep(60))])
        first = await api.race(inner, api.wait_for_signal("never"))
        return Ok([first, await rest()])

    h = env.start(flow(run))
    for name, payload in (("a", 1), ("b", 2), ("a", 3), ("b", 4), ("end", None)):
        h.signal(name, payload)
    assert h.result() == [[0, [[1], [0, 2]]], [["a", 3], ["b", 4]]]


def test_the_branch_that_raises_has_had_its_signal(env):
    async def picky():
        raise ValueError(await api.wait_for_signal("a"))

    async def run(self, args):
        try:
            await api.race(picky, api.sleep(60))
        except ValueError as exc:
            return Ok([str(exc), await rest()])

    h = env.start(flow(run))
    h.signal("a", "bad")
    h.signal("end")
    assert h.result() == ["bad", []]
