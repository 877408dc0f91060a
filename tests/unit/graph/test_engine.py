"""The pure engine: instances in, instances out. Nothing here knows a runtime."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from temporalex_django import (
    Approval,
    Debug,
    Done,
    Err,
    Event,
    GraphWorkflow,
    Pending,
    Step,
    Unique,
    Wait,
    WaitForEvent,
    errors,
)
from temporalex_django.graph import Context, ExecutionEntry, Instance, engine
from temporalex_django.graph import instance as snapshot
from temporalex_django.graph.context import freeze, thaw
from temporalex_django.graph.progress import Failure, Progress
from temporalex_django.graph.steps import key_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def step(name: str, *events: str, result=None, **more) -> type[Step]:
    def execute(self, instance, config, context):
        return result if result is not None else Event(self.events[0], {"config": config})

    return type(name, (Step,), {"events": events or ("ok",), "execute": execute, "__module__": __name__, **more})


Start, Left, Right, Join, Last = (step(name) for name in ("Start", "Left", "Right", "Join", "Last"))


class Diamond(GraphWorkflow):
    unique = Unique(key="diamond")
    initial = (Start, {"depth": 1})
    transitions = {
        (Start, "ok"): [(Left, {"side": "left"}), Right],
        (Left, "ok"): Join,
        (Right, "ok"): Join,
        (Join, "ok"): Done,
    }


def new(workflow=Diamond, **more) -> Instance:
    return Instance.new(**{"id": "diamond::1", "workflow": workflow, "initial": {"order": 7}, **more})


def after(instance: Instance, *steps, data=None) -> Instance:
    """The instance after these have ended with their first event, one after the other."""
    for ref in steps:
        event = ref.events[0]
        instance = engine.complete_step(instance, ref, event, data, now=NOW)
        instance = engine.activate_transitions(instance, ref, event)
    return instance


def running(*steps, workflow=Diamond) -> Instance:
    return after(engine.advance(new(workflow), now=NOW), *steps)


def test_a_new_instance_is_pending_and_empty():
    """HE-007 HE-008 HE-009 HE-013 HE-042."""
    instance = new()
    assert (instance.id, instance.workflow, instance.version, instance.status) == ("diamond::1", Diamond, 1, "pending")
    assert (instance.active_steps, instance.completed_steps, instance.waiting_steps) == (set(), set(), set())
    assert (instance.execution_history, instance.step_configs, instance.current_step) == ((), {}, None)
    assert (instance.runtime_metadata, instance.telemetry_metadata, instance.telemetry_start_time) == ({}, {}, None)
    assert (instance.context.initial.order, dict(instance.context.steps)) == (7, {})


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"id": None}, errors.InvalidId, "the id of an instance must be a string, not None"),
        ({"id": ""}, errors.InvalidId, "not ''"),
        ({"workflow": int}, errors.UnknownWorkflow, "is not a graph workflow"),
        ({"workflow": GraphWorkflow}, errors.UnknownWorkflow, "is not a graph workflow"),
        ({"version": 0}, errors.UnknownVersion, "the version 0 must be a whole number of 1 or more"),
        ({"version": True}, errors.UnknownVersion, "the version True must be"),
        ({"version": "1"}, errors.UnknownVersion, "the version '1' must be"),
        ({"initial": [1]}, errors.PayloadError, r"the initial context must be a mapping, not \[1\]"),
        ({"initial": {"a": object()}}, errors.PayloadError, r"the initial context cannot be encoded"),
        ({"telemetry_metadata": "x"}, errors.PayloadError, "the telemetry metadata must be a mapping"),
    ],
)
def test_what_an_instance_cannot_be_made_of(more, error, message):
    """HE-008 HE-010 HE-011."""
    with pytest.raises(error, match=message):
        new(**more)
    with pytest.raises(TypeError):
        Instance.new(workflow=Diamond)  # ids are never made up


def test_advance_begins_a_pending_instance_with_its_first_step_and_config():
    """HE-022 HE-027 HE-043 HE-189."""
    instance = engine.advance(new(), now=NOW)
    assert (instance.status, instance.active_steps, instance.current_step) == ("running", {Start}, Start)
    assert instance.step_configs == {Start: {"depth": 1}}
    assert instance.telemetry_start_time == NOW


def test_advance_leaves_an_instance_with_work_alone_and_completes_one_without():
    """HE-023 HE-024 HE-025 HE-026 HE-046."""
    instance = running()
    assert engine.advance(instance, now=NOW) is instance
    waiting = engine.wait_step(instance, Start)
    assert engine.advance(waiting, now=NOW) is waiting
    ended = running(Start, Left, Right, Join, Done)
    assert ended.status == "running"
    completed = engine.advance(ended, now=NOW)
    assert completed.status == "completed"
    for final in (completed, engine.fail_step(instance, Start, "why"), engine.cancel(instance)):
        assert engine.advance(final, now=NOW) is final


def test_execute_gives_the_result_as_it_is():
    """HE-028 HE-029 HE-080."""
    assert engine.execute_step(running(), Start) == Event("ok", {"config": {"depth": 1}})
    fanned = running(Start)
    assert engine.execute_step(fanned, Left).data == {"config": {"side": "left"}}
    assert engine.execute_step(fanned, Right).data == {"config": None}
    odd = step("Odd", result=Err("no"))
    flow = type(
        "Flow", (GraphWorkflow,), {"unique": Unique(key="f"), "initial": odd, "transitions": {(odd, "ok"): Done}}
    )
    assert engine.execute_step(engine.advance(new(flow)), odd) == Err("no")


def test_execute_refuses_what_is_no_step():
    """HE-030."""
    with pytest.raises(errors.WorkflowDefinitionError, match="is not a step: it has no execute"):
        engine.execute_step(running(), int)


def test_completing_moves_the_step_keeps_its_data_and_drops_its_config():
    """HE-015 HE-016 HE-018 HE-019 HE-021 HE-031."""
    before = running()
    instance = engine.complete_step(before, Start, "ok", {"a": [1]}, now=NOW)
    assert (instance.active_steps, instance.completed_steps, instance.step_configs) == (set(), {Start}, {})
    assert instance.context.steps == {"start": {"a": [1]}}
    assert instance.execution_history == (ExecutionEntry(Start, "ok", NOW, {"a": [1]}),)
    assert engine.complete_step(before, Start, "ok").context.steps == {"start": {}}


def test_a_fan_out_joins_when_all_branches_have_ended():
    """HE-032 HE-033 HE-034 HE-035 HE-044."""
    fanned = running(Start)
    assert fanned.active_steps == {Left, Right}
    assert fanned.step_configs == {Left: {"side": "left"}}
    one = after(fanned, Left)
    assert (one.active_steps, one.requested_steps) == ({Right}, {Join})
    both = after(one, Right)
    assert (both.active_steps, both.requested_steps) == ({Join}, set())
    assert after(after(fanned, Right), Left).active_steps == {Join}


def test_no_call_changes_what_it_is_given():
    """HE-001 HE-012: two ways on from one instance know nothing of each other."""
    base = running(Start)
    kept = snapshot.dump(base)
    one = after(base, Left, data={"from": "one"})
    two = after(base, Right, data={"from": "two"})
    three = after(base, Left, data={"from": "three"})
    assert snapshot.dump(base) == kept
    assert one.context.steps["left"] == {"from": "one"}
    assert three.context.steps["left"] == {"from": "three"}
    assert "left" not in two.context.steps
    assert [len(i.execution_history) for i in (base, one, two, three)] == [1, 2, 2, 2]
    later = after(one, Right, data={"x": 1})
    assert "right" not in one.context.steps
    assert one == after(base, Left, data={"from": "one"}) != three
    assert later.context.steps["right"] == {"x": 1}
    for change in (
        lambda: engine.wait_step(base, Left),
        lambda: engine.fail_step(base, Left, "x"),
        lambda: engine.cancel(base),
    ):
        change()
        assert snapshot.dump(base) == kept


def test_an_instance_is_frozen():
    """HE-012."""
    instance = running()
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.status = "completed"
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.execution_history = ()
    with pytest.raises(AttributeError):
        instance.context.initial = {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        engine.complete_step(instance, Start, "ok", now=NOW).execution_history[0].event = "no"
    steps = instance.active_steps
    assert isinstance(steps, frozenset)


def test_configs_of_two_ways_on_do_not_mix():
    """HE-034: the log is shared, what each asked for is not."""
    Pick = step("Pick", "ok")
    options = iter([(Left, {"n": 1}), (Left, {"n": 2}), Left])
    from temporalex_django import transit

    flow = type(
        "Choice",
        (GraphWorkflow,),
        {
            "unique": Unique(key="c"),
            "initial": Pick,
            "transitions": {(Left, "ok"): Done},
            "route": transit(Pick, "ok", targets=[Left])(lambda context: next(options)),
        },
    )
    done = engine.complete_step(engine.advance(new(flow)), Pick, "ok")
    made = [engine.activate_transitions(done, Pick, "ok") for _ in range(3)]
    assert [instance.step_configs for instance in made] == [{Left: {"n": 1}}, {Left: {"n": 2}}, {}]


def test_late_and_double_deliveries_change_nothing():
    """HE-040 HE-153."""
    instance = running(Start, Left)
    assert engine.complete_step(instance, Left, "ok", {"again": 1}, now=NOW) is instance
    again = engine.activate_transitions(instance, Left, "ok")
    assert (again.active_steps, again.requested_steps) == (instance.active_steps, instance.requested_steps)
    for final in (engine.cancel(instance), engine.fail_step(instance, Right, "x", now=NOW)):
        assert engine.complete_step(final, Right, "ok", now=NOW) is final
        assert engine.activate_transitions(final, Right, "ok") is final
        assert engine.wait_step(final, Right) is final
        assert engine.fail_step(final, Right, "y") is final
        assert engine.cancel(final) is final


def test_a_step_that_has_begun_does_not_begin_again():
    """HE-040: a transition that is delivered twice finds its target active."""
    both = running(Start, Left, Right)
    again, begun, _ = engine.follow(both, Right, "ok")
    assert (again.active_steps, again.requested_steps, begun) == ({Join}, set(), [])
    waiting = engine.wait_step(both, Join)
    assert engine.follow(waiting, Right, "ok")[1] == []


class Around(GraphWorkflow):
    """``Right`` waits for ``Pick``, which may lead to it through ``MarkerContent`` or pass it by."""

    unique = Unique(key="around")
    initial = Start
    Pick = step("Pick", "through", "past")
    transitions = {
        (Start, "ok"): [Pick, Last],
        (Last, "ok"): Right,
        (Pick, "through"): Left,
        (Pick, "past"): Join,
        (Left, "ok"): Right,
        (Right, "ok"): Join,
        (Join, "ok"): Done,
    }


def test_a_target_is_looked_at_again_when_what_led_to_it_goes_another_way():
    """HE-035: though the one that ended has no edge to it."""
    instance = after(engine.advance(new(Around)), Start, Last)
    assert instance.requested_steps == {Right}
    past = engine.complete_step(instance, Around.Pick, "past")
    past = engine.activate_transitions(past, Around.Pick, "past")
    assert (past.active_steps, past.requested_steps) == ({Right}, {Join})
    assert after(past, Right, Join).active_steps == {Done}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda i: engine.complete_step(i, Join, "ok"), "step Join is not in progress .in progress: Start"),
        (
            lambda i: engine.complete_step(i, Start, "nope"),
            "step Start emitted 'nope', which it does not declare .it declares: ok",
        ),
        (lambda i: engine.complete_step(i, Last, "ok"), "Last is not a step of Diamond"),
        (lambda i: engine.activate_transitions(i, Start, "ok"), "step Start has not completed"),
        (lambda i: engine.wait_step(i, Join), "step Join is not active, so it cannot wait"),
        (lambda i: engine.resume_step(i, Start, "ok"), "step Start is not waiting .waiting: no step"),
        (lambda i: engine.resume_step(engine.wait_step(i, Start), Start, "nope"), "step Start has no event 'nope'"),
        (lambda i: engine.complete_step(new(), Start, "ok"), "step Start is not in progress"),
    ],
)
def test_every_other_move_is_refused_by_name(act, message):
    """HE-039 HE-049 HE-083."""
    instance = running()
    kept = snapshot.dump(instance)
    with pytest.raises(errors.TemporalexError, match=message):
        act(instance)
    assert snapshot.dump(instance) == kept


def test_waiting_and_resuming():
    """HE-038 HE-042 HE-045 HE-048 HE-050 HE-051."""
    fanned = running(Start)
    one = engine.wait_step(fanned, Left)
    assert (one.status, one.waiting_steps, one.active_steps, one.current_step) == ("running", {Left}, {Right}, Right)
    both = engine.wait_step(one, Right)
    assert (both.status, both.active_steps, both.current_step) == ("waiting", set(), Left)
    resumed = engine.resume_step(both, Right, "ok", {"by": "ann"}, now=NOW)
    assert (resumed.status, resumed.waiting_steps, resumed.requested_steps) == ("waiting", {Left}, {Join})
    assert resumed.context.steps.right.by == "ann"
    assert engine.resume_step(resumed, Left, "ok", now=NOW).active_steps == {Join}
    with pytest.raises(errors.ResumeRefused):
        engine.resume_step(resumed, Right, "ok")


def test_failing_and_cancelling():
    """HE-047 HE-052 HE-053 HE-109."""
    fanned = running(Start)
    failed = engine.fail_step(fanned, Left, {"code": 1}, now=NOW)
    assert (failed.status, failed.failed_step, failed.reason) == ("failed", Left, {"code": 1})
    assert (failed.active_steps, failed.current_step) == (set(), None)
    for instance in (new(), fanned, engine.wait_step(running(), Start)):
        assert engine.cancel(instance).status == "cancelled"


def test_the_context_is_read_by_attribute_or_key_and_never_written():
    """HE-013 HE-014: no key takes a method away; by attribute an array or an object under such a name is both."""
    data = {"items": [{"sku": "a"}], "get": 1, "keys": {"deep": [[{"x": 1}]]}}
    context = new(initial=data).context
    assert context.initial.items[0].sku == context.initial["items"][0]["sku"] == "a"
    assert (context.initial["get"], context.initial.keys.deep[0][0].x) == (1, 1)
    assert (context.initial.get("get"), context.initial.get("no", 2), sorted(context.initial.keys())) == (
        1,
        2,
        sorted(data),
    )
    assert context.initial == data
    assert json.loads(json.dumps(context.initial)) == data
    assert dict(context.initial.items()) == data
    assert (dict(context.initial), {**context.initial}) == (data, data)
    for change in (
        lambda: context.initial.update(a=1),
        lambda: context.initial.__setitem__("a", 1),
        lambda: context.initial.items.append(1),
        lambda: context.initial["keys"]["deep"][0].clear(),
        lambda: setattr(context.initial, "order", 1),
        lambda: context.initial.__delitem__("items"),
        lambda: context.initial.__ior__({"a": 1}),
        lambda: context.initial["items"].__iadd__([1]),
        lambda: context.initial["items"].sort(),
        lambda: context.steps.__setattr__("a", 1),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    assert context.initial == data
    with pytest.raises(AttributeError, match="there is no 'nothing' here, only: get, items, keys"):
        _ = context.initial.nothing
    with pytest.raises(AttributeError, match="no step with the key 'nothing' has ended yet, only: none"):
        _ = context.steps.nothing


NAMES = sorted(name for name in dir(dict) if not name.startswith("_"))


@pytest.mark.parametrize("value", [1, None, "text", [1], {"x": 1}, True])
def test_payloads_may_have_keys_like_methods(value):
    """What comes from a form or a webhook has any keys; code that reads the data goes on."""
    data = dict.fromkeys([*NAMES, "sku"], value)
    read = [freeze(data), Context(data, {}).initial, Context({}, {"step": data}).steps.step, Context({}, data).steps]
    for found in read:
        assert found.get("sku", None) == value
        assert found.get("nothing", 7) == 7
        assert sorted(found.keys()) == sorted(data)
        assert dict(found.items()) == data
        assert list(found.values()) == list(data.values())
        assert {name: found[name] for name in NAMES} == dict.fromkeys(NAMES, value)
        assert found == data
        assert dict(found) == {**found} == data
        assert found.sku == value
        for name in ("get", "items", "keys", "values"):
            seen = getattr(found, name)
            assert callable(seen)
            assert not isinstance(value, (list, dict)) or seen == value
    assert json.loads(json.dumps(read[0])) == thaw(read[0]) == data


def test_a_context_can_be_made_by_hand():
    """HE-005: for tests of steps and routes."""
    context = Context({"a": 1}, {"review": {"score": 8}})
    assert (context.initial.a, context.steps.review.score, "other" in context.steps) == (1, 8, False)
    assert context == Context({"a": 1}, {"review": {"score": 8}}) != Context({"a": 2})


def test_thawing_gives_ordinary_data_back():
    data = {"a": [{"b": 1}], "c": None}
    assert thaw(freeze(data)) == data
    assert type(thaw(freeze(data))["a"]) is list
    assert type(thaw(freeze(data))["a"][0]) is dict


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ValidateOrder", "validate_order"), ("StepB", "step_b"), ("A", "a"), ("HTTPCall", "http_call"), ("CallHTTP", "call_http"),
        ("HTTPCall2", "http_call2"), ("Step2Go", "step2_go"), ("already_snake", "already_snake"), ("V2", "v2"),
    ],
)  # fmt: skip
def test_keys_are_class_names_in_snake_case(name, key):
    """HE-085."""
    assert key_of(step(name)) == key


def test_a_key_of_its_own_wins():
    """HE-084."""
    assert key_of(step("Something", key="other")) == "other"
    assert key_of(Wait(1, key="pause")) == "pause"
    assert (key_of(Wait(1)), key_of(WaitForEvent("x")), key_of(Approval()), key_of(Done)) == (
        "wait", "wait_for_event", "approval", "done",
    )  # fmt: skip


def test_what_is_built_in(caplog):
    """HE-089 HE-090 HE-091 HE-092."""
    instance = new(initial={"secret": "4711"})
    caplog.set_level("DEBUG", logger="temporalex_django.workflow")
    assert Done().execute(instance, None, instance.context) == Event("done")
    for waits in (Wait(1), WaitForEvent("x"), Approval()):
        assert waits.execute(instance, None, instance.context) == Pending()
    assert Debug().execute(instance, None, instance.context) == Event("completed")
    assert "diamond::1" in caplog.text
    assert "4711" not in caplog.text
    assert Wait(timedelta(hours=1)).timer() == (3600.0, "timeout")
    assert (WaitForEvent("x").events, WaitForEvent("x", timeout=5).events) == (("x",), ("x", "timeout"))
    assert (Approval().events, Approval(due=5).events) == (
        ("approved", "rejected"),
        ("approved", "rejected", "overdue"),
    )
    assert (WaitForEvent("x", timeout=5).timer(), Approval(due=5).timer()) == ((5.0, "timeout"), (5.0, "overdue"))


def test_a_snapshot_comes_back_as_it_was():
    """HE-125: sets, dates, steps and entries; what is not in the class is refused."""
    waiting = engine.wait_step(running(Start, Left), Right)
    for instance in (
        new(),
        running(),
        waiting,
        engine.fail_step(waiting, Left, "why"),
        running(Start, Left, Right, Join, Done),
    ):
        data = json.loads(json.dumps(snapshot.dump(instance)))
        again = snapshot.load(Diamond, data)
        assert again == instance
        assert (again.waiting_steps, again.execution_history) == (instance.waiting_steps, instance.execution_history)
    data = snapshot.dump(waiting)
    with pytest.raises(errors.PayloadError, match="there is no step 'gone'"):
        snapshot.load(Diamond, {**data, "active": ["gone"]})
    with pytest.raises(errors.PayloadError, match="'odd' is not a status"):
        snapshot.load(Diamond, {**data, "status": "odd"})


class Longer(GraphWorkflow):
    version = 2
    unique = Unique(key="diamond")
    initial = Start
    transitions = {
        (Start, "ok"): [Left, Right],
        (Left, "ok"): Last,
        (Last, "ok"): Join,
        (Right, "ok"): Join,
        (Join, "ok"): Done,
    }


def test_an_instance_moves_where_it_can_stand():
    """Versions: what has begun must not come before what is still to end."""
    moved = snapshot.load(Longer, snapshot.snapshot_for_version(running(Start), Longer, {}))
    assert (moved.active_steps, moved.version) == ({Left, Right}, 2)
    assert after(moved, Left).active_steps == {Right, Last}
    stays = snapshot.load(Longer, snapshot.snapshot_for_version(after(running(Start), Right), Longer, {}))
    assert (stays.active_steps, stays.requested_steps) == ({Left}, {Join})
    back = running(Start, Left, workflow=Longer)
    with pytest.raises(errors.PayloadError, match="version 1 has no step 'last': map it with --map last=NewStep"):
        snapshot.snapshot_for_version(back, Diamond, {})


def test_what_has_begun_too_early_does_not_move():
    class Behind(GraphWorkflow):
        version = 3
        unique = Unique(key="diamond")
        initial = Start
        transitions = {(Start, "ok"): Left, (Left, "ok"): Right, (Right, "ok"): Join, (Join, "ok"): Done}

    with pytest.raises(
        errors.PayloadError,
        match="step 'right' has started, but in version 3 it comes after 'left', which has not ended",
    ):
        snapshot.snapshot_for_version(running(Start), Behind, {})
    moved = snapshot.load(Behind, snapshot.snapshot_for_version(running(Start, Left), Behind, {}))
    assert moved.active_steps == {Right}


def test_values_and_ids():
    """HE-127 HE-128 HE-129 HE-130 HE-131 HE-132."""
    unique = Unique(key="orderid")
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    assert [unique.id_for(value) for value in ("42", "abc9", uuid)] == [
        "orderid::42",
        "orderid::abc9",
        f"orderid::{uuid}",
    ]
    for value in ("A", "a-b", "a_b", "a::b", " ", "", "a\n", uuid.upper(), 42, None):
        with pytest.raises(errors.InvalidId, match="must be lower-case letters and digits, or a UUID"):
            unique.id_for(value)
    suffixed = Unique(key="k", scope="none").run_id_for("v", lambda: "0a1b2c3d")
    assert suffixed == "k::v::0a1b2c3d"
    assert (unique.value_of("orderid::42"), Unique(key="k").value_of(suffixed)) == ("42", "v")
    for other in ("orderid", "other::42", "orderid::42::x::y", "orderid::A", 7):
        with pytest.raises(errors.InvalidId):
            unique.value_of(other)


ODD = type(
    'Say "<b>hi</b>"|\n',
    (Step,),
    {"key": "odd", "events": ('a"|<script>',), "execute": Start.execute, "__module__": __name__},
)


class Escaped(GraphWorkflow):
    unique = Unique(key="escaped")
    initial = ODD
    transitions = {(ODD, 'a"|<script>'): Done}


def test_pictures_escape_what_they_show():
    """HE-170: names may be anything; with an instance the state is in the label and the colour."""
    mermaid, dot = Escaped.to_mermaid(), Escaped.to_dot()
    assert "<script>" not in mermaid
    assert "<b>" not in mermaid
    assert mermaid.count("\n") == 4
    assert r'[label="a\"|<script>"' in dot
    assert r'label="Say \"<b>hi</b>\"|\n"' in dot
    instance = engine.wait_step(running(Start), Left)
    shown = Diamond.to_mermaid(instance)
    for part in (
        '"Start (completed)"]:::completed',
        '"Left (waiting)"]:::waiting',
        '"Right (active)"]:::active',
        '"Join"]',
    ):
        assert part in shown
    assert 'label="Left (waiting)" style="rounded,filled"' in Diamond.to_dot(instance)
    assert '"Left (failed)"' in Diamond.to_mermaid(engine.fail_step(running(Start), Left, "x"))


def test_the_engine_runs_without_django():
    """HE-001 HE-002 HE-004: neither django nor django_q nor a database is imported."""
    code = """
import sys
for name in ("django", "django_q", "rest_framework", "psycopg"):
    sys.modules[name] = None
from temporalex_django import GraphWorkflow, Step, Event, Done, Unique
from temporalex_django.graph import Instance, engine
class A(Step):
    events = ("ok",)
    def execute(self, instance, config, context):
        return Event("ok")
class Flow(GraphWorkflow):
    unique = Unique(key="a")
    initial = A
    transitions = {(A, "ok"): Done}
i = engine.advance(Instance.new(id="a::1", workflow=Flow))
i = engine.activate_transitions(engine.complete_step(i, A, "ok"), A, "ok")
assert i.active_steps == {Done}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_duration_whose_beginning_is_not_known_is_none():
    """HE-190 HE-195: a caller without a clock gets no invented figures; the engine itself tells nobody."""
    told = []
    progress = Progress(new(), listener=lambda name, facts: told.append((name, facts)))
    begun = progress.begin(None)
    while begun:
        begun = [n for number in begun for n in progress.fold([(number, Event("ok"))], None)]
    assert progress.instance.status == "completed"
    durations = [facts["duration"] for _, facts in told if "duration" in facts]
    assert len(durations) == 6
    assert set(durations) == {None}


def test_of_several_failures_the_first_counts_and_nothing_follows_on_what_ended_beside_it():
    """HE-109: what the others gave is kept, for whoever looks afterwards."""
    told = []
    progress = Progress(running(Start), listener=lambda name, facts: told.append(name))
    left, right = (progress.instance.graph.number[ref] for ref in (Left, Right))
    assert progress.fold([(left, Err("first")), (right, Event("ok", {"kept": 1}))], NOW) == []
    assert (progress.instance.failed_step, progress.instance.reason) == (Left, "first")
    assert progress.instance.context.steps.right == {"kept": 1}
    assert "workflow_transition" not in told
    both = Progress(running(Start))
    both.fold([(right, Failure("ValueError", "one")), (left, Err("two"))], NOW)
    assert (both.instance.failed_step, both.failure["type"]) == (Right, "ValueError")
