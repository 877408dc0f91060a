"""Seams of the core that runs rarely touch: what a host, changed code or an interrupted process brings there."""

from __future__ import annotations

import functools
import logging
from datetime import UTC, datetime

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, api, errors, update
from temporalex_django.core import current, failures
from temporalex_django.core.executor import Executor
from temporalex_django.core.history import replay
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.core.history.events import HistoryEvent, Job
from temporalex_django.core.messages import phase
from temporalex_django.core.units import conditions, scheduler
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow, kinds, once, other, produced_kinds, work

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def executor_of(cls):
    return Executor(cls.definition, RunInfo(workflow=cls.name, id="seam", run_id="r", version=1))


def first(*jobs, **options):
    return Activation(now=NOW, start={"args": None, "seed": 1}, jobs=jobs, **options)


# -- what only a host does ---------------------------------------------------------------------------------------------


def test_an_update_that_comes_again_to_a_run_which_ends_is_told_that_it_is_closed():

    async def run(self, args):
        return Ok()

    job = Job("UpdateRequested", {"id": "u", "name": "add", "args": None, "after": 0})
    completion = executor_of(flow(run)).activate(first(job))
    assert completion.closed == "CompleteWorkflow"
    assert [(update_id, type(error)) for update_id, error in completion.rejected] == [("u", errors.WorkflowClosed)]


def test_a_resume_of_what_is_no_graph_is_refused():
    completion = executor_of(once(functools.partial(api.wait_for_signal, "go"))).activate(
        first(Job("ResumeRequested", {"id": "u", "request": {}}))
    )
    assert [(i, type(e)) for i, e in completion.rejected] == [("u", errors.ResumeRefused)] and not completion.jobs


def test_a_limit_that_is_lifted_lets_everything_go():
    fan = once(lambda: api.parallel([functools.partial(work, n) for n in range(4)]))
    executor = executor_of(fan)
    assert [c.seq for c in executor.activate(first(max_pending=1)).commands] == [1]
    job = Job("ActivityCompleted", {"seq": 1, "result": "a"})
    assert [c.seq for c in executor.activate(Activation(now=NOW, jobs=(job,))).commands] == [2, 3, 4]


@pytest.mark.parametrize("where", ["run", "handler"])
def test_an_interrupt_from_the_keyboard_is_for_the_process(where):
    def interrupt(*_):
        raise KeyboardInterrupt

    async def run(self, args):
        if where == "run":
            interrupt()
        return Ok(await api.phase(0, signal={"go": interrupt}))

    with pytest.raises(KeyboardInterrupt):
        executor_of(flow(run)).activate(first(Job("SignalReceived", {"name": "go", "payload": None})))


def test_engine_code_between_two_units_is_no_place_for_a_primitive():
    """TX-177."""
    with current.use_runtime(executor_of(once(work))), pytest.raises(errors.OutsideWorkflow, match="outside a unit"):
        api.random()


# -- messages ----------------------------------------------------------------------------------------------------------


def test_a_signal_that_waited_behind_a_busy_handler_goes_to_who_waits_when_the_phase_leaves(env):
    env.hold(other)

    async def waits():
        return await work(await api.wait_for_signal("a"))

    async def stops(_, state):
        await other()
        return Stop(state)

    async def run(self, args):
        handlers = {"a": lambda n, s: NoReply(s + n), "begin": lambda _, s: Async(waits, s), "stop": stops}
        return Ok(await api.phase(0, signal=handlers))

    h = env.start(flow(run))
    h.signal("begin")
    h.signal("stop")
    h.signal("a", 7)
    assert "ActivityCompleted" not in kinds(h), "the busy phase has a handler for it: nobody else may take it"
    env.complete(other)
    assert h.result() == 0, "the handler never saw it"
    assert [e.attributes["args"] for e in h.history() if e.kind == "ActivityScheduled"] == [[], [7]]


def test_only_what_the_busy_handler_started_may_take_what_the_phase_handles(env):
    async def background():
        return await api.wait_for_signal("a")

    async def busy(_, state):
        both = await api.parallel([functools.partial(api.wait_for_signal, "a")])
        return Stop([*state, *both])

    async def run(self, args):
        handlers = {"a": lambda n, s: NoReply([*s, n]), "begin": lambda _, s: Async(background, s), "busy": busy}
        return Ok(await api.phase([], signal=handlers))

    h = env.start(flow(run))
    h.signal("begin")
    h.signal("busy")
    h.signal("a", 1)
    assert h.status != "completed"
    h.cancel()
    assert h.status == "cancelled"
    assert [e.attributes["payload"] for e in h.history() if e.kind == "SignalReceived"] == [None, None, 1]


def test_a_recorded_update_waits_for_the_phase_that_changed_code_opens_later():
    """TX-072: an accepted update is not lost on replay because its phase opens a little later."""

    async def early(self, args):
        ended = await api.phase(0, update={"add": lambda n, s: Reply(n, s + n)}, signal={"go": lambda _, s: Stop(s)})
        return Ok(ended)

    async def late(self, args):
        await api.wait_for_signal("go")
        return Ok(await api.phase(0, update={"add": lambda n, s: Stop(s + n, n)}))

    env = WorkflowEnvironment()
    with env.batch():
        h = env.start(flow(early))
        h.update_async("add", 2, id="u")
        h.signal("go")
    assert kinds(h) == ["SignalReceived", "UpdateAccepted", "UpdateCompleted", "WorkflowCompleted"]
    env.replay_history(flow(late), h.history())


def test_a_recorded_update_whose_handler_is_gone_is_reported():
    """TX-178."""

    async def old(self, args):
        return Ok(await api.phase(0, update={"add": lambda n, s: Reply(n, s + n)}, signal={"a": lambda _, s: Stop(s)}))

    async def new(self, args):
        return Ok(await api.phase(0, update={"plus": lambda n, s: Reply(n, s + n)}, signal={"a": lambda _, s: Stop(s)}))

    env = WorkflowEnvironment()
    h = env.start(flow(old))
    h.update("add", 2, id="u")
    with pytest.raises(errors.NondeterminismError, match="recorded UpdateAccepted, id u, produced nothing"):
        env.replay_history(flow(new), h.history())


# -- units -------------------------------------------------------------------------------------------------------------


class Foreign:
    def __await__(self):
        yield "not an IVar"


def test_what_is_awaited_must_be_of_the_workflow(env):
    """ST-004: the unit sees it where it waits, and may go on."""

    async def run(self, args):
        try:
            await Foreign()
        except errors.DeterminismViolation as exc:
            return Ok([str(exc), await work("after")])

    message, after = env.start(flow(run)).result()
    assert (
        "run awaited an object of the type str, which does not belong to this workflow" in message and after == "after"
    )


def test_a_control_exception_that_a_branch_raises_itself_ends_the_parallel_part(env):
    """A cancel is nobody's result."""

    async def run(self, args):
        try:
            await api.sleep(10)
        except errors.Cancelled as exc:
            caught = exc

        async def raises():
            raise caught

        await api.parallel([raises, work])
        return Ok("not reached")

    h = env.start(flow(run))
    h.cancel()
    assert h.status == "cancelled"


def test_races_that_end_together_are_decided_together(env):
    """What the winner of one race does next comes too late to change who won another."""
    env.hold(work)
    env.hold(other)

    async def run(self, args):
        told = []

        async def first():
            await api.race(work, functools.partial(api.sleep, 99))
            told.append(True)

        async def second():
            return await api.race(functools.partial(api.wait_condition, lambda: bool(told)), other)

        return Ok((await api.parallel([first, second]))[1])

    h = env.start(flow(run))
    with env.batch():
        env.complete(work)
        env.complete(other, "other")
    assert h.result() == [1, "other"]


def test_a_state_that_update_state_was_given_cannot_be_changed_afterwards(env):
    """TX-110."""

    async def background():
        kept = ["right"]
        await api.update_state(lambda _: (None, kept))
        kept.append("wrong")

    async def run(self, args):
        handlers = {"go": lambda _, s: Async(background, s), "stop": lambda _, s: Stop(s)}
        return Ok(await api.phase([], signal=handlers))

    h = env.start(flow(run))
    h.signal("go")
    h.signal("stop")
    assert h.result() == ["right"]


def test_branches_that_a_limit_keeps_waiting_never_start_after_a_cancel(env):
    env.hold(work)

    async def run(self, args):
        try:
            await api.parallel([functools.partial(work, n) for n in range(4)], limit=2)
        except errors.Cancelled:
            return Ok(await other("after"))

    h = env.start(flow(run))
    h.cancel()
    assert h.result() == "after"
    assert produced_kinds(env).count("ScheduleActivity") == 3


# -- builtins, which do not say what they take -------------------------------------------------------------------------


def test_builtins_serve_as_predicates_and_handlers(env):
    bare = functools.partial(max, 1, 0)
    assert not conditions.takes_state(bare)
    assert phase.accepts_arguments(max, 2) and phase.handler_types(max)

    async def run(self, args):
        return Ok(await api.wait_condition(bare))

    assert env.start(flow(run)).result() is True


# -- failures ----------------------------------------------------------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_without_words_still_fails_its_run(env):
    async def run(self, args):
        raise Unspeakable

    with pytest.raises(errors.WorkflowFailed, match="Unspeakable: <no message: RuntimeError in __str__>"):
        env.start(flow(run)).result()


def test_a_long_traceback_keeps_its_ends(env):
    def fall(depth):
        if depth == 0:
            raise ValueError("at the bottom")
        other_way(depth)

    def other_way(depth):
        fall(depth - 1)

    async def run(self, args):
        fall(60)

    with pytest.raises(errors.WorkflowFailed) as caught:
        env.start(flow(run)).result()
    lines = caught.value.traceback.splitlines()
    assert len(lines) == 46 and lines[0].startswith("Traceback") and lines[-1] == "ValueError: at the bottom"


def test_what_a_parent_is_told_of_a_child_that_failed_or_timed_out():
    assert failures.child_result("timed_out", {"timeout": "run_timeout"})[1]["message"] == "it exceeded its run_timeout"


# -- replay and eviction -----------------------------------------------------------------------------------------------


def test_a_replay_runs_in_what_it_is_given():
    ran = []
    h = WorkflowEnvironment().start(once(work))
    replay.replay(once(work).definition, h.history(), run=lambda call: ran.append(call()))
    assert ran == [None]


def test_where_coroutines_cannot_be_dropped_silently_they_are_closed_and_may_do_nothing(monkeypatch):
    """ST-096: ``finally`` blocks run there, and no primitive acts for a run that is gone."""
    monkeypatch.setattr(scheduler, "SAFE", False)
    seen = []

    async def run(self, args):
        try:
            await api.sleep(10)
        finally:
            try:
                api.random()
            except errors.NestingError as exc:
                seen.append(str(exc))
            raise ValueError("nobody hears this")

    executor = executor_of(flow(run))
    executor.activate(first())
    executor.evict()
    assert len(seen) == 1 and "workflow that is being evicted" in seen[0]


def test_an_interpreter_of_another_kind_is_not_trusted(monkeypatch):
    monkeypatch.setattr(scheduler.ctypes, "sizeof", lambda _: 4)
    assert scheduler._can_mark_finalized() is False


def test_a_circle_of_awaits_is_looked_at_so_often_and_no_more():
    class Circle:
        @property
        def cr_await(self):
            return self

    assert list(scheduler.suspended_parts(Circle())) == []


def test_an_evicted_run_does_not_run_its_clean_up_however_deep(caplog):
    """ST-096: in ``run``, in what it awaits, in a branch, and in a coroutine given as a branch and not started."""
    seen = []

    async def inner(name):
        try:
            await api.sleep(10)
        finally:
            seen.append(name)

    async def unstarted():
        seen.append("unstarted")

    async def middle():
        try:
            await inner("inner")
        finally:
            seen.append("middle")

    async def run(self, args):
        try:
            await api.parallel([middle, functools.partial(inner, "branch"), unstarted()], limit=2)
        finally:
            seen.append("run")

    executor = executor_of(flow(run))
    executor.activate(first())
    with caplog.at_level(logging.WARNING):
        del executor
    assert seen == []


def test_update_validators_of_the_code_at_hand_are_not_asked_about_the_past():
    """TX-072."""

    def refuses(args, state):
        raise AssertionError("asked again")

    def made(validator):
        async def run(self, args):
            return Ok(
                await api.phase(0, update={"add": update(lambda n, s: Reply(n, s + n), validator=validator)}, timeout=9)
            )

        return flow(run)

    env = WorkflowEnvironment()
    h = env.start(made(None))
    assert h.update("add", 1) == 1
    env.replay_history(made(refuses), h.history())


def test_events_from_outside_are_no_part_of_an_activation():
    cls = once(functools.partial(api.wait_for_signal, "go"))
    h = WorkflowEnvironment().start(cls)
    h.terminate("enough")
    assert isinstance(h.history()[-1], HistoryEvent) and h.history()[-1].kind == "WorkflowTerminated"
    replay.replay(cls.definition, h.history())


def test_a_unit_forgets_what_it_started_when_that_has_ended():
    """A run that fans out for ever does not grow."""

    async def run(self, args):
        for _ in range(3):
            await api.parallel([functools.partial(api.sleep, 0)] * 5)
        await api.wait_for_signal("go")

    executor = executor_of(flow(run))
    executor.activate(first())
    (unit,) = executor.scheduler.units.values()
    assert unit.children == {} and executor._tracked_coroutines == {}
