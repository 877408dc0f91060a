"""``execution_timeout`` and ``run_timeout``; ``signal_with_start`` of an environment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from temporalex_django import ContinueAsNew, Ok, Workflow, api, errors
from tests.support.runs import events, flow, kinds, once, work


async def wait(self, args):
    return Ok(await api.wait_for_signal("go"))


@pytest.mark.parametrize("name", ["execution_timeout", "run_timeout"])
def test_run_times_out(env, name):
    """WorkflowTimedOut; none of its code runs any more."""
    ran = []

    async def run(self, args):
        try:
            await work(1)
        finally:
            ran.append(1)

    env.hold(work)
    h = env.start(flow(run, **{name: timedelta(seconds=60)}))
    env.advance(59)
    assert h.status == "running"
    env.advance(1)
    assert h.status == "timed_out"
    assert events(h, "WorkflowTimedOut") == [{"timeout": name}]
    assert h.history()[-1].at.isoformat() == "2026-01-01T00:01:00+00:00"
    with pytest.raises(errors.WorkflowTimedOut, match=name):
        h.result()
    with pytest.raises(errors.WorkflowClosed):
        h.signal("go")
    with pytest.raises(LookupError):
        env.complete(work)
    assert ran == []


def test_shorter_one_counts(env):
    h = env.start(flow(wait, execution_timeout=60, run_timeout=30))
    env.advance(30)
    assert events(h, "WorkflowTimedOut") == [{"timeout": "run_timeout"}]
    h = env.start(flow(wait, execution_timeout=20, run_timeout=30))
    env.advance(20)
    assert events(h, "WorkflowTimedOut") == [{"timeout": "execution_timeout"}]


def test_run_that_ends_in_time_does(env):
    h = env.start(flow(wait, execution_timeout=60))
    h.signal("go", 1)
    env.advance(120)
    assert h.result() == 1


class Loop(Workflow):
    execution_timeout = 100
    run_timeout = 30

    async def run(self, args):
        if args["naps"] == 0:
            return Ok(await api.wait_for_signal("go"))
        await api.sleep(20)
        return ContinueAsNew({"naps": args["naps"] - 1})


def test_each_run_has_its_own_and_the_chain_one(env):
    """Continue-as-new: the run's timeout begins again, the execution's does not."""
    patient, late = env.start(Loop, {"naps": 2}, id="patient"), env.start(Loop, {"naps": 9}, id="late")
    env.advance(69)
    assert patient.status == "waiting"
    env.advance(1)
    assert events(patient, "WorkflowTimedOut") == [{"timeout": "run_timeout"}]
    env.advance(29)
    assert late.status == "waiting"
    env.advance(1)
    assert events(late, "WorkflowTimedOut") == [{"timeout": "execution_timeout"}]
    assert len(late.run_ids) == 5


def test_blocked_run_times_out(env):
    async def run(self, args):
        raise MemoryError

    h = env.start(flow(run, run_timeout=10))
    assert h.blocked is not None
    env.advance(10)
    assert h.status == "timed_out"
    assert h.blocked is None


def test_child_that_times_out_fails_for_its_parent(env):
    """TX-216; its own children get what their parent_close says."""

    class Leaf(Workflow):
        run = wait

    class Sluggish(Workflow):
        run_timeout = 5

        async def run(self, args):
            return Ok(await api.child(Leaf, id="leaf"))

    async def run(self, args):
        try:
            await api.child(Sluggish, id="slow")
        except errors.ChildWorkflowFailure as exc:
            return Ok([exc.type, exc.cause])

    h = env.start(flow(run))
    env.advance(5)
    kind, cause = h.result()
    assert kind == "WorkflowTimedOut"
    assert "run_timeout" in cause
    assert env.handle("leaf").status == "terminated"


def test_waiting_update_is_answered(env):
    async def run(self, args):
        async def handler(_, state):
            await work(1)

        await api.phase(0, update={"go": handler})

    env.hold(work)
    h = env.start(flow(run, run_timeout=10))
    first, second = h.update_async("go"), h.update_async("go")
    env.advance(10)
    assert first.done
    assert second.done
    with pytest.raises(errors.WorkflowClosed):
        second.result()


# -- signal_with_start


def test_starts_and_signals_in_one_activation(env):
    cls = flow(wait)
    with pytest.raises(errors.PayloadError, match="no search attribute 'x' is declared"):
        env.signal_with_start(cls, "go", id="s", search_attributes={"x": 1})
    h = env.signal_with_start(cls, "go", {"a": 1}, None, id="s", tags=["t"])
    assert h.result() == {"a": 1}
    assert [one.id for one in env.list(cls, tag="t")] == ["s"] and env.list(cls, tag="u") == []
    assert h.history()[-1].activation == 1
    assert kinds(h) == ["SignalReceived", "WorkflowCompleted"]


def test_signals_the_open_run(env):
    async def run(self, args):
        return Ok([args, await api.wait_for_signal("go"), await api.wait_for_signal("go")])

    cls = flow(run)
    first = env.signal_with_start(cls, "go", 1, "first", id="s")
    second = env.signal_with_start(cls, "go", 2, "second", id="s")
    assert first.run_id == second.run_id
    assert first.result() == ["first", 1, 2]
    third = env.signal_with_start(cls, "go", 3, "third", id="s")
    assert third.run_id != first.run_id
    third.signal("go", 4)
    assert third.result() == ["third", 3, 4]


def test_id_of_another_class(env):
    env.start(flow(wait, name="One"), id="s")
    with pytest.raises(errors.AlreadyRunning):
        env.signal_with_start(once(lambda: api.sleep(1), name="Two"), "go", id="s")


def test_inside_a_batch(env):
    with env.batch():
        h = env.signal_with_start(flow(wait), "other", id="s")
        h.signal("go", 1)
    assert h.result() == 1
    assert h.history()[-1].activation == 1
