"""Units, rounds, IVars, and the executor at its border."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime
from functools import partial

import pytest

from temporalex_django import Async, NoReply, Ok, Reply, Stop, Workflow, api, errors
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, Definition, RunInfo
from temporalex_django.core.history.events import Job
from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler, Unit
from tests.support.runs import flow, once, work

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def unit(scheduler, name, coroutine, log):
    made = Unit(scheduler, "branch", name, lambda value, error: log.append((name, value, error)), None)
    scheduler.spawn(made, coroutine)
    return made


async def read(ivar, log=None, name=""):
    value = await ivar
    if log is not None:
        log.append((name, value))
    return value


def test_new_ivar_is_empty_and_a_read_does_not_block():
    """ST-008 ST-014."""
    ivar = IVar()
    assert not ivar.is_full and ivar.value is None and ivar.waiters == []


def test_full_ivar_gives_its_value_without_blocking():
    """ST-009."""
    scheduler, log, ivar = Scheduler(), [], IVar()
    ivar.put(5)
    made = unit(scheduler, "a", read(ivar), log)
    scheduler.run()
    assert log == [("a", 5, None)] and made.waiting is None


def test_empty_ivar_blocks_and_put_wakes_every_waiter():
    """ST-010 ST-011 ST-013: any number of readers, later ones too."""
    scheduler, log, ivar = Scheduler(), [], IVar("label")
    units = [unit(scheduler, name, read(ivar), log) for name in "ab"]
    scheduler.run()
    assert log == [] and all(u.waiting is ivar for u in units) and ivar.waiters == units
    ivar.put("v")
    assert ivar.waiters == []
    scheduler.run()
    unit(scheduler, "c", read(ivar), log)
    scheduler.run()
    assert [entry[:2] for entry in log] == [("a", "v"), ("b", "v"), ("c", "v")]


def test_second_put_is_ignored():
    """ST-012."""
    ivar = IVar()
    ivar.put(1)
    ivar.put(2)
    ivar.fail(ValueError())
    assert ivar.value == 1 and ivar.error is None


def test_failure_is_raised_in_the_waiter():
    """ST-015."""
    scheduler, log, ivar = Scheduler(), [], IVar()
    unit(scheduler, "a", read(ivar), log)
    scheduler.run()
    ivar.fail(KeyError("x"))
    scheduler.run()
    assert isinstance(log[0][2], KeyError)


def test_finished_unit_leaves_the_manager():
    """ST-002 ST-005."""
    scheduler, log = Scheduler(), []
    unit(scheduler, "a", read(IVar()), log)
    done = IVar()
    done.put()
    unit(scheduler, "b", read(done), log)
    scheduler.run()
    assert [u.name for u in scheduler.units.values()] == ["a"]


def test_units_are_stepped_in_creation_order_and_woken_ones_join_the_next_round():
    """ST-076."""
    scheduler, log = Scheduler(), []
    first, second, third = IVar(), IVar(), IVar()

    async def waker():
        await first
        log.append("waker")
        third.put()
        second.put()

    unit(scheduler, "late", read(third, log, "late"), [])
    unit(scheduler, "waker", waker(), [])
    unit(scheduler, "later", read(second, log, "later"), [])
    scheduler.run()
    first.put()
    scheduler.run()
    assert log == ["waker", ("late", None), ("later", None)]


def executor(cls):
    return Executor(cls.definition, RunInfo(workflow="W", id="w", run_id="r", version=1))


def activation(*jobs, start=False):
    return Activation(
        now=NOW,
        jobs=tuple(Job(kind, attributes) for kind, attributes in jobs),
        start={"args": None, "seed": 1} if start else None,
    )


def test_each_activation_gives_one_completion_and_starts_clean():
    """ST-050 ST-051 ST-052 ST-053 ST-054 ST-058."""
    made = executor(once(lambda: api.parallel([partial(work, n) for n in range(2)])))
    first = made.activate(activation(start=True))
    assert [(c.kind, c.seq) for c in first.commands] == [("ScheduleActivity", 1), ("ScheduleActivity", 2)]
    second = made.activate(activation(("ActivityCompleted", {"seq": 2, "result": "b"})))
    assert second.commands == [] and second.changed
    third = made.activate(activation(("ActivityCompleted", {"seq": 1, "result": "a"})))
    assert [c.kind for c in third.commands] == ["CompleteWorkflow"] and third.closed == "CompleteWorkflow"


def test_nothing_runs_before_the_main_unit_is_registered():
    """ST-006."""
    made = executor(once(lambda: work(1)))
    assert made.activate(activation()).commands == []


def test_resolutions_are_all_applied_before_user_code_runs():
    """ST-027 ST-029 ST-035."""
    seen = []

    async def run(self, args):
        async def look(n):
            await work(n)
            seen.append(n)
            await api.wait_for_signal("never")

        await api.parallel([partial(look, n) for n in range(2)])

    made = executor(flow(run))
    made.activate(activation(start=True))
    made.activate(activation(("ActivityCompleted", {"seq": 2}), ("ActivityCompleted", {"seq": 1})))
    assert seen == [0, 1]
    made.evict()


def test_resolution_of_a_number_that_was_never_issued_is_an_engine_error():
    """ST-034."""
    made = executor(once(lambda: work(1)))
    made.activate(activation(start=True))
    with pytest.raises(errors.TemporalexError, match="never issued"):
        made.activate(activation(("TimerFired", {"seq": 99})))
    made.evict()


def test_second_resolution_of_a_number_is_ignored():
    """ST-012 ST-034."""
    made = executor(once(lambda: api.parallel([lambda: work(1), lambda: api.wait_for_signal("x")])))
    made.activate(activation(start=True))
    done = ("ActivityCompleted", {"seq": 1, "result": 1})
    assert made.activate(activation(done)).changed
    again = made.activate(activation(done))
    assert not again.changed and again.jobs == []
    made.evict()


def test_messages_come_after_resolutions_and_one_at_a_time():
    """ST-041 ST-042: all units run to blocked before the next one."""
    log = []

    async def run(self, args):
        await api.sleep(1)
        log.append("timer")
        for _ in range(2):
            log.append(await api.wait_for_signal("s"))
            await api.sleep(0)
            log.append("blocked again")
        await api.wait_for_signal("never")

    made = executor(flow(run))
    made.activate(activation(start=True))
    made.activate(
        activation(*[("SignalReceived", {"name": "s", "payload": n}) for n in (1, 2)], ("TimerFired", {"seq": 1}))
    )
    assert log == ["timer", 1, "blocked again", 2, "blocked again"]
    made.evict()


def test_refused_update_leaves_no_trace():
    """ST-055 TX-069: exception to the rule that each activation is recorded."""
    made = executor(once(lambda: api.wait_for_signal("x")))
    made.activate(activation(start=True))
    completion = made.activate(activation(("UpdateRequested", {"id": "u", "name": "n", "args": 1})))
    assert not completion.changed and [u for u, _ in completion.rejected] == ["u"]
    made.evict()


def test_updates_that_waited_are_taken_in_order_of_arrival_whatever_the_host_says():
    """Ids of an inbox are not in order of arrival; a replay sorts by `after`."""

    async def slow(n, state):
        await work(n)
        return Reply(n, [*state, n])

    cls = once(lambda: api.phase([], update={"u": slow}, signal={"s": lambda a, s: Stop(s)}))
    made = executor(cls)
    made.activate(activation(start=True))
    made.activate(activation(("UpdateRequested", {"id": "1", "name": "u", "args": 1})))
    waiting = [("UpdateRequested", {"id": "late", "name": "u", "args": 3, "after": 2}),
               ("UpdateRequested", {"id": "early", "name": "u", "args": 2, "after": 0})]  # fmt: skip
    made.activate(activation(*[("SignalReceived", {"name": "x"})] * 2))
    completion = made.activate(activation(*waiting, ("ActivityCompleted", {"seq": 1})))
    assert [c.attributes["id"] for c in completion.commands if c.kind == "AcceptUpdate"] == ["early"]
    assert completion.pending == [("late", 2)]
    made.evict()


def test_run_that_completes_ends_the_loop():
    """ST-007: what comes after is not applied."""
    made = executor(once(lambda: api.wait_for_signal("end")))
    made.activate(activation(start=True))
    completion = made.activate(activation(*[("SignalReceived", {"name": "end", "payload": n}) for n in (1, 2, 3)]))
    assert completion.closed == "CompleteWorkflow" and completion.unapplied == 2
    assert len(completion.jobs) == 1


def test_definition_is_all_the_executor_needs():
    """No class of ours behind it."""

    async def entry(args):
        return Ok(args)

    made = Executor(Definition(name="d", version=1, entry=entry), RunInfo(workflow="d", id="i", run_id="r", version=1))
    assert made.activate(activation(start=True)).commands[0].attributes == {"result": None}


def test_every_unit_of_a_run_is_registered_with_what_blocks_it():
    """ST-001 ST-002 ST-003: the entry, handlers of both kinds, branches.

    Calls that are under way are known by their numbers.
    """

    async def sync(_, state):
        await work.options(local=True)("local")
        return Reply(None, state)

    def spawn(_, state):
        return Async(lambda: api.parallel([lambda: api.child(Small, id="child"), lambda: api.sleep(5)]), state)

    class Small(Workflow):
        async def run(self, args):
            return Ok()

    made = executor(once(lambda: api.phase(0, signal={"spawn": spawn}, update={"sync": sync})))
    made.activate(activation(start=True))
    made.activate(
        activation(
            ("SignalReceived", {"name": "spawn"}), ("UpdateRequested", {"id": "u", "name": "sync", "args": None})
        )
    )
    units = made.scheduler.units
    assert [unit.kind for unit in units.values()] == ["run", "async handler", "branch", "branch", "sync handler"]
    assert list(units) == sorted(units) and not made.scheduler.ready
    assert all(unit.waiting is not None and unit in unit.waiting.waiters for unit in units.values())
    assert (list(made.pending_commands.children.values()), list(made.pending_commands.activities.values())) == (
        ["child"],
        ["tests.support.runs.work"],
    )
    made.evict()


def test_every_kind_of_delivery_is_taken_in_and_no_other():
    """ST-033 ST-034: what the engine does not know is an error, not silence."""
    made = executor(once(lambda: api.wait_for_signal("x")))
    made.activate(activation(start=True))
    with pytest.raises(errors.TemporalexError, match="Weather"):
        made.activate(activation(("WeatherChanged", {"name": "x", "payload": 1})))
    made.evict()


def test_a_run_that_ended_leaves_the_memory_at_once_and_not_when_the_collector_comes():
    async def run(self, args):
        done = []

        async def waits():
            await api.wait_condition(lambda: bool(done))

        async def works():
            done.append(await work(1))

        await api.parallel([waits, works])
        return Ok(await api.phase(0, signal={"go": lambda _, n: NoReply(n), "stop": lambda _, n: Stop(n)}))

    made = executor(flow(run))
    gc.disable()
    try:
        made.activate(activation(start=True))
        made.activate(activation(("ActivityCompleted", {"seq": 1, "result": 1})))
        for name in ("go", "stop"):
            made.activate(activation(("SignalReceived", {"name": name, "payload": None})))
        assert made.closed == "CompleteWorkflow"
        made.evict()
        left = weakref.ref(made)
        del made
        assert left() is None
    finally:
        gc.enable()
