"""The handles of a ``DjangoEnvironment`` leave the audit rows, and raise the refusals, of production's handles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from temporalex_django import Approval, Done, GraphWorkflow, Ok, Stop, Unique, Workflow, WorkflowHandle, api, errors
from temporalex_django.models import OperatorAction
from temporalex_django.testing import DjangoEnvironment
from tests.support.people import stored
from tests.support.runs import work

pytestmark = pytest.mark.django_db


class Audited(Workflow):
    """Does an activity, takes messages, and asks somebody."""

    name = "test.Audited"

    async def run(self, args: Any) -> Any:
        api.publish_state("begun")
        await work()
        await api.phase(
            None,
            signal={"go": lambda payload, state: Stop(payload)},
            update={"end": lambda args, state: Stop(state, args)},
        )
        decision = await api.approval("Pay it", role="auth.change_group")
        return Ok(decision.outcome)


class Resumed(GraphWorkflow):
    name = "test.AuditedGraph"
    unique = Unique(key="auditedgraph")
    initial = approval = Approval(role="auth.change_group", key="pay")
    transitions = {(approval, "approved"): Done, (approval, "rejected"): Done}


#: What a user does with a run.
SCENES: dict[str, Callable[[Any, Any], Any]] = {
    "signal": lambda handle, by: handle.signal("go", "secret", by=by),
    "update": lambda handle, by: handle.update("end", "secret", by=by),
    "query": lambda handle, by: handle.query("__accepts", by=by),
    "cancel": lambda handle, by: handle.cancel("too late", by=by),
    "terminate": lambda handle, by: handle.terminate("enough", by=by),
    "reset": lambda handle, by: handle.reset(1, reason="again", by=by),
    "fork": lambda handle, by: handle.fork(1, reason="what if", by=by),
    "pause and unpause": lambda handle, by: (handle.pause("wait", by=by), handle.unpause("go on", by=by)),
}
#: What a user does with a run that asks somebody.
ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "decide": lambda handle, by: handle.decide("approved", comment="fine", by=by),
    "resume": lambda handle, by: handle.resume("approved", by=by),
}
REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    **{name: SCENES[name] for name in ("cancel", "terminate", "reset", "fork")},
    "pause": lambda handle, by: handle.pause(by=by),
}


#: Details of the audit that differ from run to run.
DRAWN = ("run", "new_run", "new_id", "update_id", "task")


def rows() -> list[dict[str, Any]]:
    """The rows of the audit, without ids and times."""
    columns = ("action", "workflow", "reason", "forced", "automatic", "denied", "actor_name", "source", "details")
    found = OperatorAction.objects.order_by("pk").values(*columns)
    return [{**row, "details": {k: v for k, v in row["details"].items() if k not in DRAWN}} for row in found]


def boss() -> Any:
    return get_user_model().objects.create_superuser("boss")


def audit_of(scene: Callable[[Any, Any], Any], workflow: Any, user: Any, *, kit: bool, entered: bool = True) -> Any:
    """The audit that a handle leaves: one of an environment, or production's in an application that runs on it."""
    OperatorAction.objects.all().delete()
    env = DjangoEnvironment()
    name = "1" if kit else "2"
    with env if entered else nullcontext():
        handle = env.start(workflow, **({"id": name} if workflow is Audited else {"value": name}))
        try:
            scene(handle if kit else WorkflowHandle(handle.run_id), user)
        except errors.ActionNotPermitted as exc:
            return str(exc).replace(handle.id, ""), rows()
    return rows()


both = pytest.mark.parametrize("entered", [True, False], ids=["entered", "not entered"])


@both
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_handle_of_an_environment_leaves_the_audit_of_production(
    scene: Callable[[Any, Any], Any], entered: bool
) -> None:
    user = boss()
    expected = audit_of(scene, Audited, user, kit=False)

    assert audit_of(scene, Audited, user, kit=True, entered=entered) == expected
    assert expected or scene is SCENES["query"]


@both
@pytest.mark.parametrize("scene", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_to_a_question_leaves_the_audit_of_production(
    scene: Callable[[Any, Any], Any], entered: bool
) -> None:
    user = boss()
    expected = audit_of(scene, Resumed, user, kit=False)

    assert audit_of(scene, Resumed, user, kit=True, entered=entered) == expected
    assert len(expected) == 1


@both
@pytest.mark.parametrize("scene", REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_the_one_of_production(scene: Callable[[Any, Any], Any], entered: bool) -> None:
    eve = stored("eve")
    expected = audit_of(scene, Audited, eve, kit=False)

    assert audit_of(scene, Audited, eve, kit=True, entered=entered) == expected
    assert [row["denied"] for row in expected[1]] == [True]


@both
def test_a_start_by_a_user_is_audited(entered: bool) -> None:
    env = DjangoEnvironment()
    with env if entered else nullcontext():
        env.start(Audited, id="1", by=boss())

    assert [row["action"] for row in rows()] == ["start"]
