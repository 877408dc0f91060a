"""``wait_condition``."""

from __future__ import annotations

from functools import partial

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, api, errors
from tests.support.runs import flow, kinds, once, produced, produced_kinds, work

DONE = {"done": lambda _, state: Stop(state)}


def test_true_at_once_does_not_block(env):
    """ST-018."""
    assert env.start(once(lambda: api.wait_condition(lambda: True))).result() is True
    assert produced_kinds(env) == ["CompleteWorkflow"]


def test_blocks_until_a_handler_makes_it_true(env):
    """ST-017 ST-019 ST-023 ST-025: state variables; looked at again, and still blocked after a wake-up; no command."""

    async def run(self, args):
        self.count = 0
        (reached, state) = await api.parallel([lambda: api.wait_condition(lambda: self.count >= 2), self.collect])
        return Ok([reached, state])

    async def collect(self):
        for _ in range(3):
            await api.wait_for_signal("add")
            self.count += 1
        return self.count

    h = env.start(flow(run, collect=collect))
    for _ in range(3):
        assert h.status == "waiting"
        h.signal("add")
    assert h.result() == [True, 3]
    assert produced_kinds(env) == ["CompleteWorkflow"]


def test_over_the_phase_state_in_an_async_handler(env):
    """ST-021 ST-025."""

    def begin(args, state):
        async def background():
            await api.wait_condition(lambda s: s >= 3)
            return await api.update_state(lambda s: (s, s * 10))

        return Async(background, state)

    h = env.start(flow_of_phase(0, signal={"add": lambda n, s: NoReply(s + n), **DONE}, update={"begin": begin}))
    u = h.update_async("begin")
    h.signal("add", 1)
    assert not u.done
    h.signal("add", 2)
    assert u.result() == 3
    h.signal("done")
    assert h.result() == 30


def flow_of_phase(state, **options):
    return once(lambda: api.phase(state, **options))


def test_with_the_phase_state_elsewhere_is_refused(env):
    """In async handlers only."""
    with pytest.raises(errors.WorkflowFailed, match="NestingError"):
        env.start(once(lambda: api.wait_condition(lambda s: True))).result()


def test_in_a_sync_handler(env):
    """ST-021: over what other units change."""
    ready = []

    def begin(args, state):
        async def background():
            await work()
            ready.append(1)

        return Async(background, state)

    async def waits(args, state):
        await api.wait_condition(lambda: bool(ready))
        return Reply(len(ready), state)

    async def run(self, args):
        ready.clear()
        return Ok(await api.phase(0, signal={"begin": begin, **DONE}, update={"waits": waits}))

    env.hold(work)
    h = env.start(flow(run))
    h.signal("begin")
    u = h.update_async("waits")
    assert not u.done
    env.complete(work)
    assert u.result() == 1


def test_predicates_compose_and_see_no_half_applied_change(env):
    """ST-074."""
    seen = []

    def bad(args, state):
        state["a"] = 1
        raise ValueError("half")

    def begin(args, state):
        async def background():
            a, b = (lambda s: s["a"] == 1), (lambda s: s["b"] == 1)

            def both(s):
                seen.append(dict(s))
                return (a(s) and b(s)) or not True

            return await api.wait_condition(both)

        return Async(background, state)

    h = env.start(
        flow_of_phase(
            {"a": 0, "b": 0}, update={"begin": begin, "bad": bad, "set": lambda k, s: Reply(None, {**s, k: 1})}
        )
    )
    u = h.update_async("begin")
    with pytest.raises(errors.UpdateFailed):
        h.update("bad")
    h.update("set", "b")
    assert {"a": 1, "b": 0} not in seen and not u.done
    h.update("set", "a")
    assert u.result() is True


def test_timeout_gives_false_and_the_timer_of_a_true_one_is_cancelled(env):
    """ST-024."""
    flag = []

    async def run(self, args):
        flag.clear()
        first = await api.wait_condition(lambda: bool(flag), timeout=10)
        (second, _) = await api.parallel([lambda: api.wait_condition(lambda: bool(flag), timeout=60), self.set])
        return Ok([first, second])

    async def set_(self):
        await api.wait_for_signal("set")
        flag.append(1)

    h = env.start(flow(run, set=set_))
    env.advance(10)
    h.signal("set")
    assert h.result() == [False, True]
    assert [(c.kind, c.seq) for c in produced(env)][:-1] == [("StartTimer", 1), ("StartTimer", 2), ("CancelTimer", 2)]


def test_predicate_that_raises_fails_its_waiter_only(env):
    async def run(self, args):
        self.bad = False
        waiter, _ = await api.parallel([lambda: api.wait_condition(lambda: 1 / (0 if self.bad else 1) > 5), self.spoil])
        return Ok(type(waiter.reason).__name__)

    async def spoil(self):
        await api.wait_for_signal("spoil")
        self.bad = True

    h = env.start(flow(run, spoil=spoil))
    h.signal("spoil")
    assert h.result() == "ZeroDivisionError"


def test_async_predicate_is_refused(env):
    """It would be true for ever."""

    async def predicate():
        return False

    with pytest.raises(errors.WorkflowFailed, match="plain predicate"):
        env.start(once(lambda: api.wait_condition(predicate))).result()


def test_predicate_cannot_change_the_phase_state(env):
    """ST-020."""

    def begin(args, state):
        async def background():
            await api.wait_condition(lambda s: s.append("spoiled") or len(s) > 1)

        return Async(background, state)

    h = env.start(flow_of_phase([], signal={"begin": begin, "add": lambda n, s: NoReply([*s, n]), **DONE}))
    h.signal("begin")
    h.signal("add", 1)
    h.signal("done")
    assert h.result() == [1]


def test_cancel_ends_the_wait_and_its_timer(env):
    """ST-085."""
    h = env.start(once(lambda: api.wait_condition(lambda: False, timeout=60)))
    h.cancel()
    assert h.status == "cancelled"
    assert kinds(h) == ["TimerStarted", "CancelRequested", "TimerCancelled", "WorkflowCancelled"]


def lock_flow(seen, *, between=None):
    """Units that wait for one lock, which each takes; the one of the highest number begins to wait first."""

    async def unit(self, number):
        await api.sleep(3 - number)
        await api.wait_condition(lambda: not self.locked)
        self.locked = True
        seen.append(number)
        if between is not None:
            await between(number)
        self.locked = False

    async def run(self, args):
        seen.clear()
        self.locked = True
        branches = [partial(unit, self, number) for number in range(3)]

        async def unlock():
            await api.wait_for_signal("unlock")
            self.locked = False

        await api.parallel([*branches, unlock])
        return Ok(list(seen))

    return flow(run)


def test_a_waiter_goes_on_only_while_its_condition_holds_and_in_the_order_of_the_waits(env):
    """ST-019: what the first one makes false is false for the next."""
    seen = []
    h = env.start(lock_flow(seen, between=work))
    env.hold(work)
    env.advance(5)
    h.signal("unlock")
    for count in (1, 2, 3):
        assert seen[:count] == [2, 1, 0][:count] and len(seen) == count
        env.complete(work)
    assert h.result() == [2, 1, 0]


def test_those_whose_condition_holds_go_on_one_behind_the_other_in_one_activation(env):
    """ST-019: in the order in which they began to wait, not in that of the units."""
    h = env.start(lock_flow([]))
    env.advance(5)
    h.signal("unlock")
    assert h.result() == [2, 1, 0]


def test_made_false_again_by_another_unit_of_the_same_round_nobody_saw_it(env):
    """ST-019: a waiter goes on before whoever could take the condition away, or not at all."""

    async def run(self, args):
        self.count = 0
        seen = []

        async def waiter():
            await api.wait_condition(lambda: self.count == 1)
            seen.append(self.count)

        async def adder():
            await api.wait_for_signal("go")
            self.count += 1

        await api.parallel([adder, adder, waiter, partial(api.wait_for_signal, "end")])
        return Ok(seen)

    h = env.start(flow(run))
    with env.batch():
        h.signal("go")
        h.signal("go")
    h.signal("end")
    assert h.result() == [1]


def test_a_timeout_and_a_cancel_come_to_a_waiter_whose_condition_was_taken_away(env):
    """ST-024 ST-085: it waits on, and ends as any wait does."""
    flag = []

    async def waiter(name, timeout):
        try:
            there = await api.wait_condition(lambda: bool(flag), timeout=timeout)
        except errors.Cancelled:
            return f"{name} cancelled"
        flag.clear()
        return f"{name} {there}"

    async def run(self, args):
        flag.clear()
        branches = [partial(waiter, "first", None), partial(waiter, "second", 10), partial(waiter, "third", None)]

        async def fill():
            await api.wait_for_signal("go")
            flag.append(1)

        async with api.shield():
            ended = api.parallel([*branches[:2], fill])
            return Ok([*await ended, api.cancel_requested()])

    h = env.start(flow(run))
    h.signal("go")
    h.cancel()
    env.advance(10)
    assert h.result() == ["first True", "second False", None, True]
