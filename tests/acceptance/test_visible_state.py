"""``Executor.visible_state``: what hosts show of a run follows from its history alone."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from temporalex_django import Ok, Reply, Stop, Workflow, api
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.core.history.events import Job
from tests.support.people import person
from tests.support.runs import flow, work

MAY = "auth.change_group"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Shown(Workflow):
    name = "visible.Shown"
    stored = {"items": int}
    search_attributes = {"customer": str}

    async def run(self, args):
        api.set_search_attributes({"customer": "anna"})
        await api.phase(0, signal={"stop": lambda _, s: Stop(s)}, update={"add": self.add})
        both = partial(work, 1), partial(api.approval, "May it go?", role=MAY, four_eyes=True, remind=60)
        await api.parallel(both)
        api.publish_state({"items": 9, "word": "left"})
        return Ok(await api.wait_for_signal("end"))

    def add(self, number, state):
        api.publish_state({"items": number})
        return Reply(None, state + number)


def visible(env, h):
    """The state of an executor that was built from the history of the run."""
    row = h.selected_run
    executor = Executor(Shown.definition, row.facts.info)
    executor.replay(h.history())
    state = executor.visible_state()
    assert state == executor.visible_state()
    executor.evict()
    return state


def check(env, h):
    """What the host shows is what its history says. Returns the state."""
    row, state = h.selected_run, visible(env, h)
    assert (row.status, row.waiting_for, row.waits) == (state.status, state.waiting_for, state.waits)
    assert (row.accepts, row.published) == (state.accepts, state.published)
    assert (row.stored or {}) == state.stored
    assert row.column("search_attributes") == (state.search_attributes or None)
    assert [task.key for task in h.human_tasks()] == [task.key for task in state.human_tasks]
    return state


def test_rows_show_what_the_core_says_of_the_run(env):
    eve = person(env, "eve", MAY)
    env.hold(work)
    h = env.start(Shown, id="shown")
    state = check(env, h)
    assert (state.status, state.accepts, state.publications) == (
        "waiting",
        {"signals": ["stop"], "updates": ["add"]},
        0,
    )
    h.update("add", 4)
    assert check(env, h).stored == {"items": 4}
    h.signal("stop")
    state = check(env, h)
    assert state.status == "running" and [task.spec.title for task in state.human_tasks] == ["May it go?"]
    assert state.waiting_for[1:] == ["activity tests.support.runs.work", "decision May it go?"]
    h.decide("approved", by=eve)
    env.complete(work)
    state = check(env, h)
    assert (state.human_tasks, state.publications) == ((), 2)
    assert [*state.four_eyes["excluded"].values()] == ["decided"]
    h.signal("end", 1)
    state = check(env, h)
    nothing = [], [], {"signals": [], "updates": []}
    assert (state.status, (state.waiting_for, state.waits, state.accepts)) == ("completed", nothing)


def test_only_changed_human_tasks_are_told_unless_all_are_wanted():
    async def run(self, args):
        return Ok(await api.approval("May it go?", role=MAY))

    cls = flow(run)
    executor = Executor(cls.definition, RunInfo(workflow=cls.name, id="leaves", run_id="r", version=1))
    executor.activate(Activation(now=NOW, start={"args": None, "seed": 1}))
    (change,) = executor.human_task_changes()
    assert change.changes == ("opened",) and executor.visible_state().human_tasks == (change.task,)
    executor.activate(Activation(now=NOW, jobs=(Job("SignalReceived", {"name": "other", "payload": 1}),)))
    assert executor.human_task_changes() == []
    assert [(c.changes, c.task) for c in executor.human_task_changes(every=True)] == [((), change.task)]
