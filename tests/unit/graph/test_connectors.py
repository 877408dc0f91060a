"""Connectors: found by key, called by steps alone, replaced in tests without a change of code."""

from __future__ import annotations

import threading

import pytest

from temporalex_django import Done, Err, Event, GraphWorkflow, Ok, Step, Unique, errors
from temporalex_django.graph import connectors
from temporalex_django.graph.connectors import Connector, RecordingConnector
from temporalex_django.testing import WorkflowEnvironment


@connectors.connector("payments")
class Payments(Connector):
    actions = ("charge",)

    def charge(self, params, config):
        return Ok({"real": params["cents"]}) if params["cents"] > 0 else Err("nothing to charge")


class Pay(Step):
    events = ("paid", "refused")

    def execute(self, instance, config, context):
        match connectors.of(config).execute("charge", {"cents": context.initial.cents}, config):
            case Ok(value):
                return Event("paid", value)
            case Err(reason):
                return Event("refused", {"why": reason})


class Paying(GraphWorkflow):
    unique = Unique(key="paying")
    initial = (Pay, {"connector": "payments"})
    transitions = {(Pay, "paid"): Done, (Pay, "refused"): Done}


def test_a_step_finds_its_connector_through_its_config():
    """HE-182 HE-184 HE-185."""
    env = WorkflowEnvironment()
    assert env.start(Paying, {"cents": 5}, value="1").result()["pay"] == {"real": 5}
    assert env.start(Paying, {"cents": 0}, value="2").result()["pay"] == {"why": "nothing to charge"}


def test_a_double_takes_its_place():
    """HE-185: whatever thread the step runs in, and only inside."""
    double = RecordingConnector(charge=lambda params, config: Ok({"fake": params["cents"]}))
    with connectors.swapped(payments=double):
        assert WorkflowEnvironment().start(Paying, {"cents": 5}, value="1").result()["pay"] == {"fake": 5}
        found = []
        thread = threading.Thread(target=lambda: found.append(connectors.get("payments")))
        thread.start()
        thread.join(10)
        assert found == [double]
    assert double.calls == [("charge", {"cents": 5}, {"connector": "payments"})]
    assert isinstance(connectors.get("payments"), Payments)


def test_actions_are_listed_and_one_that_there_is_not_is_an_error_result():
    """HE-183 HE-186."""
    assert Payments().supported_actions() == ["charge"]
    assert Payments().execute("refund") == Err("Payments has no action 'refund' (it has: charge)")
    assert RecordingConnector(a=Ok(1)).execute("b") == Err("RecordingConnector has no action 'b' (it has: a)")


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: connectors.get("nowhere"), errors.NotConfigured, "no connector 'nowhere' is registered"),
        (lambda: connectors.of({}), errors.NotConfigured, "the config of the step contains no connector"),
        (lambda: connectors.of(None), errors.NotConfigured, "the config of the step contains no connector"),
        (
            lambda: connectors.register("", Payments),
            errors.WorkflowDefinitionError,
            "the key of a connector must be a string",
        ),
        (lambda: connectors.register("x", 7), errors.WorkflowDefinitionError, "7 is neither a class nor a function"),
    ],
)
def test_what_is_missing_is_said(act, error, message):
    with pytest.raises(error, match=message):
        act()
