"""``env.crash_at``: whatever point a worker dies at, the run ends as it would have."""

from __future__ import annotations

import pytest

from temporalex_django import Ok, Reply, RetryPolicy, Stop, activity_context, api
from temporalex_django.testing import WorkflowEnvironment
from temporalex_django.testing.environment_base import CRASH_POINTS
from tests.support.runs import flow, kinds, work


async def run(self, args):
    first = await work(1)
    state = await api.phase(
        [first], update={"add": lambda n, s: Reply(len(s), [*s, n])}, signal={"end": lambda _, s: Stop(s)}
    )
    await api.sleep(10)
    return Ok([*state, await work(2)])


def played(env):
    ran = []

    def stand_in(value):
        ran.append((value, activity_context().attempt))
        return value

    env.mock(work, stand_in)
    h = env.start(flow(run))
    h.update("add", "x")
    h.signal("end")
    env.advance(10)
    return h, ran


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_run_ends_the_same_wherever_its_worker_dies(env, point, times):
    """Nothing is lost, and of what is committed nothing is done twice."""
    env.crash_at(point, times=times)
    h, ran = played(env)
    assert env.crashes == [point] * min(times, len(env.crashes)) and env.crashes
    assert h.result() == [1, "x", 2]
    undisturbed, _ = played(WorkflowEnvironment())
    assert kinds(h) == kinds(undisturbed)
    if point == "after_activity":
        assert ran[: times + 1] == [(1, attempt) for attempt in range(1, times + 2)][: len(ran)] or times > 1
        assert len(ran) == 2 + times  # each crash lost a result, so the activity ran again
    elif point == "before_activity":
        assert ran[0] == (1, 1 + times)
    else:
        assert ran == [(1, 1), (2, 1)]


def test_at_most_once_is_at_most_once(env):
    env.crash_at("after_activity")
    ran = []
    env.mock(work, lambda value: ran.append(value))

    async def once(self, args):
        return Ok(await work.options(retry=RetryPolicy(max_attempts=1))(1))

    h = env.start(flow(once))
    assert h.status == "failed" and ran == [1]
    assert [e.attributes["type"] for e in h.history() if e.kind == "ActivityFailed"] == ["WorkerLost"]


def test_what_a_lost_turn_had_worked_out_is_gone(env):
    env.hold(work)
    env.crash_at("before_turn")
    h = env.start(flow(run))
    assert env.crashes == ["before_turn"]
    assert [e.number for e in h.history()] == [1, 2, 3]
    assert len(env.commands) == 1
    env.complete(work, 1)
    h.signal("end")
    h.terminate()


def test_an_unknown_point_is_refused(env):
    with pytest.raises(ValueError, match="the points are before_turn"):
        env.crash_at("lunch")
