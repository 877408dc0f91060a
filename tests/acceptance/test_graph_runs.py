"""Graph workflows on the durable runtime."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest

from temporalex_django import (
    Done,
    Err,
    Event,
    Pending,
    RetryPolicy,
    Step,
    Wait,
    WaitForEvent,
    activity_context,
    errors,
    transit,
)
from temporalex_django.testing import WorkflowEnvironment
from tests.acceptance.graphs import (
    ChargePayment,
    OrderGraph,
    ReserveInventory,
    ShipOrder,
    ValidateOrder,
    clerk,
    graph,
    steps,
    webhook,
)
from tests.support.people import Somebody
from tests.support.runs import events, kinds


class Settings(msgspec.Struct):
    limit: int


def test_an_order_from_start_to_delivery(env):
    """HE-022 HE-028 HE-031 HE-032 HE-034 HE-044 HE-046 HE-077 HE-078 HE-096 HE-099 HE-142."""
    h = env.start(OrderGraph, {"total": 12}, value="42")
    assert (h.id, h.status) == ("orderid::42", "waiting")
    assert h.describe()["waiting_for"] == ["step wait_for_event: delivered or timeout"]
    h.resume("delivered", data={"at": "door"})
    assert h.status == "completed"
    assert h.result() == {
        "validate_order": {"total": 12},
        "charge_payment": {"amount": 12, "currency": "EUR"},
        "reserve_inventory": {},
        "review": {"score": 12},
        "ship_order": {"knows": ["charge_payment", "reserve_inventory", "review", "validate_order"]},
        "wait_for_event": {"at": "door"},
        "done": {},
    }
    assert kinds(h).count("ActivityScheduled") == 5
    assert kinds(h)[-3:] == ["SignalReceived", "TimerCancelled", "WorkflowCompleted"]


def test_context_and_execution_history_are_read_from_the_history(env):
    """HE-007 HE-013 HE-015 HE-018 HE-019 HE-097 HE-125."""
    h = env.start(OrderGraph, {"total": 12}, value="1")
    instance = h.instance()
    assert (instance.id, instance.workflow, instance.version, instance.status) == (
        "orderid::1",
        OrderGraph,
        1,
        "waiting",
    )
    assert instance.context.initial.total == 12
    assert instance.context.steps.charge_payment.amount == 12
    assert instance.waiting_steps == {webhook}
    assert instance.completed_steps == {*OrderGraph.graph()} - {webhook, clerk, Done}
    entries = [(entry.step, entry.event) for entry in instance.execution_history]
    assert entries[0] == (ValidateOrder, "valid")
    assert sorted(entries[1:3], key=str) == [(ChargePayment, "charged"), (ReserveInventory, "reserved")]
    stamps = [entry.timestamp for entry in instance.execution_history]
    assert stamps == sorted(stamps)
    assert stamps[0] == h.history()[0].at


def test_a_large_order_goes_through_review_and_who_decided_is_in_the_history(env):
    """HE-038 HE-045 HE-048 HE-061 HE-072 HE-103."""
    h = env.start(OrderGraph, {"total": 50}, value="1")
    assert h.describe()["waiting_for"] == ["step approval: approved or rejected or overdue"]
    h.resume("approved", by=Somebody("ann", "shop.review"), data={"why": "known customer"})
    assert h.instance().context.steps.approval == {"by": "ann", "by_key": "ann", "why": "known customer"}
    (resume,) = events(h, "SignalReceived")
    assert resume["name"] == "__resume__"
    assert resume["payload"] == {
        "event": "approved",
        "step": "approval",
        "data": {"why": "known customer"},
        "by": "ann",
        "by_key": "ann",
    }
    assert h.instance().waiting_steps == {webhook}


def test_an_approval_that_nobody_gives_is_overdue(env):
    """HE-095: it has an event of its own."""
    h = env.start(OrderGraph, {"total": 50}, value="1")
    env.advance(timedelta(hours=3, minutes=59))
    assert h.status == "waiting"
    env.advance(timedelta(minutes=1))
    assert h.status == "completed"
    assert [e.event for e in h.instance().execution_history][-2:] == ["overdue", "done"]


def test_an_invalid_order_ends_at_once_and_nothing_else_runs(env):
    """HE-035 HE-036: branches that were not taken hold nobody up."""
    h = env.start(OrderGraph, {"total": 0}, value="1")
    assert h.result() == {"validate_order": {}, "done": {}}


def test_exclusive_branches_meet_again(env):
    """HE-035: the step behind both branches runs once, whichever was taken."""
    made = steps("A", "B", "C", "D")

    def execute(self, instance, config, context):
        return Event("left" if context.initial.get("left") else "right")

    a = type("A", (Step,), {"events": ("left", "right"), "execute": execute, "__module__": __name__})
    b, c, d = made["B"], made["C"], made["D"]
    cls = graph(a, {(a, "left"): b, (a, "right"): c, (b, "ok"): d, (c, "ok"): d, (d, "ok"): Done})
    h = env.start(cls, {"left": True}, value="1")
    assert h.status == "completed"
    assert (len(b.ran), len(c.ran), len(d.ran)) == (1, 0, 1)


def test_a_join_waits_for_all_branches_and_sees_what_they_gave(env):
    """HE-035 HE-100 HE-101."""
    made = steps("Start", "Left", "Right", "Join")
    start, left, right, join = made.values()
    cls = graph(start, {(start, "ok"): [right, left], (left, "ok"): join, (right, "ok"): join, (join, "ok"): Done})
    env.hold(left)
    h = env.start(cls, {}, value="1")
    assert (len(right.ran), len(join.ran)) == (1, 0)
    assert h.instance().requested_steps == {join}
    env.complete(left, Event("ok", {"late": True}))
    assert h.status == "completed"
    assert [sorted(seen) for seen in join.ran] == [["left", "right", "start"]]
    scheduled = [e["args"][0] for e in events(h, "ActivityScheduled")]
    assert scheduled == ["start", "right", "left", "join"]


def test_a_waiting_step_does_not_freeze_its_siblings(env):
    """HE-050 HE-079: what stands beside it goes on."""
    made = steps("Start", "Waits", "Works", "More", "Join", waiting=("Waits",))
    start, waits, works, more, join = made.values()
    cls = graph(
        start,
        {
            (start, "ok"): [waits, works],
            (works, "ok"): more,
            (waits, "ok"): join,
            (more, "ok"): join,
            (join, "ok"): Done,
        },
    )
    h = env.start(cls, {}, value="1")
    assert (len(works.ran), len(more.ran), len(join.ran)) == (1, 1, 0)
    assert h.status == "waiting"
    h.resume("ok")
    assert (h.status, len(waits.ran), len(join.ran)) == ("completed", 1, 1)


def test_the_run_is_running_while_a_sibling_of_a_waiting_step_runs(env):
    """HE-050."""
    made = steps("Start", "Waits", "Works", "Join", waiting=("Waits",))
    start, waits, works, join = made.values()
    cls = graph(start, {(start, "ok"): [waits, works], (waits, "ok"): join, (works, "ok"): join, (join, "ok"): Done})
    env.hold(works)
    h = env.start(cls, {}, value="1")
    assert (h.status, h.instance().status) == ("running", "running")
    env.complete(works, Event("ok"))
    assert (h.status, h.instance().status) == ("waiting", "waiting")


def two_waiting(first: str = "one", second: str = "two"):
    start, join = steps("Start", "Join").values()
    one, two = WaitForEvent(first, key="first"), WaitForEvent(second, key="second")
    cls = graph(start, {(start, "ok"): [one, two], (one, first): join, (two, second): join, (join, "ok"): Done})
    return cls, one, two, join


def test_resuming_one_of_two_leaves_the_other_waiting(env):
    """HE-051 HE-108."""
    cls, one, two, join = two_waiting()
    h = env.start(cls, {}, value="1")
    assert h.instance().waiting_steps == {one, two}
    h.resume("two")
    assert h.instance().waiting_steps == {one}
    assert join.ran == []
    h.resume("one")
    assert (h.status, len(join.ran)) == ("completed", 1)


def test_an_event_for_several_steps_is_refused_until_the_step_is_named(env):
    """HE-108: nothing changes."""
    cls, one, _, _ = two_waiting("go", "go")
    h = env.start(cls, {}, value="1")
    before = h.history()
    with pytest.raises(errors.ResumeRefused, match=r"several steps are waiting for the event 'go': .*first.*second"):
        h.resume("go")
    assert h.history() == before
    h.resume("go", step="second", data=[1])
    assert h.instance().waiting_steps == {one}
    h.resume("go", step=one)
    assert h.result()["second"] == [1]


@pytest.mark.parametrize(
    ("event", "step", "message"),
    [
        ("nothing", None, "no step is waiting for the event 'nothing'"),
        ("shipped", None, "no step is waiting for the event 'shipped'"),
        ("delivered", "review", "no step is waiting for the event 'delivered' of step review"),
        ("", None, "'' is not a valid event name"),
        (7, None, "7 is not a valid event name"),
        ("__resume__", None, "not a valid event name"),
    ],
)
def test_a_resume_that_matches_nothing_is_refused_and_changes_nothing(env, event, step, message):
    """HE-104 HE-105 HE-108: undeclared events are refused, never made up."""
    h = env.start(OrderGraph, {"total": 12}, value="1")
    before = h.history()
    with pytest.raises(errors.ResumeRefused, match=message):
        h.resume(event, step=step)
    assert h.history() == before
    assert h.status == "waiting"


def test_a_resume_of_a_closed_run_or_a_function_workflow_is_refused(env):
    """HE-104."""
    h = env.start(OrderGraph, {"total": 0}, value="1")
    with pytest.raises(errors.WorkflowClosed):
        h.resume("delivered")


def test_two_resumes_of_one_activation_are_judged_one_after_the_other(env):
    """HE-040: the second finds the step ended."""
    cls, _, two, _ = two_waiting()
    h = env.start(cls, {}, value="1")
    with env.batch():
        h.resume("one")
        h.resume("one")
    assert h.instance().waiting_steps == {two}
    assert len(events(h, "SignalReceived")) == 1


def test_wait_emits_timeout_after_its_duration(env):
    """HE-090 HE-095 HE-116."""
    (start,) = steps("Start").values()
    wait = Wait(timedelta(days=30))
    cls = graph(start, {(start, "ok"): wait, (wait, "timeout"): Done})
    h = env.start(cls, {}, value="1")
    env.advance(timedelta(days=29))
    assert h.status == "waiting"
    env.advance(timedelta(days=1))
    assert h.status == "completed"
    (timer,) = events(h, "TimerStarted")
    assert (timer["duration"], timer["step"]) == (30 * 86400.0, "wait")


def test_a_wait_of_nothing_takes_no_timer(env):
    """HE-090."""
    wait = Wait(0)
    h = env.start(graph(wait, {(wait, "timeout"): Done}), {}, value="1")
    assert (h.status, kinds(h)) == ("completed", ["WorkflowCompleted"])


def test_done_alone_is_the_smallest_graph(env):
    """HE-058 HE-089 HE-016."""
    h = env.start(graph(Done, {}), {"any": 1}, value="1")
    assert h.result() == {"done": {}}


def test_wait_for_event_with_and_without_timeout(env):
    """HE-091."""
    forever = WaitForEvent("go")
    h = env.start(graph(forever, {(forever, "go"): Done}), {}, value="1")
    env.advance(timedelta(days=1000))
    assert (h.status, kinds(h)) == ("waiting", [])
    h.resume("go")
    assert h.status == "completed"


def failing(result):
    start, other, join = steps("Start", "Other", "Join").values()

    class Breaks(Step):
        events = ("ok",)
        retry = RetryPolicy(max_attempts=1)

        def execute(self, instance, config, context):
            if isinstance(result, Exception):
                raise result
            return result

    cls = graph(start, {(start, "ok"): [Breaks, other], (Breaks, "ok"): join, (other, "ok"): join, (join, "ok"): Done})
    return cls, other, join


@pytest.mark.parametrize(
    ("result", "reason", "kind", "message"),
    [
        (Err("declined"), "declined", None, "step breaks (Breaks): 'declined'"),
        (Err({"code": 7}), {"code": 7}, None, "step breaks (Breaks): {'code': 7}"),
        (ValueError("no funds"), None, "ValueError", "step breaks (Breaks): ValueError: no funds"),
        (
            Event("nope"),
            None,
            "TypeError",
            "step breaks (Breaks): TypeError: step Breaks emitted 'nope', which it does not declare",
        ),
        (None, None, "TypeError", "step breaks (Breaks): TypeError: step Breaks returned None: it must return Event"),
        ({"event": "ok"}, None, "TypeError", "returned {'event': 'ok'}: it must return"),
        ("ok", None, "TypeError", "returned 'ok': it must return"),
    ],
)
def test_one_failing_branch_fails_the_run_and_says_which_step(env, result, reason, kind, message):
    """HE-047 HE-080 HE-081 HE-082 HE-083 HE-109."""
    cls, _, join = failing(result)
    h = env.start(cls, {}, value="1")
    assert h.status == "failed"
    with pytest.raises(errors.WorkflowFailed) as caught:
        h.result()
    assert (caught.value.reason, caught.value.type) == (reason, kind)
    assert message in str(caught.value)
    assert join.ran == []
    assert h.instance().status == "failed"
    assert h.instance().failed_step.__name__ == "Breaks"
    assert (h.instance().active_steps, h.instance().current_step) == (frozenset(), None)


def test_results_that_were_there_when_a_branch_failed_are_kept(env):
    """HE-109: for whoever looks afterwards; nothing follows on them."""
    cls, other, join = failing(Err("no"))
    breaks = next(step for step in cls.graph() if getattr(step, "__name__", "") == "Breaks")
    env.hold(breaks)
    env.hold(other)
    h = env.start(cls, {}, value="1")
    with env.batch():
        env.complete(breaks, Err("no"))
        env.complete(other, Event("ok", {"kept": 1}))
    assert h.status == "failed"
    assert h.instance().context.steps.other == {"kept": 1}
    assert join.ran == []


def test_a_step_is_tried_again_by_its_policy(env):
    """HE-086 HE-087 HE-088: the step's own, the workflow's, then five attempts; the key stays the same."""
    seen = []

    class Flaky(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            seen.append(activity_context().idempotency_key)
            if len(seen) < 5:
                raise OSError("not yet")
            return Event("ok")

    h = env.start(graph(Flaky, {(Flaky, "ok"): Done}), {}, value="1")
    assert h.status == "running"
    env.advance(timedelta(minutes=5))
    assert (h.status, len(seen), len(set(seen))) == ("completed", 5, 1)


def test_the_most_specific_policy_wins(env):
    """HE-087."""
    ran = []

    def step(name, **more):
        def execute(self, instance, config, context):
            ran.append(name)
            raise OSError

        return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__, **more})

    own = step("Own", retry=RetryPolicy(max_attempts=2))
    inherited = step("Inherited")
    for number, cls in enumerate((own, inherited)):
        flow = graph(cls, {(cls, "ok"): Done}, retry=RetryPolicy(max_attempts=3), name=cls.__name__)
        h = env.start(flow, {}, value=str(number))
        env.advance(timedelta(hours=1))
        assert h.status == "failed"
    assert (ran.count("Own"), ran.count("Inherited")) == (2, 3)


def test_cancel_is_immediate_and_what_comes_later_is_dropped(env):
    """HE-053 HE-146 HE-153."""
    made = steps("Start", "Held")
    start, held = made.values()
    env.hold(held)
    h = env.start(graph(start, {(start, "ok"): held, (held, "ok"): Done}), {}, value="1")
    h.cancel()
    assert h.status == "cancelled"
    assert h.instance().status == "cancelled"
    length = len(h.history())
    env.advance(timedelta(days=10))
    assert len(h.history()) == length
    with pytest.raises(errors.WorkflowCancelled):
        h.result()
    with pytest.raises(errors.WorkflowClosed):
        h.resume("ok")
    env.replay(h)


def test_a_dynamic_transition_may_only_choose_what_it_declares(env):
    """HE-037 HE-063 HE-072."""
    start, left, right, other = steps("Start", "Left", "Right", "Other").values()
    choices = {
        "undeclared": lambda: other,
        "nothing": lambda: None,
        "raises": lambda: 1 / 0,
        "a string": lambda: "Left",
        "branches that do not meet": lambda: [left, right],
        "a config that cannot be encoded": lambda: (left, object()),
    }

    def route(context):
        return choices[context.initial.choice]()

    cls = graph(
        start,
        {(left, "ok"): Done, (right, "ok"): other, (other, "ok"): Done},
        route=transit(start, "ok", targets=[left, right])(route),
    )
    said = {}
    for number, choice in enumerate(choices):
        h = env.start(cls, {"choice": choice}, value=str(number))
        assert h.status == "failed", choice
        with pytest.raises(errors.WorkflowFailed) as caught:
            h.result()
        said[choice] = str(caught.value)
    assert all("step start (Start): " in text for text in said.values()), said
    assert "chose Other, which it does not declare (targets: Left, Right)" in said["undeclared"]
    assert "None is not a step" in said["nothing"]
    assert "ZeroDivisionError" in said["raises"]
    assert "'Left' is not a step" in said["a string"]
    assert "do not all meet before Done" in said["branches that do not meet"]
    assert "cannot be encoded" in said["a config that cannot be encoded"]
    assert (left.ran, right.ran, other.ran) == ([], [], [])


def test_a_step_gets_its_config_as_what_it_asks_for(env):
    """HE-029 HE-033 HE-034."""
    seen = []

    class Typed(Step):
        events = ("ok",)

        def execute(self, instance, config: Settings, context):
            seen.append(config)
            return Event("ok")

    class Bare(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            seen.append(config)
            return Event("ok")

    cls = graph((Typed, {"limit": 3}), {(Typed, "ok"): Bare, (Bare, "ok"): Done})
    assert env.start(cls, {}, value="1").status == "completed"
    assert seen == [Settings(limit=3), None]


def test_a_step_cannot_change_what_others_see(env):
    """HE-014 HE-012."""

    class Meddles(Step):
        events = ("ok",)
        retry = RetryPolicy(max_attempts=1)

        def execute(self, instance, config, context):
            context.initial["lines"].append("more")
            return Event("ok")

    h = env.start(graph(Meddles, {(Meddles, "ok"): Done}), {"lines": [1]}, value="1")
    with pytest.raises(errors.WorkflowFailed, match="read-only"):
        h.result()
    assert h.instance().context.initial == {"lines": [1]}


def test_runtime_metadata_is_merged_and_the_later_step_wins(env):
    """HE-041."""

    def step(name, metadata):
        def execute(self, instance, config, context):
            return Event("ok", None, metadata)

        return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__})

    one, two = step("One", {"a": 1, "b": 1}), step("Two", {"b": 2})
    h = env.start(graph(one, {(one, "ok"): two, (two, "ok"): Done}), {}, value="1")
    assert h.instance().runtime_metadata == {"a": 1, "b": 2}


def test_what_does_not_go_through_json_fails_the_step(env):
    """Bad input: data that cannot be encoded, and data that is too large."""

    def step(name, data):
        def execute(self, instance, config, context):
            return Event("ok", data)

        return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__})

    odd, large = step("Odd", object()), step("Large", "x" * 3_000_000)
    for number, (cls, message) in enumerate([(odd, "cannot be encoded"), (large, "more than the 2,000,000 allowed")]):
        h = env.start(graph(cls, {(cls, "ok"): Done}, name=cls.__name__), {}, value=str(number))
        with pytest.raises(errors.WorkflowFailed, match=message):
            h.result()


def test_a_context_that_grows_too_large_fails_the_step_that_makes_it_so(env):
    """Bad input: every part is small enough, the whole is not."""

    def step(name):
        def execute(self, instance, config, context):
            return Event("ok", "x" * 900_000)

        return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__})

    one, two, three = step("One"), step("Two"), step("Three")
    h = env.start(graph(one, {(one, "ok"): two, (two, "ok"): three, (three, "ok"): Done}), {}, value="1")
    with pytest.raises(
        errors.WorkflowFailed, match=r"step three \(Three\): .*the context is 2,700,00\d bytes, more than the 2,000,000"
    ):
        h.result()


def test_the_published_state_is_small_and_names_steps(env):
    """HE-102."""
    h = env.start(OrderGraph, {"total": 12}, value="1")
    assert h._row.published == {
        "status": "waiting",
        "active": [],
        "waiting": ["wait_for_event"],
        "completed": ["validate_order", "charge_payment", "reserve_inventory", "review", "ship_order"],
    }


def test_a_step_can_be_replaced_by_a_stand_in(env):
    """HE-005."""
    env.mock(ShipOrder, lambda instance, config, context: Event("shipped", {"order": instance.id}))
    h = env.start(OrderGraph, {"total": 12}, value="7")
    assert h.instance().context.steps.ship_order == {"order": "orderid::7"}


def test_pending_is_no_answer_for_a_stand_in_that_is_held(env):
    """HE-079: a step that waits by itself is resumed by one of its events."""

    class Manual(Step):
        events = ("yes", "no")

        def execute(self, instance, config, context):
            return Pending()

    h = env.start(graph(Manual, {(Manual, "yes"): Done, (Manual, "no"): Done}), {}, value="1")
    assert h.describe()["waiting_for"] == ["step manual: yes or no"]
    h.resume("no", data={"why": "late"})
    assert h.result() == {"manual": {"why": "late"}, "done": {}}


def test_the_same_history_gives_the_same_commands_whatever_completes_first():
    """HE-101: order of completion changes the order of the history, not what runs."""
    made = steps("Start", "A", "B", "C", "Join")
    start, a, b, c, join = made.values()
    cls = graph(
        start,
        {(start, "ok"): [c, a, b], (a, "ok"): join, (b, "ok"): join, (c, "ok"): join, (join, "ok"): Done},
    )
    results = []
    for order in ([a, b, c], [c, b, a], [b, c, a]):
        env = WorkflowEnvironment()
        for step in (a, b, c):
            env.hold(step)
        h = env.start(cls, {}, value="1")
        for step in order:
            env.complete(step, Event("ok", {"from": step.__name__}))
        results.append(h.result())
        env.replay(h)
    assert results[0] == results[1] == results[2]


def test_steps_may_be_called_like_methods_of_a_mapping(env):
    """HE-085: a key is a key."""
    made = steps("Keys", "Items", "Get")
    first, second, third = made.values()
    cls = graph(first, {(first, "ok"): second, (second, "ok"): third, (third, "ok"): Done})
    h = env.start(cls, {"keys": [1], "items": {"a": 1}}, value="1")
    assert list(h.result()) == ["keys", "items", "get", "done"]
    instance = h.instance()
    assert instance.context.steps.items == {"from": "Items"}
    assert instance.context.initial.keys == [1]
    assert set(instance.context.steps) == {"keys", "items", "get", "done"}


def test_everything_at_once_is_taken_in_order(env):
    """HE-109: results first, then a cancel, then messages; what is left of a run that ended is dropped."""
    start, fails, works, join = steps("Start", "Fails", "Works", "Join").values()
    hook = WaitForEvent("go", timeout=timedelta(minutes=1))
    cls = graph(
        start,
        {
            (start, "ok"): [fails, works, hook],
            (fails, "ok"): join,
            (works, "ok"): join,
            (hook, "go"): join,
            (hook, "timeout"): join,
            (join, "ok"): Done,
        },
    )
    env.hold(fails)
    env.hold(works)
    h = env.start(cls, {}, value="1")
    with env.batch():
        h.resume("go")
        env.complete(works, Event("ok", {"n": 1}))
        env.fail(fails, ValueError("broken"))
        env.advance(timedelta(minutes=2))
    assert h.status == "failed"
    instance = h.instance()
    assert (instance.context.steps.works, "wait_for_event" in instance.context.steps) == ({"n": 1}, True)
    assert instance.failed_step is fails
    assert join.ran == []
    env.replay(h)


def test_a_timer_and_a_resume_of_one_activation(env):
    """The timer comes first, the resume finds the step ended and changes nothing."""
    h = env.start(OrderGraph, {"total": 12}, value="1")
    with env.batch():
        h.resume("delivered")
        env.advance(timedelta(days=4))
    assert h.status == "completed"
    assert h.instance().execution_history[-2].event == "timeout"
    assert events(h, "SignalReceived") == []


def test_a_resume_while_the_step_is_being_tried_is_refused(env):
    """It does not wait, it works."""

    class Tries(Step):
        events = ("ok",)

        def execute(self, instance, config, context):
            raise OSError

    h = env.start(graph(Tries, {(Tries, "ok"): Done}), {}, value="1")
    with pytest.raises(errors.ResumeRefused, match="no step is waiting for the event 'ok'"):
        h.resume("ok")


def test_a_chain_of_hundreds_and_a_fan_of_hundreds(env):
    """HE-040 HE-062: each step once, whatever the size."""
    made = list(steps(*(f"N{n}" for n in range(100))).values())
    chain = graph(
        made[0],
        {**{(one, "ok"): two for one, two in pairwise(made)}, (made[-1], "ok"): Done},
        name="LongChain",
    )
    assert env.start(chain, {}, value="1").status == "completed"
    first, last = steps("First", "Last").values()
    fan = graph(first, {(first, "ok"): made, **{(one, "ok"): last for one in made}, (last, "ok"): Done}, name="WideFan")
    assert env.start(fan, {}, value="1").status == "completed"
    assert {len(one.ran) for one in made} == {2}
    assert len(last.ran) == 1


def test_a_step_may_be_an_instance_with_parameters_of_its_own(env):
    """HE-033: instances compare by value."""

    @dataclass(frozen=True)
    class Add(Step):
        events = ("ok",)
        n: int
        key: str | None = None

        def execute(self, instance, config, context):
            return Event("ok", {"sum": self.n + context.initial.base})

    cls = graph(Add(1, key="one"), {(Add(1, key="one"), "ok"): Add(2, key="two"), (Add(2, key="two"), "ok"): Done})
    assert env.start(cls, {"base": 10}, value="1").result() == {"one": {"sum": 11}, "two": {"sum": 12}, "done": {}}


def test_resumes_of_one_activation_end_their_steps_in_the_order_in_which_they_came(env):
    """Live, and for whoever reads the history."""
    cls, one, two, _ = two_waiting()
    h = env.start(cls, {}, value="1")
    with env.batch():
        h.resume("two")
        h.resume("one")
    ended = [entry.step for entry in h.instance().execution_history]
    assert ended.index(two) < ended.index(one)
    assert h.status == "completed"
