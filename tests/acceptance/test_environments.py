"""Environments do what workers do: attempts, crashes, the end of a run, and the handle."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import async_to_sync

from temporalex_django import Ok, Reply, RetryPolicy, Stop, activity, activity_context, api, errors
from tests.support.hosts import DATABASE
from tests.support.runs import flow, once, work

ONCE = RetryPolicy(max_attempts=1)


@activity(atomic=True)
def book(name):
    from django.contrib.auth.models import Group

    Group.objects.create(name=f"{name} in attempt {activity_context().attempt}")
    return activity_context().attempt


def booked():
    from django.contrib.auth.models import Group

    return list(Group.objects.values_list("name", flat=True))


@pytest.mark.hosts(*DATABASE)
@pytest.mark.parametrize("point", ["before_activity", "after_activity"])
def test_what_an_atomic_activity_wrote_goes_with_its_worker(env, point):
    """Nothing happened; it runs again, as the same attempt."""
    env.crash_at(point, times=2)
    h = env.start(once(lambda: book("a room")))
    assert (env.crashes, h.result(), booked()) == ([point] * 2, 1, ["a room in attempt 1"])


@pytest.mark.hosts(*DATABASE)
def test_an_atomic_activity_that_may_run_once_runs_again_when_nothing_happened(env):
    env.crash_at("after_activity")
    h = env.start(once(lambda: book.options(retry=ONCE)("a room")))
    assert (h.result(), booked()) == (1, ["a room in attempt 1"])


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_whatever_an_activity_raises_fails_its_attempt(env, error, kind):
    """As in a worker: the policy decides."""
    attempts = []

    def plain(value):
        attempts.append(activity_context().attempt)
        if len(attempts) == 1:
            raise error("stop")
        return value

    async def later(value):
        return plain(value)

    env.mock(work, plain if kind == "plain" else later)
    h = env.start(once(lambda: work(1)))
    assert attempts == [1]
    env.advance(60)
    assert (h.result(), attempts) == (1, [1, 2])


@pytest.mark.parametrize("kind", ["external", "atomic"])
def test_whatever_it_raises_last_is_what_the_workflow_gets(env, kind):
    def leave(_):
        raise SystemExit("stop")

    act = work if kind == "external" else book
    env.mock(act, leave)
    with pytest.raises(errors.WorkflowFailed, match="SystemExit: stop"):
        env.start(once(lambda: act.options(retry=ONCE)(1))).result()


@pytest.mark.parametrize("how", ["terminate", "timeout", "cancel"])
def test_the_end_of_a_run_answers_updates_behind_a_busy_handler(env, how):
    """TX-082: those that are under way, and those that wait for their turn."""

    async def slow(_, state):
        await work()
        return Stop(state)

    handlers = {"slow": slow, "next": lambda n, s: Reply(n, s)}
    env.hold(work)
    h = env.start(once(lambda: api.phase(0, update=handlers), run_timeout=60))
    under_way, waiting = h.update_async("slow"), h.update_async("next", 1)
    assert not waiting.done
    {"terminate": h.terminate, "timeout": lambda: env.advance(60), "cancel": h.cancel}[how]()
    assert under_way.done and waiting.done
    with pytest.raises(errors.UpdateFailed if how == "cancel" else errors.TemporalexError):
        under_way.result()
    with pytest.raises(errors.UpdateRejected):
        waiting.result()


def test_the_async_twins(env):
    """The same from async code, in an async test of Django's."""

    async def run(self, args):
        api.publish_state({"open": True})
        return Ok(
            await api.phase(0, update={"add": lambda n, s: Reply(s + n, s + n)}, signal={"end": lambda _, s: Stop(s)})
        )

    h, other = env.start(flow(run)), env.start(flow(run))

    async def use():
        assert await h.aupdate("add", 2, timeout=5, mode="worker") == 2
        await h.asignal("end", by=None)
        await other.acancel("why")
        described = await h.adescribe()
        return described["status"], await h.aresult(), [e.kind for e in await h.ahistory()][-1]

    assert async_to_sync(use)() == ("completed", 2, "WorkflowCompleted")
    assert other.status == "cancelled"


def test_handles_of_one_chain_are_equal(env):
    h = env.start(once(lambda: api.wait_for_signal("go")), id="one")
    assert h == env.handle("one") and len({h, env.handle("one")}) == 1
    assert h != env.start(once(lambda: api.wait_for_signal("go")), id="two")


@pytest.mark.parametrize("options", [{"timeout": -1}, {"timeout": "soon"}, {"mode": "quick"}])
def test_what_a_handle_cannot_wait_for_is_refused(env, options):
    h = env.start(once(lambda: api.phase(0, update={"add": lambda n, s: Reply(n, s)})))
    with pytest.raises((ValueError, TypeError)):
        h.update("add", 1, **options)
    assert "UpdateAccepted" not in [event.kind for event in h.history()]
