"""``race``: the first to finish wins, the others are cancelled (ST-067)."""

from __future__ import annotations

from functools import partial

import pytest

from temporalex_django import Async, Ok, Reply, Stop, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import broken, flow, kinds, once, other, work


async def named(name, seconds):
    await api.sleep(seconds)
    return name


def test_first_to_finish_wins_and_the_others_are_cancelled(env):
    """ST-067: index and value; the timer of the loser is cancelled."""
    env.hold(work)
    h = env.start(once(lambda: api.race(work(1), api.sleep(60), api.wait_for_signal("go"))))
    assert h.describe()["waiting_for"][0] == "race of 3"
    env.complete(work, "done")
    assert h.result() == [0, "done"]
    assert kinds(h) == ["ActivityScheduled", "TimerStarted", "ActivityCompleted", "TimerCancelled", "WorkflowCompleted"]


def test_a_timeout_by_race(env):
    """ST-067: the activity that lost is cancelled."""
    env.hold(work)
    h = env.start(once(lambda: api.race(work(1), api.sleep(60))))
    env.advance(60)
    assert h.result() == [1, None]
    assert kinds(h)[-3:] == ["TimerFired", "ActivityCancelled", "WorkflowCompleted"]


@pytest.mark.parametrize("order", [(5, 5, 5), (7, 5, 5)])
def test_tie_goes_to_the_lowest_index(env, order):
    """What ended in the same activation ended at the same time."""
    h = env.start(once(lambda: api.race(*[partial(named, i, s) for i, s in enumerate(order)])))
    env.advance(10)
    lowest = order.index(min(order))
    assert h.result() == [lowest, lowest]


def test_tie_does_not_depend_on_how_many_rounds_a_branch_needs(env):
    """Decided when every unit is blocked."""

    async def slow():
        await api.parallel([lambda: 1])
        await api.parallel([lambda: 1])
        return "slow"

    assert env.start(once(lambda: api.race(slow, lambda: "quick"))).result() == [0, "slow"]


def test_branch_that_raises_first_raises_in_the_caller_after_the_others_ended(env):
    seen = []

    async def loser():
        try:
            await api.sleep(60)
        except errors.Cancelled:
            await other("cleaned")
            seen.append("cleaned")
            raise

    async def run(self, args):
        try:
            await api.race(loser, lambda: broken.options(retry=None)(1))
        except errors.ActivityFailure as exc:
            return Ok([exc.type, "cleaned" in seen])

    env.hold(broken)
    h = env.start(flow(run))
    env.fail(broken, ValueError("no"))
    assert h.result() == ["ValueError", True]


def test_returns_after_the_losers_have_ended(env):
    """A loser may clean up; it is cancelled once and what it returns is nobody's."""

    async def loser():
        try:
            await api.sleep(60)
        except errors.Cancelled:
            await api.sleep(5)
        await api.sleep(5)
        return "too late"

    h = env.start(once(lambda: api.race(loser, api.wait_for_signal("go"))))
    h.signal("go", "signal")
    assert h.status == "waiting"
    env.advance(9)
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == [1, "signal"]


def test_error_of_a_loser_is_logged_once_and_goes_to_nobody(env, caplog):
    """Whatever it raises, after the others have ended."""

    async def loser():
        try:
            await api.sleep(60)
        except errors.Cancelled:
            raise ValueError("while cleaning up") from None

    h = env.start(once(lambda: api.race(loser, api.wait_for_signal("go"))))
    h.signal("go", 1)
    assert h.result() == [1, 1]
    env.replay(h)
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_cancelling_a_loser_reaches_all_that_it_started_each_once(env, depth):
    """Races and parallels inside a loser, at any depth."""
    reached = []

    async def leaf(name):
        try:
            await api.sleep(60)
        except errors.Cancelled:
            reached.append(name)
            raise

    async def nest(level):
        if level == 0:
            return await leaf("leaf")
        try:
            if level % 2:
                return await api.race(partial(nest, level - 1), partial(leaf, f"race {level}"))
            return await api.parallel([partial(nest, level - 1), partial(leaf, f"parallel {level}")])
        except errors.Cancelled:
            reached.append(f"host {level}")
            raise

    async def run(self, args):
        reached.clear()
        index, value = await api.race(partial(nest, depth), api.wait_for_signal("go"))
        return Ok([index, value, sorted(reached)])

    h = env.start(flow(run))
    h.signal("go", "now")
    index, value, names = h.result()
    assert (index, value) == (1, "now")
    assert len(names) == len(set(names)) == 2 * depth + 1
    assert kinds(h).count("TimerCancelled") == depth + 1


def test_cancel_of_the_run_reaches_the_branches_and_then_the_caller(env):
    """ST-085."""
    env.hold(work)
    h = env.start(once(lambda: api.race(work(1), api.sleep(60))))
    h.cancel()
    assert h.status == "cancelled"
    assert kinds(h)[2:] == ["CancelRequested", "ActivityCancelled", "TimerCancelled", "WorkflowCancelled"]


def test_cancel_while_losers_clean_up_does_not_reach_them_twice(env):
    """Cancelled reaches each unit once."""
    reached = []

    async def loser():
        for _ in range(2):
            try:
                await api.sleep(60)
            except errors.Cancelled:
                reached.append(1)

    h = env.start(once(lambda: api.race(loser, api.wait_for_signal("go"))))
    h.signal("go")
    h.cancel()
    assert h.status == "waiting"
    env.advance(60)
    assert h.status == "cancelled"
    reached.clear()
    env.replay(h)
    assert reached == [1]


def test_shielded_loser_ends_its_block_first(env):
    """ST-089."""

    async def loser():
        async with api.shield():
            await api.sleep(10)
        await api.sleep(60)

    h = env.start(once(lambda: api.race(loser, api.wait_for_signal("go"))))
    h.signal("go", 1)
    env.advance(9)
    assert h.status == "waiting"
    env.advance(1)
    assert h.result() == [1, 1]


def test_loser_gives_back_the_signal_it_waited_for(env):
    """ST-067 TX-012: nothing of a loser takes a later signal."""

    async def run(self, args):
        first = await api.race(api.wait_for_signal("a"), api.wait_for_signal("b"))
        return Ok([first, await api.wait_for_signal("b")])

    h = env.start(flow(run))
    h.signal("a", 1)
    h.signal("b", 2)
    assert h.result() == [[0, 1], 2]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_in_handlers(env, kind):
    async def body():
        return await api.race(work("won"), api.sleep(60))

    async def sync(_, state):
        return Reply(await body(), state)

    handler = sync if kind == "sync" else (lambda _, s: Async(body, s))
    h = env.start(once(lambda: api.phase(0, update={"go": handler}, signal={"end": lambda _, s: Stop(s)})))
    assert h.update("go") == [0, "won"]
    h.signal("end")
    assert h.result() == 0


def test_takes_what_parallel_takes(env):
    """Functions, awaitables, coroutines."""

    async def never():
        await api.sleep(60)

    assert env.start(once(lambda: api.race(never(), api.sleep(60), lambda: work(3)))).result() == [2, 3]


@in_memory
@pytest.mark.parametrize(
    ("branches", "message"),
    [
        ([[1, 2]], "WorkflowDefinitionError.*neither a function"),
        ([], "WorkflowDefinitionError.*at least one branch"),
        ([lambda: Async(work, 1)], "NestingError.*Async"),
    ],
)
def test_what_cannot_be_a_branch(env, branches, message):
    with pytest.raises(errors.WorkflowFailed, match=message):
        env.start(once(lambda: api.race(*branches))).result()


def test_never_awaited(env):
    """Reported when the unit ends."""

    async def run(self, args):
        api.race(work(1))
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match="NotAwaited.*await race"):
        env.start(flow(run)).result()


def test_loop_of_races_keeps_no_units(env):
    """A pump: each round cancels its losers."""

    async def run(self, args):
        got = []
        while len(got) < 5:
            index, value = await api.race(api.wait_for_signal("item"), api.sleep(60))
            got.append(value if index == 0 else "tick")
        return Ok(got)

    h = env.start(flow(run))
    h.signal("item", 1)
    env.advance(60)
    for value in (2, 3, 4):
        h.signal("item", value)
    assert h.result() == [1, "tick", 2, 3, 4]
