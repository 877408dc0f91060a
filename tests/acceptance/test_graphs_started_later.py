"""Graphs with the options of a start: in the future, many at once, policies, debounce, throttles, and schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import (
    Done,
    Event,
    GraphWorkflow,
    Overlap,
    RetryLater,
    Schedule,
    Step,
    Unique,
    WaitForEvent,
    activity_context,
    errors,
)
from temporalex_django.authoring.schedules import schedule as declarations

DAY = timedelta(days=1)


class Prepare(Step):
    events = ("prepared",)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        return Event("prepared", {"what": context.initial.what})


delivered = WaitForEvent("delivered")


class LaterGraph(GraphWorkflow):
    unique = Unique(key="number")
    initial = Prepare
    transitions = {(Prepare, "prepared"): delivered, (delivered, "delivered"): Done}


def prepared(handle: Any) -> Any:
    return handle.instance().context.steps.prepare.what


def test_a_graph_begins_later_and_its_event_waits(env: Any) -> None:
    handle = env.start(LaterGraph, {"what": "box"}, value="1", start_delay=DAY)
    assert (handle.status, handle.history()) == ("pending", [])

    with pytest.raises(errors.TemporalexError):
        handle.resume("delivered")
    env.advance(DAY)
    assert prepared(handle) == "box"
    handle.resume("delivered")
    assert handle.status == "completed"


def test_a_graph_that_has_not_begun_in_time_is_timed_out(env: Any) -> None:
    handle = env.start(LaterGraph, {"what": "box"}, value="1", start_delay=2 * DAY, start_before=env.now() + DAY)
    env.advance(DAY - timedelta(seconds=1))
    assert handle.status == "pending"
    env.advance(seconds=1)
    assert handle.status == "timed_out"


def test_many_graphs_start_at_once(env: Any) -> None:
    items = [({"what": n}, {"value": str(n)}) for n in (1, 2, 2)]
    first, second, third = env.start_many(LaterGraph, items)
    assert isinstance(third, errors.AlreadyRunning)
    assert (prepared(first), prepared(second)) == (1, 2)


def test_a_graph_takes_the_policies_of_a_start(env: Any) -> None:
    first = env.start(LaterGraph, {"what": "box"}, value="1")
    same = env.start(LaterGraph, {"what": "bag"}, value="1", on_conflict="use_existing")
    assert (same.run_id, same.start_outcome) == (first.run_id, "existing")
    second = env.start(LaterGraph, {"what": "bag"}, value="1", on_conflict="terminate_existing")
    assert (first.status, prepared(second)) == ("terminated", "bag")
    second.resume("delivered")
    with pytest.raises(errors.AlreadyEnded):
        env.start(LaterGraph, {"what": "bag"}, value="1", on_closed="reject")


def test_a_graph_is_debounced_and_throttled(env: Any) -> None:
    for what in ("a", "b", "c"):
        handle = env.start(LaterGraph, {"what": what}, value="1", debounce=60)
    env.advance(seconds=60)
    assert prepared(handle) == "c"

    paced = [env.start(LaterGraph, {"what": n}, value=f"t{n}", throttle=(1, 60)) for n in range(2)]
    assert [one.status for one in paced] == ["waiting", "pending"]
    env.advance(seconds=60)
    assert [prepared(one) for one in paced] == [0, 1]


def test_a_schedule_starts_graphs(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "_declarations", {})  # a process knows each name once
    nightly = Schedule(
        "graphs",
        LaterGraph,
        args={"what": "night"},
        cron="0 2 * * *",
        workflow_id="number::{slot:%Y%m%d%H%M}",
        overlap=Overlap.ALLOW_ALL,
    )
    env.schedule(nightly)
    env.advance(days=2)
    assert [prepared(handle) for handle in env.list(LaterGraph)] == ["night", "night"]


class Busy(Step):
    events = ("done",)

    def execute(self, instance: Any, config: Any, context: Any) -> Any:
        if (failure := activity_context().previous_failure) is None:
            raise RetryLater("the bank is closed", after=3600, counts=False)
        return Event("done", {"after": failure.message})


class BusyGraph(GraphWorkflow):
    unique = Unique(key="number")
    initial = Busy
    transitions = {(Busy, "done"): Done}


def test_a_step_asks_to_be_tried_later(env: Any) -> None:
    handle = env.start(BusyGraph, {}, value="1")
    env.advance(seconds=3599)
    assert handle.status == "running"
    env.advance(seconds=1)
    assert handle.status == "completed"
    assert handle.instance().context.steps.busy.after == "the bank is closed"
