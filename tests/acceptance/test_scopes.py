"""``shield``, ``wait_cancelled`` and ``saga``."""

from __future__ import annotations

import pytest

from temporalex_django import Async, NoReply, Ok, Stop, api, errors
from tests.support.runs import broken, events, flow, kinds, once, other, work

# -- shield


def test_cancel_inside_is_raised_at_the_first_wait_after_the_block(env):
    """ST-089."""

    async def run(self, args):
        async with api.shield():
            first = await work(1)
            requested = api.cancel_requested()
            await api.sleep(1)
        try:
            await api.sleep(60)
        except errors.Cancelled:
            return Ok([first, requested, "after"])

    env.hold(work)
    h = env.start(flow(run))
    h.cancel()
    assert h.status == "running"
    env.complete(work, "finished")
    env.advance(1)
    assert h.result() == ["finished", True, "after"]


def test_without_a_wait_after_the_block_it_is_never_raised(env):
    """The first *wait*."""

    async def run(self, args):
        async with api.shield():
            await api.sleep(5)
        return Ok("done")

    h = env.start(flow(run))
    h.cancel()
    env.advance(5)
    assert h.result() == "done"


def test_cleanup_in_a_shield(env):
    """ST-089: after the cancel was raised."""

    async def run(self, args):
        try:
            await api.sleep(60)
        finally:
            async with api.shield():
                await work("undo")

    h = env.start(flow(run))
    h.cancel()
    assert h.status == "cancelled"
    assert kinds(h)[-3:] == ["ActivityScheduled", "ActivityCompleted", "WorkflowCancelled"]


def test_nested_shields_count(env):
    async def run(self, args):
        async with api.shield():
            async with api.shield():
                await api.sleep(1)
            await api.sleep(1)
        await api.sleep(60)

    h = env.start(flow(run))
    h.cancel()
    env.advance(1)
    assert h.status == "waiting"
    env.advance(1)
    assert h.status == "cancelled"


@pytest.mark.parametrize("how", ["parallel", "race"])
def test_branches_started_inside_inherit_it(env, how):
    """Cancellation in a few lines."""

    async def branch():
        await api.sleep(5)
        await api.sleep(5)
        return "whole"

    async def run(self, args):
        async with api.shield():
            value = await (api.parallel([branch, branch]) if how == "parallel" else api.race(branch, branch))
        try:
            await api.sleep(1)
        except errors.Cancelled:
            return Ok(value)

    h = env.start(flow(run))
    h.cancel()
    env.advance(10)
    assert h.result() == (["whole", "whole"] if how == "parallel" else [0, "whole"])


def test_race_inside_still_cancels_its_losers(env):
    """A shield keeps out what comes from outside of it."""

    async def run(self, args):
        async with api.shield():
            value = await api.race(api.sleep(60), work("won"))
        return Ok(value)

    h = env.start(flow(run))
    assert h.result() == [1, "won"]
    assert "TimerCancelled" in kinds(h)


def test_phase_inside_goes_on(env):
    async def handler(_, state):
        await api.sleep(5)
        return NoReply([*state, "handled"])

    async def run(self, args):
        async with api.shield():
            state = await api.phase([], signal={"go": handler, "end": lambda _, s: Stop(s)})
        return Ok(state)

    h = env.start(flow(run))
    h.signal("go")
    h.cancel()
    env.advance(5)
    h.signal("end")
    assert h.result() == ["handled"]


def test_one_branch_shielded_the_others_not(env):
    """ST-085 ST-089: each unit for itself."""

    async def shielded():
        async with api.shield():
            await api.sleep(10)
        return "kept"

    async def run(self, args):
        try:
            await api.parallel([shielded, lambda: api.sleep(60)])
        except errors.Cancelled:
            return Ok(str(api.now().time()))

    h = env.start(flow(run))
    h.cancel()
    env.advance(10)
    assert h.result() == "00:00:10"
    assert kinds(h).count("TimerCancelled") == 1


def test_cancel_before_the_block_that_found_no_wait_comes_after_it(env):
    async def run(self, args):
        async with api.shield():
            await api.sleep(5)
        await api.sleep(60)

    with env.batch():
        h = env.start(flow(run))
        h.cancel()
    assert h.status == "waiting"
    env.advance(5)
    assert h.status == "cancelled"


@pytest.mark.parametrize("name", ["shield", "saga"])
def test_call_without_a_block_is_reported(env, name):
    """As a forgotten await is."""

    async def run(self, args):
        getattr(api, name)()
        return Ok()

    with pytest.raises(errors.WorkflowFailed, match=rf"NotAwaited.*async with {name}\(\)"):
        env.start(flow(run)).result()


@pytest.mark.parametrize("name", ["shield", "saga"])
def test_one_object_is_one_block(env, name):
    async def run(self, args):
        scope = getattr(api, name)()
        async with scope:
            pass
        async with scope:
            pass

    with pytest.raises(errors.WorkflowFailed, match=r"NestingError.*twice"):
        env.start(flow(run)).result()


# -- wait_cancelled


def test_wait_cancelled_returns(env):
    """ST-032 ST-087: it returns, and the unit has been told by that."""

    async def run(self, args):
        before = api.cancel_requested()
        await api.wait_cancelled()
        await work("cleanup")
        await api.wait_cancelled()  # at once now
        return Ok([before, api.cancel_requested()])

    h = env.start(flow(run))
    assert h.describe()["waiting_for"] == ["a cancel request"]
    h.cancel()
    assert h.result() == [False, True]


def test_wait_cancelled_at_once_when_the_request_came_before(env):
    with env.batch():
        h = env.start(once(told))
        h.cancel()
    assert h.result() == "told"


async def told():
    await api.wait_cancelled()
    await api.sleep(0)
    return (await api.parallel([work("told")]))[0]


def test_wait_cancelled_inside_a_shield_leaves_the_cancel_for_after_it(env):
    async def run(self, args):
        async with api.shield():
            await api.wait_cancelled()
            await work("cleanup")
        await api.sleep(60)

    h = env.start(flow(run))
    h.cancel()
    assert h.status == "cancelled"
    assert "ActivityCompleted" in kinds(h)


def test_wait_cancelled_that_lost_a_race_is_cancelled_like_anything_else(env):
    h = env.start(once(lambda: api.race(api.wait_cancelled(), api.sleep(5))))
    env.advance(5)
    assert h.result() == [1, None]


def test_watcher_in_an_async_handler(env):
    seen = []

    async def watch():
        await api.wait_cancelled()
        await api.update_state(lambda s: (None, "seen"))
        seen.append(1)

    h = env.start(once(lambda: api.phase("not seen", signal={"go": lambda _, s: Async(watch, s)})))
    h.signal("go")
    h.cancel()
    assert h.status == "cancelled"
    assert seen


# -- saga


async def book(fail, name="saga"):
    async with api.saga() as saga:
        await work("flight")
        saga.add(other, f"undo {name} flight")
        await work("hotel")
        saga.add(other, f"undo {name} hotel")
        if fail is not None:
            raise fail
        await api.sleep(60)
    return "booked"


def undone(h):
    return [a["args"][0] for a in events(h, "ActivityScheduled") if a["activity"].endswith("other")]


def test_compensations_run_in_reverse_and_the_error_goes_on(env):
    """ST-094."""
    h = env.start(once(lambda: book(ValueError("full"))))
    with pytest.raises(errors.WorkflowFailed, match="ValueError: full"):
        h.result()
    assert undone(h) == ["undo saga hotel", "undo saga flight"]


def test_nothing_is_undone_when_the_block_ends_well(env):
    """ST-094."""
    h = env.start(once(lambda: book(None)))
    env.advance(60)
    assert h.result() == "booked"
    assert undone(h) == []


def test_on_cancel_too_and_shielded(env):
    """A second wait in a compensation is not interrupted."""

    async def slowly(name):
        await api.sleep(5)
        await other(name)

    async def run(self, args):
        async with api.saga() as saga:
            saga.add(slowly, "a")
            saga.add(slowly, "b")
            await api.sleep(60)

    h = env.start(flow(run))
    h.cancel()
    h.cancel()
    env.advance(10)
    assert h.status == "cancelled"
    assert undone(h) == ["b", "a"]


def test_cancel_while_compensating_waits(env):
    """Shielded."""

    async def run(self, args):
        async with api.saga() as saga:
            saga.add(other, "one")
            saga.add(other, "two")
            raise ValueError("no")

    env.hold(other)
    h = env.start(flow(run))
    h.cancel()
    env.complete(other)
    env.complete(other)
    with pytest.raises(errors.WorkflowFailed, match="ValueError: no"):
        h.result()
    assert undone(h) == ["two", "one"]


def test_error_of_a_compensation_is_logged_and_does_not_stop_the_others(env, caplog):
    """ST-094: and it does not replace the original one."""

    def plain():
        raise KeyError("plain")

    async def run(self, args):
        async with api.saga() as saga:
            saga.add(other, "first")
            saga.add(broken, "second")
            saga.add(plain)
            raise ValueError("original")

    env.hold(broken)
    h = env.start(flow(run))
    env.fail(broken, ValueError("again"))
    with pytest.raises(errors.WorkflowFailed, match="ValueError: original"):
        h.result()
    assert undone(h) == ["first"]
    env.replay(h)
    assert len([r for r in caplog.records if "compensation" in r.message]) == 2


def test_loser_of_a_race_compensates_before_the_race_ends(env):
    """ST-094."""
    h = env.start(once(lambda: api.race(lambda: book(None, "loser"), api.wait_for_signal("go"))))
    h.signal("go", 1)
    assert h.result() == [1, 1]
    assert undone(h) == ["undo loser hotel", "undo loser flight"]


def test_what_is_added_must_be_a_function_and_inside(env):
    async def called():
        async with api.saga() as saga:
            saga.add(work(1))

    async def after():
        async with api.saga() as saga:
            pass
        saga.add(work, 1)

    with pytest.raises(errors.WorkflowFailed, match=r"WorkflowDefinitionError.*without calling it"):
        env.start(once(called)).result()
    with pytest.raises(errors.WorkflowFailed, match=r"NestingError.*inside"):
        env.start(once(after)).result()
