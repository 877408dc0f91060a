"""Graphs where they meet what they did not expect: changed code, odd values, other runs."""

from __future__ import annotations

import copy
import enum

import pytest

from temporalex_django import (
    Done,
    Err,
    Event,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Step,
    Unique,
    WaitForEvent,
    Workflow,
    api,
    errors,
    transit,
)
from temporalex_django.graph.projection import project
from tests.acceptance.graphs import graph, steps


def test_a_history_that_does_not_fit_the_graph_is_no_instance(env):
    """D-10 D-21: an edited class is told from the old one, whoever reads; nothing is made up."""
    first, second, third = steps("First", "Second", "Third").values()
    hook = WaitForEvent("go")
    old = graph(first, {(first, "ok"): second, (second, "ok"): hook, (hook, "go"): Done}, name="Edited")
    h = env.start(old, {}, value="1")
    history = h.history()
    changed = graph(first, {(first, "ok"): third, (third, "ok"): hook, (hook, "go"): Done}, name="Elsewhere")
    with pytest.raises(errors.TemporalexError, match=r"Graph has no step 'second' any more"):
        project(changed, history)
    swapped = graph(second, {(second, "ok"): first, (first, "ok"): hook, (hook, "go"): Done}, name="Swapped")
    with pytest.raises(errors.TemporalexError, match=r"does not fit the graph .*'first' was begun, and is not active"):
        project(swapped, history)
    longer = graph(
        first, {(first, "ok"): second, (second, "ok"): third, (third, "ok"): hook, (hook, "go"): Done}, name="Longer"
    )
    assert project(longer, history).active_steps == {third}
    assert project(old, history).waiting_steps == {hook}


@pytest.mark.parametrize(
    "ask", [lambda: api.now(), lambda: api.info(), lambda: api.cancel_requested(), lambda: api.random()]
)
def test_a_transition_asks_nobody(env, ask):
    """HE-061: it decides by the context alone, so that whoever reads the history comes to the same."""
    first, left, right = steps("First", "Left", "Right").values()

    def route(context):
        return left if ask() else right

    cls = graph(
        first, {(left, "ok"): Done, (right, "ok"): Done}, route=transit(first, "ok", targets=[left, right])(route)
    )
    h = env.start(cls, {}, value="1")
    with pytest.raises(
        errors.WorkflowFailed, match=r"step first \(First\): NestingError: .* is not allowed in a transition"
    ):
        h.result()
    assert (h.instance().status, h.instance().failed_step) == ("failed", first)


class Colour(str, enum.Enum):  # noqa: UP042 - the older form is what many have
    RED = "red"
    BLUE = "blue"


class Shade(enum.StrEnum):
    DARK = "dark"


def test_events_may_be_members_of_an_enum_of_strings(env):
    """D-25: strings, or one Enum a step."""

    class Paint(Step):
        events = (Colour.RED, Colour.BLUE)

        def execute(self, instance, config, context):
            return Event(Colour.RED)

    class Tint(Step):
        events = list(Shade)

        def execute(self, instance, config, context):
            return Event(Shade.DARK)

    cls = graph(Paint, {(Paint, Colour.RED): Tint, (Paint, "blue"): Done, (Tint, Shade.DARK): Done})
    h = env.start(cls, {}, value="1")
    assert [entry.event for entry in h.instance().execution_history] == ["red", "dark", "done"]
    assert {type(entry.event) for entry in h.instance().execution_history} == {str}


@pytest.mark.parametrize("reason", ["", 0, {}, None])
def test_a_reason_may_be_nothing(env, reason):
    """HE-080."""

    class Gives(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            return Err(reason)

    h = env.start(graph(Gives, {(Gives, "ok"): Done}), {}, value="1")
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert caught.value.reason == reason
    assert h.instance().reason == reason


def test_a_wait_without_time_is_over_at_once(env):
    """D-13 HE-091."""
    hook = WaitForEvent("go", timeout=0)
    h = env.start(graph(hook, {(hook, "go"): Done, (hook, "timeout"): Done}), {}, value="1")
    assert [entry.event for entry in h.instance().execution_history] == ["timeout", "done"]


def test_the_parent_of_a_failed_graph_hears_the_step(env):
    """Page 1.10: of a failed graph the step."""

    class Breaks(Step):
        events = ("ok",)
        retry = RetryPolicy(max_attempts=1)

        def execute(self, instance, config, context):
            return Err("no stock")

    class Below(GraphWorkflow):
        unique = Unique(key="below")
        initial = Breaks
        transitions = {(Breaks, "ok"): Done}

    class Above(Workflow):
        async def run(self, args):
            try:
                return Ok(await api.child(Below, {}, value="1"))
            except errors.ChildWorkflowFailure as exc:
                return Ok(str(exc))

    said = env.start(Above).result()
    assert "below::1 did not complete: WorkflowFailed: step breaks (Breaks): no stock" in said


def test_an_instance_can_be_copied(env):
    """HE-012: a plain value."""
    (first,) = steps("First").values()
    h = env.start(graph(first, {(first, "ok"): Done}), {"a": [1]}, value="1")
    assert copy.deepcopy(h.instance()).context == h.instance().context
    assert copy.copy(h.instance()) == h.instance()


def test_a_step_that_is_no_step_is_refused(env):
    """D-19."""
    hook = WaitForEvent("go")
    h = env.start(graph(hook, {(hook, "go"): Done}), {}, value="1")
    with pytest.raises(errors.ResumeRefused, match="5 is neither a step nor the key of one"):
        h.resume("go", step=5)
    with pytest.raises(errors.InvalidId, match="give id= or value=, not both"):
        env.start(graph(hook, {(hook, "go"): Done}), {}, id="x", value="2")
