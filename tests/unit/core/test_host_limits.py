"""Limits of hosts that answer at once and bound what is pending: ``Activation.admit_updates`` and ``max_pending``."""

from __future__ import annotations

import functools
from datetime import UTC, datetime

import pytest

from temporalex_django import Async, ContinueAsNew, NoReply, Ok, Reply, Stop, api, errors, update
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.core.history.events import Job
from temporalex_django.testing import WorkflowEnvironment
from tests.support import hosts
from tests.support.runs import events, flow, kinds, once, other, produced_kinds, work

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEEN = []


def executor_of(cls):
    return Executor(cls.definition, RunInfo(workflow=cls.name, id="limits", run_id="r", version=1))


async def slow_add(args, state):
    await work(args)
    return Reply(f"added {args}", [*state, args])


def at_most_three(args, state):
    SEEN.append((args, list(state)))
    if len(state) >= 3:
        raise ValueError("full")


async def run(self, args):
    final = await api.phase(
        [],
        update={"add": update(slow_add, validator=at_most_three), "stop": lambda _, s: Stop(s, "stopping")},
        signal={"note": lambda n, s: NoReply([*s, n]), "stop_all": lambda _, s: Stop(s)},
    )
    return Ok(final)


@pytest.fixture(params=[False, True], ids=["cached", "evicted"])
def env(request):
    SEEN.clear()
    environment = WorkflowEnvironment(evict=request.param, admit_updates=True)
    environment.hold(work)
    yield environment
    hosts.replay_all(environment, list(environment.storage.chains))


def test_an_update_behind_a_busy_handler_is_accepted_at_once_and_runs_in_its_turn(env):
    h = env.start(flow(run))
    first, second = h.update_async("add", 1), h.update_async("add", 2)
    assert (first.accepted, second.accepted, second.done) == (True, True, False)
    assert kinds(h) == ["UpdateAccepted", "ActivityScheduled", "UpdateAccepted"]
    assert SEEN == [(1, []), (2, [])]  # by the state of that moment, not of its turn
    env.complete(work)
    assert first.result() == "added 1" and not second.done
    env.complete(work)
    assert second.result() == "added 2"
    assert h.update("stop") == "stopping"
    assert h.result() == [1, 2]


def test_a_refused_one_is_refused_at_once_and_leaves_no_trace(env):
    h = env.start(flow(run))
    for n in range(3):
        h.signal("note", n)
    before = len(h.history())
    late = h.update_async("add", 9)
    assert late.done and not late.accepted
    assert len(h.history()) == before
    with pytest.raises(errors.UpdateRejected, match="full"):
        late.result()
    h.update("stop")


def test_a_name_that_the_phase_does_not_take_is_refused_while_it_is_busy(env):
    h = env.start(flow(run))
    h.update_async("add", 1)
    stranger = h.update_async("subtract", 1)
    assert stranger.done and not stranger.accepted
    env.complete(work)
    h.update("stop")


def test_queued_ones_fail_when_the_phase_ends(env):
    async def stopping(self, args):
        async def stop_slowly(_, state):
            await work("last")
            return Stop(state)

        state = await api.phase(0, signal={"stop": stop_slowly}, update={"inc": lambda n, s: Reply(s + n, s + n)})
        return Ok(state)

    h = env.start(flow(stopping))
    h.signal("stop")
    queued = h.update_async("inc", 5)
    assert queued.accepted and not queued.done
    env.complete(work)
    assert h.result() == 0
    with pytest.raises(errors.UpdateFailed, match="'inc'"):
        queued.result()
    assert kinds(h)[-2:] == ["UpdateFailed", "WorkflowCompleted"]


def test_order_with_signals_is_kept(env):
    h = env.start(flow(run))
    with env.batch():
        h.update_async("add", "a")
        h.signal("note", "b")
        h.update_async("add", "c")
    env.complete(work)
    env.complete(work)
    h.signal("stop_all")
    assert h.result() == ["a", "b", "c"]


def test_the_flag_is_recorded_so_a_plain_environment_replays_it(env):
    h = env.start(flow(run))
    h.update_async("add", 1)
    h.update_async("add", 2)
    assert all(event["admit_updates"] is True for event in events(h, "ActivationStarted"))
    WorkflowEnvironment().replay_history(flow(run), h.history())
    h.terminate()


def test_async_handlers_leave_nothing_to_queue(env):
    async def asynchronous(self, args):
        state = await api.phase(
            0, update={"go": lambda n, s: Async(functools.partial(work, n), s)}, signal={"end": lambda _, s: Stop(s)}
        )
        return Ok(state)

    h = env.start(flow(asynchronous))
    both = [h.update_async("go", n) for n in (1, 2)]
    assert kinds(h).count("ActivityScheduled") == 2
    env.complete(work, "x")
    env.complete(work, "y")
    assert [u.result() for u in both] == ["x", "y"]
    h.signal("end")


class TestMaxPending:
    @pytest.fixture(params=[False, True], ids=["cached", "evicted"])
    def env(self, request):
        environment = WorkflowEnvironment(evict=request.param, max_pending=2)
        environment.hold(work)
        yield environment
        hosts.replay_all(environment, list(environment.storage.chains))

    def test_further_calls_are_kept_back_and_go_out_in_call_order(self, env):
        async def fan(self, args):
            return Ok(await api.parallel([functools.partial(work, n) for n in range(5)]))

        h = env.start(flow(fan))
        assert [c.seq for c in env.commands[-1]] == [1, 2]
        env.complete(work, "a")
        assert [c.seq for c in env.commands[-1]] == [3]
        env.complete(work, "b")
        env.complete(work, "c")
        env.complete(work, "d")
        assert kinds(h).count("ActivityScheduled") == 5
        env.complete(work, "e")
        assert h.result() == ["a", "b", "c", "d", "e"]
        assert produced_kinds(env) == ["ScheduleActivity"] * 5 + ["CompleteWorkflow"]

    def test_timers_do_not_count(self, env):
        async def timers(self, args):
            waits = [functools.partial(api.sleep, 10) for _ in range(5)]
            return Ok(len(await api.parallel([*waits, work, work])))

        h = env.start(flow(timers))
        assert produced_kinds(env) == ["StartTimer"] * 5 + ["ScheduleActivity"] * 2
        env.advance(10)
        env.complete(work)
        env.complete(work)
        assert h.result() == 7

    def test_a_call_that_was_kept_back_and_is_cancelled_is_never_made(self, env):
        async def raced(self, args):
            index, _ = await api.race(
                functools.partial(api.sleep, 5),
                lambda: api.parallel([functools.partial(work, n) for n in range(4)]),
            )
            return Ok([index, await other("after")])

        h = env.start(flow(raced))
        env.advance(5)
        assert h.result() == [0, "after"]
        scheduled = [e["seq"] for e in events(h, "ActivityScheduled")]
        assert scheduled == [2, 3, 6]
        assert [e["seq"] for e in events(h, "ActivityCancelled")] == [2, 3]

    def test_children_and_external_messages_count_too(self, env):
        async def nothing(self, args):
            await api.wait_for_signal("go")
            return Ok(args)

        Child = flow(nothing)

        async def parent(self, args):
            starts = [functools.partial(api.child, Child, n, id=f"kid-{n}") for n in range(3)]
            return Ok(await api.parallel(starts))

        h = env.start(flow(parent, name="Parent"))
        assert len(events(h, "ChildStarted")) == 2
        env.handle("kid-0").signal("go")
        assert len(events(h, "ChildStarted")) == 3
        env.handle("kid-1").signal("go")
        env.handle("kid-2").signal("go")
        assert h.result() == [0, 1, 2]


def test_a_child_that_is_cancelled_leaves_nothing_pending():
    """The command needs no answer, so that it takes no place among the calls that a host bounds."""
    Kid = once(work, name="limits.Kid")

    async def run(self, args):
        await api.race(api.child(Kid, id="kid"), api.wait_for_signal("go"))
        return Ok(await api.parallel([functools.partial(work, n) for n in range(2)]))

    executor = executor_of(flow(run))
    executor.activate(Activation(now=NOW, start={"args": None, "seed": 1}, max_pending=1))
    go = Job("SignalReceived", {"name": "go", "payload": None})
    completion = executor.activate(Activation(now=NOW, jobs=(go,), max_pending=1))
    assert [(c.kind, c.seq) for c in completion.commands] == [("CancelChild", 2), ("ScheduleActivity", 3)]
    assert completion.commands[0].event_kind == "ExternalCancelSent"
    assert completion.commands[0].attributes == {"id": "kid", "child": 1}
    done = [Job("ActivityCompleted", {"seq": seq, "result": seq}) for seq in (3, 4)]
    assert [c.seq for c in executor.activate(Activation(now=NOW, jobs=(done[0],), max_pending=1)).commands] == [4]
    assert executor.activate(Activation(now=NOW, jobs=(done[1],))).closed == "CompleteWorkflow"


def test_a_host_may_confirm_that_a_child_was_asked_to_cancel():
    Kid = once(work, name="limits.Other")
    executor = executor_of(once(lambda: api.race(api.child(Kid, id="kid"), work(1))))
    executor.activate(Activation(now=NOW, start={"args": None, "seed": 1}))
    completion = executor.activate(Activation(now=NOW, jobs=(Job("ActivityCompleted", {"seq": 2, "result": 1}),)))
    assert [c.kind for c in completion.commands] == ["CancelChild", "CompleteWorkflow"]
    confirmed = Job("ExternalDelivered", {"seq": 3})
    assert executor.activate(Activation(now=NOW, jobs=(confirmed,))).jobs == [confirmed]
    assert executor.activate(Activation(now=NOW, jobs=(confirmed,))).jobs == []


# -- messages behind the close -----------------------------------------------------------------------------------------


async def goes_once(self, args):
    await api.wait_for_signal("go")
    return ContinueAsNew(1) if args else Ok()


ANNA = {"sender": {"key": "1", "name": "anna"}}
BEHIND = (
    Job("SignalReceived", {"name": "early", "payload": 0}),
    Job("SignalReceived", {"name": "go", "payload": 1}),
    Job("SignalReceived", {"name": "late", "payload": 2, "id": "s", **ANNA}),
    Job("UpdateRequested", {"id": "u", "name": "add", "args": None, "after": None}),
    Job("ResumeRequested", {"id": "q", "request": {"event": "yes"}}),
)
REJECTED = [
    ("u", "the run was closed before the update 'add' was delivered"),
    ("q", "the run was closed before the resume 'yes' was delivered"),
]


def closes(args, *jobs, **options):
    start = {"args": args, "seed": 1}
    completion = executor_of(flow(goes_once)).activate(Activation(now=NOW, start=start, jobs=jobs or BEHIND, **options))
    return completion, [(update_id, str(error)) for update_id, error in completion.rejected]


@pytest.mark.parametrize("consumes_all", [False, True])
def test_updates_behind_the_end_are_rejected_with_it(consumes_all):
    completion, rejected = closes(None, consumes_all=consumes_all)
    assert (completion.closed, completion.unapplied, completion.carried) == ("CompleteWorkflow", 3, None)
    assert rejected == REJECTED
    assert {type(error) for _, error in completion.rejected} == {errors.WorkflowClosed}
    assert completion.commands[-1].attributes == {"result": None, "never_consumed": ["early"]}


def test_a_host_with_an_inbox_keeps_there_what_comes_behind_a_continue_as_new():
    completion, rejected = closes(True)
    assert (completion.closed, completion.unapplied, rejected) == ("ContinueAsNew", 3, [])
    assert completion.carried == {"signals": [{"name": "early", "payload": 0}], "cancel": None}


def test_a_host_that_has_consumed_them_carries_them_on():
    completion, rejected = closes(True, consumes_all=True)
    assert (completion.closed, completion.unapplied, rejected) == ("ContinueAsNew", 3, REJECTED)
    late = {"name": "late", "payload": 2, "id": "s", **ANNA}
    assert completion.carried["signals"] == [{"name": "early", "payload": 0}, late]
    signals = [Job("SignalReceived", signal) for signal in completion.carried["signals"]]
    following = executor_of(once(lambda: api.wait_for_signal("late")))
    start = {"args": 1, "seed": 1, "carried": len(signals)}
    assert following.activate(Activation(now=NOW, start=start, jobs=tuple(signals))).commands[0].attributes == {
        "result": 2,
        "never_consumed": ["early"],
    }


def test_an_accepted_update_behind_the_close_is_named():
    go = Job("SignalReceived", {"name": "go", "payload": 1})
    late = Job("UpdateRequested", {"id": "u", "name": "add", "args": None, "after": None, "accepted": True})
    with pytest.raises(errors.NondeterminismError, match="accepted the update 'add'"):
        closes(None, go, late)
