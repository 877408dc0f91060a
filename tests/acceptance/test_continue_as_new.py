"""What goes on to the next run, and what the gap between two runs does to messages."""

from __future__ import annotations

from contextlib import suppress

import pytest

from temporalex_django import ContinueAsNew, NoReply, Ok, Reply, Stop, api, errors, update
from tests.support.runs import events, flow, kinds, work

DONE = {"done": lambda _, state: Stop(state)}


def rounds(first, then):
    """A workflow of two runs: ``first()`` in the one, ``then()`` in the other."""

    async def run(self, args):
        if args is None:
            await first()
            return ContinueAsNew("second")
        return Ok(await then())

    return flow(run)


async def shielded():
    async with api.shield():
        await work()


async def hears(wait):
    """What a run hears of a cancel."""
    try:
        return await wait()
    except errors.Cancelled:
        return f"cancelled, {api.cancel_requested()}"


async def next_run():
    return await hears(lambda: api.sleep(60))


def requests(env, handle):
    """How many cancel requests each of its runs has in its history."""
    runs = env.run_ids(handle.chain_id)
    return [[event.kind for event in env.row(run).events].count("CancelRequested") for run in runs]


@pytest.mark.parametrize(("first", "together"), [(work, True), (shielded, True), (shielded, False)])
def test_a_cancel_that_no_unit_has_seen_goes_on(env, first, together):
    """ST-084 ST-085: with the result that ends the run, in one activation or before it, behind a shield."""
    env.hold(work)
    h = env.start(rounds(first, next_run))
    if together:
        with env.batch():
            env.complete(work)
            h.cancel("why")
    else:
        h.cancel("why")
        env.complete(work)
    assert h.result() == "cancelled, True"
    assert requests(env, h) == [1, 1]
    assert events(h, "CancelRequested")[0]["reason"] == "why"


def test_through_runs_that_never_wait(env):
    """The request and what is buffered, through runs that do not come to a wait."""

    async def run(self, args):
        if args is None:
            await work()
        if (args or 0) < 3:
            return ContinueAsNew((args or 0) + 1)
        return Ok(await next_run())

    env.hold(work)
    h = env.start(flow(run))
    h.signal("kept", 1)
    h.signal("kept", 2)
    with env.batch():
        env.complete(work)
        h.cancel()
    assert h.result() == "cancelled, True"
    assert requests(env, h) == [1, 1, 1, 1]
    assert events(h, "SignalReceived") == [{"name": "kept", "payload": n} for n in (1, 2)]
    assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["kept", "kept"]


def test_in_the_first_activation_before_any_wait(env):
    async def run(self, args):
        return ContinueAsNew(1) if args is None else Ok(await next_run())

    with env.batch():
        h = env.start(flow(run))
        h.cancel()
    assert h.result() == "cancelled, True"


async def caught():
    with suppress(errors.Cancelled):
        await api.sleep(60)


async def asked():
    async with api.shield():
        await api.wait_for_signal("go")
    assert api.cancel_requested()


async def waited():
    await api.wait_cancelled()


async def by_condition():
    async with api.shield():
        await api.wait_condition(api.cancel_requested)


@pytest.mark.parametrize("sees", [caught, asked, waited, by_condition])
def test_a_cancel_that_was_seen_stays_with_the_run_that_saw_it(env, sees):
    """ST-032 ST-088: raised, returned from `wait_cancelled`, or heard of by `cancel_requested`."""
    h = env.start(rounds(sees, next_run))
    h.cancel()
    h.signal("go")
    env.advance(60)
    assert h.result() is None
    assert requests(env, h) == [1, 0]


def test_a_race_that_is_lost_is_no_cancel_that_was_seen(env):
    """A branch hears of the end of its race, not of the request."""

    async def first():
        async with api.shield():
            await api.race(work(), api.sleep(60))

    env.hold(work)
    h = env.start(rounds(first, next_run))
    h.cancel()
    env.complete(work)
    assert h.result() == "cancelled, True"


def phase(**options):
    handlers = {"add": lambda n, s: Reply(len(s), [*s, n])}
    return lambda: api.phase([], update=handlers, signal={"kept": lambda n, s: NoReply([*s, n]), **DONE}, **options)


async def work_then_phase():
    await work("in the second run")
    return await phase()()


def test_an_update_in_the_gap_waits_for_the_first_phase_of_the_next_run(env):
    """With what ends the first run, behind it, and while the second run is on its way to a phase."""
    env.hold(work)
    h = env.start(rounds(work, work_then_phase))
    with env.batch():
        env.complete(work)
        together = h.update_async("add", 1)
    later = h.update_async("add", 2)
    assert not together.done and not later.done and not together.accepted
    env.complete(work)
    assert (together.result(), later.result()) == (0, 1)
    h.signal("done")
    assert h.result() == [1, 2]


def test_in_the_order_in_which_they_came_among_signals(env):
    """Signals that go on are in front of an update that came behind them, and behind one that came before."""
    env.hold(work)
    h = env.start(rounds(work, work_then_phase))
    h.signal("kept", 1)
    with env.batch():
        env.complete(work)
        h.update_async("add", 2)
        h.signal("kept", 3)
    h.update_async("add", 4)
    h.signal("kept", 5)
    env.complete(work)
    h.signal("done")
    assert h.result() == [1, 2, 3, 4, 5]


def test_through_a_run_without_a_phase(env):
    """It goes on as the signals do, and keeps its place among them."""

    async def run(self, args):
        await work(args)
        if (args or 0) < 2:
            return ContinueAsNew((args or 0) + 1)
        return Ok(await phase()())

    env.hold(work)
    h = env.start(flow(run))
    env.complete(work)
    h.signal("kept", 1)
    u = h.update_async("add", 2)
    h.signal("kept", 3)
    for _ in range(2):
        assert not u.done
        env.complete(work)
    assert u.result() == 1
    h.signal("done")
    assert h.result() == [1, 2, 3]


def test_a_run_that_closes_without_a_phase_refuses_it(env):
    """TX-080."""
    env.hold(work)
    h = env.start(rounds(work, work))
    env.complete(work)
    u = h.update_async("add", 1)
    assert not u.done
    env.complete(work)
    assert h.status == "completed"
    with pytest.raises(errors.WorkflowClosed):
        u.result()


def test_a_phase_that_does_not_know_it_refuses_it(env):
    """TX-067: the first phase decides, not a later one."""

    async def then():
        await work()
        await api.phase(0, signal=DONE)
        return await phase()()

    env.hold(work)
    h = env.start(rounds(work, then))
    env.complete(work)
    u = h.update_async("add", 1)
    env.complete(work)
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        u.result()
    h.signal("done")
    assert h.update("add", 2) == 0


def test_behind_the_first_phase_and_before_the_end_of_a_run_it_is_refused_as_ever(env):
    """TX-066 TX-093: a linear section before `ContinueAsNew`, and one behind a phase of the next run."""

    async def then():
        await phase()()
        return await work()

    env.hold(work)
    h = env.start(rounds(work, then))
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        h.update("add", 1)
    env.complete(work)
    h.signal("done")
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        h.update("add", 1)
    env.complete(work)
    assert h.status == "completed"


def test_what_is_refused_because_a_phase_has_left_stays_refused(env):
    """TX-077: behind a busy handler whose phase stops and whose run continues as new in the same activation."""

    async def slow(_, state):
        await work()
        return Stop(state, "stopped")

    async def first():
        await api.phase([], update={"slow": slow, "add": lambda n, s: Reply(n, s)})

    env.hold(work)
    h = env.start(rounds(first, phase()))
    u, behind = h.update_async("slow"), h.update_async("add", 1)
    with env.batch():
        env.complete(work)
        with_it = h.update_async("add", 2)
    assert u.result() == "stopped"
    with pytest.raises(errors.UpdateRejected):
        behind.result()
    assert with_it.result() == 0


def test_it_is_judged_by_the_state_of_that_phase(env):
    """The validator sees what its handler will get."""

    async def then():
        await work()
        judged = update(lambda n, s: Reply(n, [*s, n]), validator=lambda n, s: None if s == ["new"] else errors)
        return await api.phase(["new"], update={"add": judged}, signal=DONE)

    env.hold(work)
    h = env.start(rounds(work, then))
    env.complete(work)
    u = h.update_async("add", 1)
    env.complete(work)
    assert u.result() == 1
    h.signal("done")
    assert h.result() == ["new", 1]
    assert kinds(h).count("UpdateAccepted") == 1


def test_terminated_in_the_gap_it_is_answered(env):
    """TX-082."""
    env.hold(work)
    h = env.start(rounds(work, work_then_phase))
    env.complete(work)
    u = h.update_async("add", 1)
    h.terminate("why")
    env.advance(1)
    with pytest.raises(errors.WorkflowClosed):
        u.result()


@pytest.mark.hosts("memory", "memory-evicted")
def test_a_host_that_must_answer_at_once_refuses_it(env):
    """It has nowhere to let it wait."""
    env.engine._limits = {"admit_updates": True}
    env.hold(work)
    h = env.start(rounds(work, work_then_phase))
    env.complete(work)
    with pytest.raises(errors.UpdateRejected, match="not accepting"):
        h.update("add", 1)
    env.complete(work)
    assert h.update("add", 2) == 0


def test_what_is_left_at_an_end_is_named_in_it(env):
    """Signals that came along and that nobody wanted."""
    env.hold(work)
    h = env.start(rounds(work, lambda: work()))
    h.signal("kept", 1)
    env.complete(work)
    env.complete(work)
    assert events(h, "WorkflowCompleted")[0]["never_consumed"] == ["kept"]


def test_the_gap_is_in_the_history_of_the_next_run(env):
    """A rebuilt run knows that it goes on from another one, and how many of its first signals came along."""
    env.hold(work)
    h = env.start(rounds(work, work_then_phase))
    h.signal("kept", 1)
    env.complete(work)
    first, second = (env.row(run).events[0].attributes for run in env.run_ids(h.chain_id))
    assert ("carried" in first, second["carried"]) == (False, 1)
