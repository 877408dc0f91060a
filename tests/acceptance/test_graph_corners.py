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
    activity_context,
    api,
    errors,
    transit,
)
from temporalex_django.graph.projection import project
from tests.acceptance.graphs import graph, steps


def test_a_history_that_does_not_fit_the_graph_is_no_instance(env):
    """An edited class is told from the old one, whoever reads; nothing is made up."""
    first, second, third = steps("First", "Second", "Third").values()
    hook = WaitForEvent("go")
    old = graph(first, {(first, "ok"): second, (second, "ok"): hook, (hook, "go"): Done}, name="Edited")
    h = env.start(old, {}, value="1")
    history = h.history()
    changed = graph(first, {(first, "ok"): third, (third, "ok"): hook, (hook, "go"): Done}, name="Elsewhere")
    with pytest.raises(errors.TemporalexError, match=r"Graph no longer has a step 'second'"):
        project(changed, history)
    swapped = graph(second, {(second, "ok"): first, (first, "ok"): hook, (hook, "go"): Done}, name="Swapped")
    with pytest.raises(
        errors.TemporalexError, match=r"does not match the graph .*'first' was started, but is not active"
    ):
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
    """Strings, or one Enum a step."""

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
        retry = RetryPolicy(max_attempts=1)

        def execute(self, instance, config, context):
            return Err(reason)

    h = env.start(graph(Gives, {(Gives, "ok"): Done}), {}, value="1")
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert caught.value.reason == reason
    assert h.instance().reason == reason


@pytest.mark.parametrize(
    "policy", [None, {"max_attempts": 3}, {"non_retryable": ["Err"]}, {"non_retryable": [ValueError]}]
)
@pytest.mark.parametrize("reason", ["declined", ValueError("declined")])
@pytest.mark.parametrize("atomic", [False, True])
def test_err_is_a_failed_attempt(env, policy, reason, atomic):
    """HE-080 HE-087: tried again by the step's policy as an exception is; the last one is the run's reason."""
    attempts = []

    class Declines(Step):
        events = ("ok",)
        retry = None if policy is None else RetryPolicy(**policy)

        def execute(self, instance, config, context):
            attempts.append(activity_context().attempt)
            return Err(reason) if len(attempts) < 7 else Event("ok")

    Declines.atomic = atomic
    h = env.start(graph(Declines, {(Declines, "ok"): Done}), {}, value="1")
    named = (policy or {}).get("non_retryable", [])
    final = "Err" in named or (bool(named) and isinstance(reason, ValueError))
    assert (h.status, attempts) == ("failed" if final else "running", [1])
    env.advance(3600)
    if named and not final:
        assert (h.status, len(attempts)) == ("completed", 7)
        return
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert caught.value.reason == ("declined" if reason == "declined" else "ValueError: declined")
    assert attempts == [*range(1, 2 if final else 1 + (policy or {}).get("max_attempts", 5))]


def test_err_once_is_forgotten(env):
    """HE-080: the next attempt decides, and no event of the first is in the history."""
    given = [Err("not now"), Event("ok", "later")]

    class Later(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            return given[activity_context().attempt - 1]

    h = env.start(graph(Later, {(Later, "ok"): Done}), {}, value="1")
    env.advance(60)
    assert h.result()["later"] == "later"
    assert "ActivityFailed" not in [event.kind for event in h.history()]


def test_a_reason_that_cannot_be_stored_fails_at_once(env):
    class Odd(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            return Err(object())

    h = env.start(graph(Odd, {(Odd, "ok"): Done}), {}, value="1")
    with pytest.raises(errors.WorkflowFailed, match="the reason of step Odd"):
        h.result()


def test_a_wait_without_time_is_over_at_once(env):
    """HE-091."""
    hook = WaitForEvent("go", timeout=0)
    h = env.start(graph(hook, {(hook, "go"): Done, (hook, "timeout"): Done}), {}, value="1")
    assert [entry.event for entry in h.instance().execution_history] == ["timeout", "done"]


def test_the_parent_of_a_failed_graph_hears_the_step(env):
    """Of a failed graph the step."""

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
    hook = WaitForEvent("go")
    h = env.start(graph(hook, {(hook, "go"): Done}), {}, value="1")
    with pytest.raises(errors.ResumeRefused, match="5 is neither a step nor the key of a step"):
        h.resume("go", step=5)
    with pytest.raises(errors.InvalidId, match="give id= or value=, not both"):
        env.start(graph(hook, {(hook, "go"): Done}), {}, id="x", value="2")
