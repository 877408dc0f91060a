"""``parallel``: branches, their order and their errors."""

from __future__ import annotations

from functools import partial

import pytest

from temporalex_django import Err, Ok, activity, api, errors
from tests.support.hosts import in_memory
from tests.support.runs import broken, events, flow, kinds, once, other, produced, produced_kinds, work


def test_results_come_in_input_order_whatever_ends_first(env):
    """TX-119 TX-120 TX-121 TX-124 TX-126 TX-199."""

    async def nap(n):
        await api.sleep(n)
        return [n]

    h = env.start(once(lambda: api.parallel([partial(nap, n) for n in (30, 10, 20)])))
    assert [(c.kind, c.seq) for c in env.commands[0]] == [("StartTimer", 1), ("StartTimer", 2), ("StartTimer", 3)]
    env.advance(20)
    assert h.status == "waiting"
    env.advance(10)
    assert h.result() == [[30], [10], [20]]


def test_branches_may_be_functions_calls_or_coroutines(env):
    """Zero-argument callables that return awaitables, or awaitables."""

    async def twice(n):
        return await work(n) * 2

    h = env.start(once(lambda: api.parallel([lambda: work(1), work(2), twice(3), partial(twice, 4), lambda: 5])))
    assert h.result() == [1, 2, 6, 8, 5]


def test_results_are_not_wrapped(env):
    """TX-121: a list stays a list, None stays None, an Err that is returned stays itself."""
    values = [5, [1], None, {"ok": 1}]
    h = env.start(once(lambda: api.parallel([lambda v=v: v for v in values])))
    assert h.result() == values


@pytest.mark.parametrize("form", ["list", "arguments"])
def test_branches_are_arguments_or_a_list(env, form):
    branches = [lambda: 1, lambda: 2]

    async def run(self, args):
        if form == "list":
            return Ok([await api.parallel(branches, limit=1), [*await api.race(branches)], await api.parallel([])])
        return Ok([await api.parallel(*branches, limit=1), [*await api.race(*branches)], await api.parallel()])

    assert env.start(flow(run)).result() == [[1, 2], [0, 1], []]


def test_the_first_error_in_order_is_raised_once_all_have_ended(env):
    """The others are its notes, and a signal that a branch took is there again, since its value is lost."""

    async def late():
        await api.sleep(10)
        raise ValueError("late")

    async def early():
        raise KeyError("early")

    async def run(self, args):
        try:
            await api.parallel(api.wait_for_signal("go"), late, early, raise_errors=True)
        except ValueError as exc:
            return Ok([str(exc), exc.__notes__, await api.wait_for_signal("go")])
        return Ok(None)

    handle = env.start(flow(run))
    handle.signal("go", 7)
    assert handle.status == "waiting"
    env.advance(10)
    assert handle.result() == ["late", ["branch 2 of parallel failed, too: KeyError: 'early'"], 7]


def test_without_an_error_the_results_come_as_usual(env):
    assert env.start(once(lambda: api.parallel(lambda: 1, raise_errors=True))).result() == [1]


def test_raising_branch_gives_err_and_the_others_run_on(env):
    """TX-015 TX-122 TX-123."""

    async def bad():
        raise ValueError("one")

    async def run(self, args):
        results = await api.parallel([lambda: work(1), bad, lambda: other(2)])
        assert isinstance(results[1], Err) and isinstance(results[1].reason, ValueError)
        return Ok([results[0], str(results[1].reason), results[2]])

    h = env.start(flow(run))
    assert h.result() == [1, "one", 2]


def test_failed_activity_is_its_branchs_error(env):
    """TX-015."""

    async def run(self, args):
        results = await api.parallel([broken.options(retry=None)(1), work(2)])
        return Ok([results[0].reason.type, results[1]])

    env.hold(broken)
    h = env.start(flow(run))
    env.fail(broken, ValueError("x"))
    assert h.result() == ["ValueError", 2]


def test_forgotten_await_is_the_branchs_error(env):
    """NotAwaited in a branch."""

    async def forgets():
        work(1)

    async def run(self, args):
        results = await api.parallel([forgets])
        return Ok(type(results[0].reason).__name__)

    assert env.start(flow(run)).result() == "NotAwaited"


def test_ready_units_are_stepped_in_rounds_in_creation_order(env):
    """TX-125: what is woken meanwhile joins the next round."""
    log: list[str] = []

    async def branch(name, ready):
        log.append(f"{name}1")
        await (api.sleep(0) if ready else work(name))
        log.append(f"{name}2")
        await work(name)

    async def run(self, args):
        log.clear()
        await api.parallel([partial(branch, "a", False), partial(branch, "b", True), partial(branch, "c", False)])
        return Ok(list(log))

    h = env.start(flow(run))
    assert h.result()[:4] == ["a1", "b1", "b2", "c1"]
    assert [a["args"] for a in events(h, "ActivityScheduled")][:3] == [["a"], ["b"], ["c"]]


def test_results_of_one_activation_wake_branches_in_creation_order(env):
    """TX-184: not in the order of the results."""

    async def branch(n):
        await api.sleep(10 - n)
        await work(n)

    h = env.start(once(lambda: api.parallel([partial(branch, n) for n in range(3)])))
    with env.batch():
        env.advance(10)
    assert [a["args"] for a in events(h, "ActivityScheduled")] == [[0], [1], [2]]


@pytest.mark.parametrize("depth", [2, 50])
def test_parallel_may_be_nested(env, depth):
    """TX-127 TX-160."""

    async def nest(n):
        return [n, await api.parallel([partial(nest, n - 1)])] if n else await work("leaf")

    async def run(self, args):
        value, seen = await nest(depth), 0
        while isinstance(value, list):
            value, seen = value[1][0], seen + 1
        return Ok([seen, value])

    assert env.start(flow(run)).result() == [depth, "leaf"]


def test_last_publish_in_scheduling_order_wins(env):
    """TX-128."""

    async def branch(n):
        api.publish_state(n)

    h = env.start(
        once(lambda: api.parallel([partial(branch, n) for n in range(4)]), handle_query=staticmethod(lambda n, a, s: s))
    )
    assert h.query("x") == 3


def test_empty_list_gives_an_empty_list_at_once(env):
    """TX-129."""
    h = env.start(once(lambda: api.parallel([])))
    assert h.result() == []
    assert produced_kinds(env) == ["CompleteWorkflow"]


def test_cancellation_passes_through(env):
    """TX-130: it is not an error of a branch."""

    async def run(self, args):
        await api.parallel([lambda: work(1), lambda: api.sleep(5)])
        return Ok("swallowed")

    env.hold(work)
    h = env.start(flow(run))
    h.cancel()
    assert h.status == "cancelled"
    assert kinds(h)[-3:] == ["ActivityCancelled", "TimerCancelled", "WorkflowCancelled"]


def test_closures_keep_their_own_item_with_partial(env):
    """TX-131: late binding is Python's; partial and awaitables avoid it."""

    async def run(self, args):
        late = await api.parallel([lambda: work(n) for n in range(3)])  # noqa: B023
        bound = await api.parallel([partial(work, n) for n in range(3)])
        calls = await api.parallel([work(n) for n in range(3)])
        return Ok([late, bound, calls])

    assert env.start(flow(run)).result() == [[2, 2, 2], [0, 1, 2], [0, 1, 2]]


def test_limit_bounds_how_many_run_and_starts_them_in_input_order(env):
    env.hold(work)
    h = env.start(once(lambda: api.parallel([partial(work, n) for n in range(5)], limit=2)))
    assert [a["args"] for a in events(h, "ActivityScheduled")] == [[0], [1]]
    env.complete(work, "a")
    assert [a["args"] for a in events(h, "ActivityScheduled")] == [[0], [1], [2]]
    for value in "bcde":
        env.complete(work, value)
    assert h.result() == ["a", "b", "c", "d", "e"]


def test_limit_with_coroutines_survives_eviction_without_warnings(env):
    """ST-096: branches that wait for their turn are coroutines nobody has begun."""

    async def branch(n):
        return await work(n)

    async def run(self, args):
        return Ok(await api.parallel([branch(n) for n in range(4)], limit=1))

    env.hold(work)
    h = env.start(flow(run))
    for n in range(4):
        env.complete(work, n)
    assert h.result() == [0, 1, 2, 3]


def test_limit_and_cancel(env):
    """TX-130: what waits for its turn never starts."""

    async def branch(n):
        return await work(n)

    async def run(self, args):
        await api.parallel([branch(n) for n in range(4)], limit=2)

    env.hold(work)
    h = env.start(flow(run))
    h.cancel()
    assert h.status == "cancelled"
    assert produced_kinds(env).count("ScheduleActivity") == produced_kinds(env).count("CancelActivity") == 2


@in_memory
@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_bad_limit_is_refused(env, limit):
    async def run(self, args):
        with pytest.raises(errors.WorkflowDefinitionError):
            api.parallel([], limit=limit)
        return Ok("refused")

    assert env.start(flow(run)).result() == "refused"


@in_memory
@pytest.mark.parametrize("branches", ["ab", {"a": 1}, 5, None, [5], [None]])
def test_bad_branches_are_refused(env, branches):
    async def run(self, args):
        with pytest.raises(errors.WorkflowDefinitionError):
            api.parallel(branches)
        return Ok("refused")

    assert env.start(flow(run)).result() == "refused"


def test_caller_goes_on_only_when_every_branch_is_done(env):
    """TX-010 TX-119."""
    env.hold(work)
    env.hold(other)
    h = env.start(once(lambda: api.parallel([work(1), other(2)])))
    env.complete(work, 1)
    assert h.status == "running"
    env.fail(other, ValueError("x"))
    assert h.status == "failed", "Err of an exception is no payload: the result cannot be encoded"


def test_result_of_a_large_fan_out(env):
    """TX-126: unique numbers across all branches."""
    h = env.start(once(lambda: api.parallel([partial(work, n) for n in range(60)])))
    assert h.result() == list(range(60))
    assert [c.seq for c in produced(env) if c.kind == "ScheduleActivity"] == list(range(1, 61))


def test_activity_itself_may_be_a_branch(env):
    """A zero-argument callable that returns an awaitable."""

    @activity
    def nothing():
        return "called"

    assert env.start(once(lambda: api.parallel([nothing, nothing]))).result() == ["called", "called"]
