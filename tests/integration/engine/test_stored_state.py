"""Fields of a published state that a class stores for SQL, and objects joined with them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.db.models import F
from django.test import override_settings

from temporalex_django import ContinueAsNew, NoReply, Ok, Stop, VersionedWorkflow, Workflow, api
from temporalex_django.authoring.workflow import registry
from temporalex_django.core.payloads.codec import stored_fields
from temporalex_django.errors import NotConfigured, WorkflowDefinitionError
from temporalex_django.models import Instance
from temporalex_django.models.states import WorkflowStateQuerySet
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db

STORED = {"phase": str, "total": Decimal, "lines": int}


class Stating(Workflow):
    """Publishes what it is told."""

    name = "test.Stating"
    stored = STORED

    async def run(self, args: Any) -> Any:
        if args == "again":
            return Ok(await self.say())
        api.publish_state(args)
        await self.say()
        return ContinueAsNew("again")

    async def say(self) -> Any:
        def said(payload: Any, state: Any) -> Any:
            api.publish_state(payload)
            return NoReply(state)

        return await api.phase(None, signal={"say": said, "go": lambda _, state: Stop(state)})


def people() -> WorkflowStateQuerySet[Any]:
    return WorkflowStateQuerySet(get_user_model()).order_by("username")


def test_objects_are_joined_with_what_their_runs_published():
    """Also by filters and orders, of the newest run, and across continue-as-new."""
    make = get_user_model().objects.create_user
    ann, bob, _none = (make(name, first_name="10.5") for name in ("ann", "bob", "none"))
    Stating.start({"phase": "old", "total": "1"}, id="a-0", subject=ann).terminate()
    first = Stating.start({"phase": "approval", "total": "1200.50", "lines": 3, "more": [1]}, id="a-1", subject=ann)
    second = Stating.start({"phase": "paid", "total": "10.5", "lines": 20}, id="b-1", subject=bob)
    drain()

    def found(*names: str, of: Any = None) -> list[Any]:
        of = people() if of is None else of
        return [*of.with_workflow_state(*names).values_list("username", *(f"workflow_{name}" for name in names))]

    assert found("phase") == [("ann", "approval"), ("bob", "paid"), ("none", None)]
    assert found("total", "lines") == [
        ("ann", Decimal("1200.5"), 3),
        ("bob", Decimal("10.5"), 20),
        ("none", None, None),
    ]
    joined = people().with_workflow_state("phase", "total", "lines", workflow=Stating)
    assert [one.username for one in joined.filter(workflow_phase="approval", workflow_total__gt=1000)] == ["ann"]
    assert [one.username for one in joined.order_by(F("workflow_lines").desc(nulls_last=True))] == [
        "bob",
        "ann",
        "none",
    ]
    assert [one.username for one in joined.filter(workflow_total__isnull=False).exclude(workflow_total="10.50")] == [
        "ann"
    ]
    assert Instance.objects.get(workflow_id="a-1").stored == {"phase": "approval", "total": "1200.50", "lines": 3}

    second.signal("say", {"phase": "sent", "total": True, "lines": "x"})
    drain()
    assert found("phase", "total") == [
        ("ann", "approval", Decimal("1200.5")),
        ("bob", "sent", None),
        ("none", None, None),
    ]
    first.signal("go")  # the next run has published nothing yet
    drain()
    assert Instance.objects.filter(workflow_id="a-1").count() == 2
    assert found("phase")[0] == ("ann", "approval")


def test_what_is_not_declared_is_refused_with_what_is(monkeypatch):
    with pytest.raises(TypeError, match=r"no class stores 'colour' \(stored fields: lines, phase, total\)"):
        people().with_workflow_state("colour", workflow=Stating)

    class Otherwise(Workflow):
        name = "test.StatingOtherwise"
        stored = {"total": int}

        async def run(self, args: Any) -> Any:
            return Ok(None)

    try:
        with pytest.raises(TypeError, match="'total' with several types; pass one as workflow="):
            people().with_workflow_state("total")
        people().with_workflow_state("total", workflow=Otherwise)
    finally:
        registry.pop(Otherwise.name)
    with pytest.raises(NotConfigured, match="the runs are in the database 'default'"):
        people().using("elsewhere").with_workflow_state("phase")


def test_what_was_stored_under_another_type_is_none_where_it_does_not_fit(monkeypatch):
    """And no query fails because of it."""
    large = 2**63
    fits = {"12": 12, "-7": -7, "9" * 18: 10**18 - 1, str(large - 1): large - 1, str(-large): -large}
    values = [*fits, "12.5", "approval", "12\n", "", "1e3", "true", str(large), str(-large - 1), "9" * 30]
    for number, value in enumerate(values):
        user = get_user_model().objects.create_user(f"u{number:02}")
        Stating.start({"phase": value, "total": "12.50", "lines": 3}, id=f"u-{number}", subject=user)
    drain()
    monkeypatch.setattr(Stating, "stored", {"phase": int, "total": int, "lines": Decimal})
    joined = people().with_workflow_state("phase", "total", "lines", workflow=Stating)

    assert [(one.workflow_phase, one.workflow_total, one.workflow_lines) for one in joined] == [
        (fits.get(value), None, Decimal(3)) for value in values
    ]
    assert joined.filter(workflow_phase__gt=11).count() == 3
    monkeypatch.setattr(Stating, "stored", {"phase": Decimal, "lines": str})
    joined = people().with_workflow_state("phase", "lines", workflow=Stating)
    assert [one.username for one in joined.filter(workflow_phase__gte=12, workflow_phase__lt=13)] == ["u00", "u05"]
    assert {one.workflow_lines for one in joined} == {"3"}
    assert [one.workflow_phase is None for one in joined] == [
        value in ("approval", "12\n", "", "1e3", "true", "9" * 30) for value in values
    ]


def test_versions_that_declare_a_field_otherwise_are_asked_for_one_by_one():
    class StatesText(Stating):
        name = "test.StatesText"
        stored = {"total": str}

    class StatesNumber(Stating):
        name = "test.StatesNumber"
        version = 2
        stored = {"total": int}

    class StatesBoth(VersionedWorkflow):
        name = "test.StatesBoth"
        versions = {1: StatesText, 2: StatesNumber}
        current = 2

    try:
        StatesBoth.start({"total": 5}, id="s", subject=get_user_model().objects.create_user("ann"))
        drain()
        with pytest.raises(TypeError, match="the versions of test.StatesBoth store 'total' with several types; pass"):
            people().with_workflow_state("total", workflow=StatesBoth)
        for cls, value in ((StatesText, "5"), (StatesNumber, 5)):
            assert people().with_workflow_state("total", workflow=cls).get().workflow_total == value
    finally:
        registry.pop(StatesBoth.name)


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (["total"], "must be a mapping of fields to types"),
        ({"a__b": str}, "must be an identifier of at most 100 characters"),
        ({"a b": str}, "must be an identifier of at most 100 characters"),
        ({"total": float}, "total must be str, int, Decimal, not <class 'float'>"),
        ({"card": str}, "card is also redacted"),
    ],
)
def test_what_a_class_cannot_declare(stored, says):
    with pytest.raises(WorkflowDefinitionError, match=f"stored.*{says}"):
        type("Wrong", (Stating,), {"name": "test.WrongStored", "stored": stored, "redacted": ("card",)})


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (None, {}),
        (["total"], {}),
        ({"total": 7, "lines": 7, "phase": "x"}, {"total": "7", "lines": 7, "phase": "x"}),
        ({"total": "1e3"}, {"total": "1000"}),
        ({"total": "NaN"}, {}),
        ({"total": "1e999"}, {}),
        ({"total": "much", "lines": 2**63, "phase": 7}, {}),
        ({"total": False, "lines": True, "phase": None}, {}),
    ],
)
def test_only_what_fits_its_type_is_kept_for_sql(state, kept):
    assert stored_fields(state, STORED) == kept


def test_plain_text_beside_another_codec_is_warned_of():
    def warned() -> list[str]:
        return [one.msg for one in run_checks() if one.id == "temporalex_django.W008"]

    assert warned() == []
    with override_settings(TEMPORALEX={"PAYLOAD_CODEC": f"{__name__}.Codec"}):
        assert any("test.Stating stores lines, phase, total" in text for text in warned())


class Codec:
    """Another one."""

    def encode(self, value: Any) -> bytes:
        return b""

    def decode(self, data: bytes) -> Any:
        return None
