"""Approved, then edited: another input, a result and a failure by hand take more than a retry, and are audited."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import override_settings

from temporalex_django import Ok, RetryPolicy, Workflow, WorkflowHandle, activity, api, errors
from temporalex_django.access import AccessPolicy, Operation
from temporalex_django.core.payloads.codec import digest
from temporalex_django.models import Instance, OperatorAction
from temporalex_django.operations.registry import STEERING
from temporalex_django.testing import DjangoEnvironment
from tests.integration.human_tasks.test_pages import browser, staff
from tests.integration.human_tasks.test_rest import client
from tests.support.client_flows import drain
from tests.support.people import stored

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.of_the_tables("new inputs of activities, which a cluster refuses"),
]

MAY = "auth.change_group"
PAID: list[list[int]] = []


def able(*codes: str) -> list[str]:
    return [f"temporalex_django.{code}" for code in codes]


SEES_AND_EDITS = able("view_instance", "view_payload", "edit_activity_input")


#: No test waits for the next attempt, however slow the machine is.
LATER = RetryPolicy(initial_interval=3600, max_interval=None)


@activity(name="edited.pay", retry=LATER)
def pay(account: int, amount: int) -> int:
    PAID.append([account, amount])
    raise ConnectionError("the bank is down")


@activity(name="edited.note", retry=LATER)
def note(text: str) -> str:
    raise ConnectionError("no paper")


class Payment(Workflow):
    name = "test.EditedPayment"

    async def run(self, args: Any) -> Any:
        decision = await api.approval(f"Pay {args['amount']}", role=MAY, four_eyes=True)
        if decision.outcome != "approved":
            return Ok("rejected")
        return Ok(await api.parallel([pay(args["account"], args["amount"]), note("paid")]))


def approved() -> WorkflowHandle[Any]:
    PAID.clear()
    handle = Payment.start({"account": 7, "amount": 100}, by=stored("ann", MAY, *able("start_instance")))
    drain()
    handle.decide("approved", by=stored("bob", MAY))
    drain()
    assert PAID == [[7, 100]]
    return handle


def test_who_may_reset_may_not_pay_something_else() -> None:
    """The finding: PAID [7, 999999] by somebody without the role, audited as an edit of a number."""
    handle = approved()
    eve = stored("eve", *able("reset_instance", "start_instance", "retry_activity", "view_instance", "view_payload"))
    for call in (
        lambda: handle.reset(2, edited={1: [7, 999_999]}, by=eve),
        lambda: handle.fork(2, edited={1: [7, 999_999]}, by=eve),
        lambda: handle.retry_activity(1, input=[7, 999_999], by=eve),
        lambda: handle.complete_activity(1, 999_999, by=eve),
        lambda: handle.fail_activity(1, "no", by=eve),
    ):
        with pytest.raises(
            errors.ActionNotPermitted, match=r"requires the permission temporalex_django\.(edit|com|fail)"
        ):
            call()
    drain()
    assert PAID == [[7, 100]]
    assert OperatorAction.objects.filter(denied=True, actor=eve).count() == 5


class Kept(AccessPolicy):
    """Nobody edits a payment, whoever they are; and what it was told stays."""

    told: list[Operation] = []

    def allows(self, user: Any, operation: Operation) -> bool:
        self.told.append(operation)
        if operation.activity == "edited.pay" and operation.edits:
            return False
        if operation.activity == "edited.pay" and operation.action == "complete_activity":
            return False
        return super().allows(user, operation)


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Kept"})
def test_the_policy_is_told_which_activity_and_that_it_edits() -> None:
    handle = approved()
    mia = stored("mia", *SEES_AND_EDITS, *able("reset_instance", "retry_activity", "complete_activity"))
    Kept.told.clear()
    with pytest.raises(errors.ActionNotPermitted):
        handle.retry_activity(1, input=[7, 999_999], by=mia)
    asked = dict.fromkeys((one.action, one.activity, one.edits) for one in Kept.told)
    assert [*asked] == [
        ("retry_activity", None, True),
        ("edit_activity_input", None, True),
        ("view_payload", None, False),
        ("retry_activity", "edited.pay", True),
    ]
    with pytest.raises(errors.ActionNotPermitted):
        handle.reset(2, edited={1: [7, 999_999]}, by=mia)
    with pytest.raises(errors.ActionNotPermitted):
        handle.complete_activity(1, 5, by=mia)
    handle.retry_activity(1, by=mia)
    handle.retry_activity(2, input=["not paid"], by=mia)
    drain()
    assert PAID == [[7, 100], [7, 100]]


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Kept"})
def test_an_environment_asks_the_policy_too() -> None:
    mia = stored("mia", *SEES_AND_EDITS, *able("reset_instance", "start_instance"))
    env = DjangoEnvironment()
    run = env.start(Payment, {"account": 7, "amount": 100}, id="in-env")
    run.decide("approved", by=stored("bob", MAY))
    for call in (run.reset, run.fork):
        with pytest.raises(errors.ActionNotPermitted):
            call(2, edited={1: [7, 999_999]}, by=mia)
    run.reset(2, edited={2: ["not paid"]}, by=mia)


def test_the_audit_has_digests_of_the_old_and_the_new() -> None:
    handle = approved()
    mia = stored(
        "mia", *SEES_AND_EDITS, *able("reset_instance", "retry_activity", "complete_activity", "fail_activity")
    )
    old = digest({"args": [7, 100], "kwargs": {}})

    def details(action: str) -> dict[str, Any]:
        found: dict[str, Any] = OperatorAction.objects.filter(action=action, denied=False).latest("id").details
        assert "999" not in json.dumps(found)
        return found

    handle.retry_activity(1, input=[7, 9990], by=mia)
    edited = digest({"args": [7, 9990], "kwargs": {}})
    assert details("retry_activity")["input"] == {"old": old, "new": edited}
    handle.retry_activity(2, by=mia)
    assert "input" not in details("retry_activity")
    handle.reset(2, edited={1: [7, 9991]}, by=mia)
    new = digest({"args": [7, 9991], "kwargs": {}})
    assert details("reset")["edited"] == {"1": {"old": edited, "new": new}}  # behind what the retry gave it
    handle.complete_activity(1, 999, by=mia)
    assert details("complete_activity")["digest"] == digest(999)
    handle.fail_activity(2, "no paper, 999", by=mia)
    assert details("fail_activity")["digest"] == digest("no paper, 999")


def test_who_may_not_edit_is_not_asked_for_it() -> None:
    """A form in the admin has the field for those who may fill it in, and a button says what is lacking."""
    handle = approved()
    page = f"/admin/temporalex_django/instance/console/runs/{handle.run_id}/do"
    reader = staff("rita", permissions=tuple(able("view_instance", "view_payload", "retry_activity", "reset_instance")))
    editor = staff("eddy", permissions=(*SEES_AND_EDITS, *able("retry_activity", "reset_instance")))
    for action, name in (("retry_activity", "input_input"), ("reset", "input_edited")):
        address = f"{page}/{action}/?seq=1"
        assert name not in browser(reader).get(address).content.decode()
        assert name in browser(editor).get(address).content.decode()
    said = {
        one["name"]: one["why_not"]
        for one in client(reader).get(f"/api/instances/{handle.id}/operations/").json()["results"]
    }
    assert "complete_activity" in said["complete_activity"] and said["retry_activity"] is None
    assert [one.name for one in STEERING["reset"].inputs_for(reader, Instance.objects.get(pk=handle.run_id))] == [
        "to",
        "messages",
    ]
