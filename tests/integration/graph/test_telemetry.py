"""The eleven signals of graphs, and the handler that logs them."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from temporalex_django import (
    Done,
    Err,
    Event,
    GraphWorkflow,
    Ok,
    Pending,
    RetryPolicy,
    Step,
    Unique,
    WaitForEvent,
    Workflow,
    errors,
    signals,
)
from temporalex_django.contrib.telemetry import LogHandler
from temporalex_django.db.graph_storage import instance_of
from temporalex_django.models import Chain
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)

GRAPH = (
    "runner_initialized", "workflow_started", "workflow_stopped", "workflow_failed", "workflow_transition", "step_started",
    "step_stopped", "step_failed", "step_waiting", "step_resumed", "engine_advanced",
)  # fmt: skip


class First(Step):
    events = ("on",)

    def execute(self, instance, config, context):
        return Event("on", {"secret": "4711"})


class Other(Step):
    events = ("on",)
    retry = RetryPolicy(max_attempts=1)

    def execute(self, instance, config, context):
        return Err({"secret": "4711"}) if context.initial.get("fail") else Event("on")


class Manual(Step):
    events = ("go",)

    def execute(self, instance, config, context):
        return Pending()


wait = WaitForEvent("late", timeout=timedelta(milliseconds=1))


class Told(GraphWorkflow):
    name = "test.Told"
    version = 3
    unique = Unique(key="told")
    initial = First
    transitions = {
        (First, "on"): [Other, Manual],
        (Other, "on"): wait,
        (Manual, "go"): wait,
        (wait, "late"): Done,
        (wait, "timeout"): Done,
    }


@pytest.fixture
def heard():
    """Name and facts of each signal, in order."""
    found = []
    receivers = {}
    for name in GRAPH:

        def receive(signal, sender, name=name, **facts):
            found.append((name, sender, facts))

        receivers[name] = receive
        signals.ALL[name].connect(receive, weak=False)
    yield found
    for name, receive in receivers.items():
        signals.ALL[name].disconnect(receive)


def test_eleven_signals_tell_the_life_of_a_graph(heard):
    """HE-187 HE-189 HE-191 HE-192 HE-193 HE-194 HE-195."""
    handle = Told.start("1", {}, telemetry={"tenant": "acme", "step": "never", "sender": "me", "self": 1, "signal": 2})
    assert heard == []
    drain()
    Told.resume("1", "go")
    drain()
    assert handle.result(timeout=10)["done"] == {}
    assert {sender for _, sender, _ in heard} == {Told}
    for _, _, facts in heard:
        assert facts["tenant"] == "acme"
        assert (facts["workflow"], facts["workflow_id"], facts["run_id"]) == ("test.Told", "told::1", handle.run_id)
        assert facts["workflow_version"] == 3
    by_name = {name: [facts for found, _, facts in heard if found == name] for name in GRAPH}
    assert [name for name, _, _ in heard][:4] == [
        "runner_initialized",
        "workflow_started",
        "step_started",
        "engine_advanced",
    ]
    assert [facts["recovered"] for facts in by_name["runner_initialized"]][0] is False
    assert [facts["step"] for facts in by_name["step_started"]] == [
        "first",
        "other",
        "manual",
        "wait_for_event",
        "done",
    ]
    assert [(f["concurrent"], f["active_count"]) for f in by_name["step_started"]][:3] == [
        (False, 1),
        (True, 2),
        (True, 2),
    ]
    transitions = by_name["workflow_transition"]
    assert [(f["step"], f["event"], f["targets"], f["count"], f["fan_out"]) for f in transitions] == [
        ("first", "on", ["other", "manual"], 2, True),
        ("other", "on", ["wait_for_event"], 1, False),
        ("manual", "go", ["wait_for_event"], 1, False),
        ("wait_for_event", "timeout", ["done"], 1, False),
    ]
    assert [(f["step"], f["events"]) for f in by_name["step_waiting"]] == [
        ("manual", ["go"]),
        ("wait_for_event", ["late", "timeout"]),
    ]
    assert [(f["step"], f["event"], f["source"]) for f in by_name["step_resumed"]] == [
        ("manual", "go", "external"),
        ("wait_for_event", "timeout", "timeout"),
    ]
    assert all(f["wait_duration"] >= 0 for f in by_name["step_resumed"])
    assert all(f["duration"] >= 0 for f in by_name["step_stopped"])
    (stopped,) = by_name["workflow_stopped"]
    assert (stopped["status"], stopped["duration"] > 0) == ("completed", True)
    assert by_name["workflow_failed"] == []
    assert handle.instance().telemetry_metadata == {
        "tenant": "acme",
        "step": "never",
        "sender": "me",
        "self": 1,
        "signal": 2,
    }


def test_a_failure_is_told_once(heard):
    """HE-081 HE-191."""
    Told.start("1", {"fail": True})
    drain()
    names = [name for name, _, _ in heard]
    assert (names.count("step_failed"), names.count("workflow_failed"), names.count("workflow_stopped")) == (1, 1, 0)
    (failed,) = [facts for name, _, facts in heard if name == "workflow_failed"]
    assert (failed["step"], failed["reason"]) == ("other", {"secret": "4711"})


def test_ending_from_outside_is_told(heard):
    """HE-191."""
    handle = Told.start("1", {})
    drain()
    Told.cancel("1")
    (stopped,) = [facts for name, _, facts in heard if name == "workflow_stopped"]
    assert (stopped["status"], stopped["workflow_version"]) == ("cancelled", 3)
    assert handle.status == "cancelled"


def test_a_replay_and_a_projection_say_nothing(heard):
    """HE-191: never on replay."""
    from temporalex_django.core.history.replay import replay

    handle = Told.start("1", {})
    drain()
    before = len(heard)
    replay(Told.definition, handle.history())
    instance_of(Chain.objects.get().run_id, Told)
    handle.instance()
    assert len(heard) == before


def test_a_receiver_that_raises_harms_nobody():
    """HE-196."""

    def receive(**facts):
        raise RuntimeError("no")

    signals.step_started.connect(receive)
    try:
        Told.start("1", {})
        drain()
    finally:
        signals.step_started.disconnect(receive)
    assert Told.get("1").describe().waiting_for == ["step manual: go"]


@pytest.mark.parametrize("telemetry", [["x"], {"a": object()}])
def test_telemetry_metadata_must_be_a_mapping_of_json(telemetry):
    """HE-199."""
    with pytest.raises(errors.PayloadError, match="telemetry"):
        Told.start("1", {}, telemetry=telemetry)
    assert not Chain.objects.exists()


def test_a_function_workflow_has_none():
    class Plain(Workflow):
        async def run(self, args):
            return Ok(None)

    with pytest.raises(errors.PayloadError, match="Plain is not a graph: its start does not accept telemetry"):
        Plain.start({}, telemetry={"a": 1})


def test_the_log_handler_writes_what_happens_and_no_payloads(caplog):
    """HE-197."""
    caplog.set_level(logging.DEBUG, logger="temporalex_django.telemetry")
    handler = LogHandler(levels={"step_started": logging.WARNING})
    handler.attach()
    with pytest.raises(RuntimeError, match="already attached"):
        handler.attach()
    try:
        Told.start("1", {"fail": True, "note": "4711"})
        drain()
    finally:
        handler.detach()
    with pytest.raises(RuntimeError, match="is not attached"):
        handler.detach()
    records = [record for record in caplog.records if record.name == "temporalex_django.telemetry"]
    levels = {record.event: record.levelname for record in records}
    assert (levels["step_started"], levels["workflow_failed"], levels["engine_advanced"]) == (
        "WARNING",
        "ERROR",
        "DEBUG",
    )
    assert any("workflow_id=told::1" in record.getMessage() for record in records)
    assert "4711" not in "".join(record.getMessage() for record in records)
    Told.start("2", {})
    count = len(records)
    drain()
    assert len([r for r in caplog.records if r.name == "temporalex_django.telemetry"]) == count


def test_the_log_handler_takes_some_events_and_refuses_unknown_ones(caplog):
    """HE-197."""
    caplog.set_level(logging.DEBUG, logger="temporalex_django.telemetry")
    handler = LogHandler(events=["workflow_started"])
    handler.attach()
    try:
        Told.start("1", {})
        drain()
    finally:
        handler.detach()
    assert [r.event for r in caplog.records if r.name == "temporalex_django.telemetry"] == ["workflow_started"]
    with pytest.raises(ValueError, match="there is no event nothing"):
        LogHandler(events=["nothing"])
    with pytest.raises(ValueError, match="there is no event nothing"):
        LogHandler(levels={"nothing": 10})
