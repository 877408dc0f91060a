"""Human tasks on the database: who may see, claim, hand on and decide them, and what becomes of late decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django import forms
from django.contrib.auth.models import Group
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from temporalex_django import Escalation, Ok, Unique, Workflow, WorkflowHandle, api, errors, signals
from temporalex_django.access import AccessPolicy
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.models import Candidate, HumanTask, OperatorAction
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.inbox import find_task, inbox
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release
from temporalex_django.testing import drain
from tests.integration.operations.test_concurrent_operators import at_once
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

MAY = "auth.change_group"


class PaidForm(forms.Form):
    account = forms.CharField(max_length=4)
    amount = forms.IntegerField(min_value=1)


class Payable(Workflow):
    """Asked of a group; ``args`` may name a form, and whether other eyes are wanted."""

    name = "test.HumanPayable"
    unique = Unique(key="humanpayable")

    async def run(self, args: Any) -> Any:
        decision = await api.approval(
            "Pay it",
            role=MAY,
            groups=["accounting"],
            form=(args or {}).get("form"),
            four_eyes=bool((args or {}).get("four_eyes")),
            due=(args or {}).get("due"),
            escalate=Escalation(after=3600, users=["boss"], groups=["chiefs"]),
        )
        return Ok([decision.outcome, decision.data, decision.stood_in_for, decision.at == api.now()])


class Substitutes(AccessPolicy):
    """Sub stands in for Ann; who decides may hand on to whomever is called d…; runs of red are not for blue."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs.none() if user.username.startswith("blue") else runs

    def stands_in_for(self, user: Any) -> Any:
        return type(user).objects.filter(username="ann") if user.username == "sub" else ()

    def may_delegate(self, user: Any, task: HumanTask, to: Any) -> bool:
        return to.username.startswith("d")


POLICY = {"ACCESS_POLICY": f"{__name__}.Substitutes"}


def asked(value: str = "1", args: Any = None, by: Any = None) -> tuple[WorkflowHandle[Any], HumanTask]:
    """A run that waits for somebody, and what it asks."""
    handle = Payable.start(value, args=args, by=by) if args is not None else Payable.start(value, by=by)
    drain()
    return handle, HumanTask.objects.get(run_id=handle.run_id)


def act(action: type[Any], task: HumanTask, user: Any, **given: Any) -> Any:
    return action(HumanTask.objects.get(pk=task.pk), by=Actor(user=user, source="rest"), **given).execute()


def names(user: Any) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        found = [task.workflow_id for task in inbox(user)]
    own = [q for q in queries if "temporalex_human_task" in q["sql"]]
    assert len(own) <= 1
    return found


@override_settings(TEMPORALEX=POLICY)
def test_who_may_see_and_decide() -> None:
    ann, bob, sub, blue = (
        stored("ann", MAY, "temporalex_django.start_instance"),
        stored("bob"),
        stored("sub"),
        stored("blue-ann", MAY),
    )
    carl, boss, dora = stored("carl"), stored("boss"), stored("dora")
    carl.groups.add(Group.objects.create(name="accounting"))
    root = type(ann).objects.create_superuser("root")
    gone = stored("gone", MAY, is_active=False)
    handle, task = asked()
    ref = task.workflow_id
    assert [names(user) for user in (ann, bob, sub, blue, carl, boss, root, gone)] == [
        *([ref], [], [ref], [], [ref], [], [ref], []),
    ]
    assert handle.human_tasks(by=bob) == [] and [one.key for one in handle.human_tasks(by=carl)] == ["1"]
    for user in (bob, blue, boss):
        with pytest.raises(errors.HumanTaskNotFound):
            find_task(str(task.pk), user)
    assert find_task(task.pk, sub) == task
    with pytest.raises(errors.HumanTaskNotFound):
        find_task("no'id\n", None)
    for user, error in (
        (bob, errors.ActionNotPermitted),
        (blue, errors.WorkflowNotFound),
        (gone, errors.ActionNotPermitted),
    ):
        with pytest.raises(error):
            act(Decide, task, user, outcome="approved")
    assert OperatorAction.objects.filter(denied=True, action="decide").count() == 2
    with pytest.raises(errors.ActionNotPermitted, match="by=user"):
        handle.decide("approved")
    with pytest.raises(errors.PayloadError, match="accepts approved, rejected"):
        act(Decide, task, ann, outcome="overdue")

    with pytest.raises(errors.ActionNotPermitted, match="may not delegate .* to 'bob'"):
        act(Delegate, task, ann, to=bob)
    act(Delegate, task, ann, to=dora, reason="you know him")
    assert names(dora) == [ref] and find_task(task.pk, dora).delegated[0]["reason"] == "you know him"
    handle.decide("rejected", task="Pay it", data={"any": 1}, comment="too much", by=dora)
    assert handle.result() == ["rejected", {"any": 1}, "", True]
    task.refresh_from_db()
    assert (task.ending, task.outcome, task.decided_by_name, task.comment) == (
        "decided",
        "rejected",
        "dora",
        "too much",
    )
    assert not Candidate.objects.exists() and names(ann) == []
    row = OperatorAction.objects.get(action="decide", denied=False)
    assert (row.actor, row.reason, row.details["task"]) == (dora, "", str(task.pk))
    with pytest.raises(errors.HumanTaskClosed, match="dora decided 'rejected' at"):
        act(Decide, task, ann, outcome="approved")

    handle, task = asked("2")
    act(Decide, task, sub, outcome="approved")
    assert handle.result() == ["approved", None, "ann", True]
    assert HumanTask.objects.get(pk=task.pk).decided_for == "ann"
    assert OperatorAction.objects.get(run_id=handle.run_id, action="decide").details["for"] == "ann"

    handle, task = asked("3", {"four_eyes": True}, by=ann)
    assert (names(ann), names(sub), names(carl)) == ([], [], [task.workflow_id])
    assert (task.requested_by_name, task.requested_by_key) == ("ann", str(ann.pk))
    for user in (ann, sub):
        with pytest.raises(errors.FourEyes, match="a different user must decide"):
            act(Decide, task, user, outcome="approved")
    chief = stored("chief")
    chief.groups.add(Group.objects.create(name="chiefs"))
    handle.skip_timer(1)
    drain()
    assert names(boss) == names(chief) == [task.workflow_id]
    handle.decide("approved", by=boss)
    handle.delete()
    assert not HumanTask.objects.filter(pk=task.pk).exists()


def test_claims_are_exclusive_and_end_by_the_clock_of_the_database() -> None:
    ann, bob, nobody = stored("ann", MAY), stored("bob", MAY), stored("nobody")
    told: list[Any] = []

    def note(sender: Any, **facts: Any) -> None:
        told.append((facts["title"], facts["actor"]))

    signals.human_task_claimed.connect(note)
    handle, task = asked()
    with pytest.raises(errors.ActionNotPermitted):
        act(Claim, task, nobody)
    first = act(Claim, task, ann)
    assert act(Claim, task, ann) > first, "again by the same person prolongs it"
    signals.human_task_claimed.disconnect(note)
    assert told == [("Pay it", ann)] * 2
    assert (names(ann), names(bob)) == ([task.workflow_id], [])
    for action, given in ((Claim, {}), (Release, {}), (Delegate, {"to": ann}), (Decide, {"outcome": "approved"})):
        with pytest.raises(errors.HumanTaskClaimed, match="is claimed by ann until"):
            act(action, task, bob, **given)
    act(Release, task, ann)
    with pytest.raises(errors.ActionNotPossible, match="nothing to release"):
        act(Release, task, ann)
    with override_settings(TEMPORALEX={"CLAIM_SECONDS": 60}):
        act(Claim, task, bob)
    HumanTask.objects.update(claimed_until=HumanTask.objects.get().claimed_until - timedelta(seconds=61))
    assert names(ann) == [task.workflow_id]
    act(Claim, task, ann)
    handle.decide("approved", by=ann)
    with pytest.raises(errors.HumanTaskClosed, match="ann decided 'approved'"):
        act(Claim, task, bob)


def without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers have no code of runs: workers judge what they send."""
    monkeypatch.setattr(RunTarget, "workflow_class", property(lambda self: None))


def test_who_loses_the_permission_meanwhile_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = stored("ann", MAY)
    handle, task = asked()
    with monkeypatch.context() as patch:
        without_code(patch)
        with pytest.raises(errors.UpdateTimeout):
            act(Decide, task, ann, outcome="approved", id="mine", timeout=0)
    ann.user_permissions.clear()
    drain()
    assert HumanTask.objects.get().is_open and handle.status == "waiting"
    ann = type(ann).objects.get(pk=ann.pk)
    with pytest.raises(errors.ActionNotPermitted):
        act(Decide, task, ann, outcome="approved")


def test_a_decision_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = stored("ann", MAY)
    handle, _ = asked()
    with monkeypatch.context() as patch:
        without_code(patch)
        with pytest.raises(errors.UpdateTimeout, match="the decision 'approved' of the human task '1'"):
            handle.decide("approved", by=ann, timeout=0)
    drain()
    assert handle.result()[0] == "approved"


def test_a_decision_with_an_id_counts_once() -> None:
    ann = stored("ann", MAY)
    handle, task = asked()
    for _ in range(2):
        act(Decide, task, ann, outcome="approved", id="once")
    with pytest.raises(errors.MessageIdTaken):
        act(Decide, task, ann, outcome="rejected", id="once")
    with pytest.raises(errors.MessageIdTaken):
        act(Decide, task, ann, outcome="approved", comment="other", id="once")
    with pytest.raises(errors.HumanTaskClosed):
        act(Decide, task, ann, outcome="approved", id="other")
    assert handle.result()[0] == "approved"
    assert OperatorAction.objects.filter(action="decide", denied=False).count() == 1


def test_a_form_of_django_judges_the_data() -> None:
    ann = stored("ann", MAY)
    handle, task = asked(args={"form": f"{__name__}.PaidForm"})
    assert task.form["kind"] == "form"
    for data, words in (
        ({"account": "44001", "amount": 5}, "account: Ensure this value has at most 4 characters"),
        ({"account": "4400", "amount": 0}, "amount: Ensure this value is greater"),
        (None, "account: This field is required"),
        ([1], "must be an object"),
    ):
        with pytest.raises(errors.PayloadError, match=words):
            act(Decide, task, ann, outcome="approved", data=data)
    with pytest.raises(errors.FormChanged, match="form of .* has changed since you opened it"):
        act(Decide, task, ann, outcome="approved", data={"account": "4400", "amount": 5}, form="another")
    handle.decide("approved", data={"account": "4400", "amount": "5"}, by=ann)
    assert handle.result()[1] == {"account": "4400", "amount": 5}


def test_what_happens_is_told_after_the_commit() -> None:
    ann = stored("ann", MAY)
    told: list[str] = []
    every = {name: signal for name, signal in signals.ALL.items() if name.startswith("human_task_")}
    receivers = {name: lambda sender, said=name, **facts: told.append(f"{said} {facts['key']}") for name in every}
    for name, signal in every.items():
        signal.connect(receivers[name], weak=False)
    try:
        handle, _ = asked()
        handle.skip_timer(1)
        drain()
        handle.decide("approved", by=ann)
        assert told == [f"human_task_{what} 1" for what in ("opened", "escalated", "decided", "closed")]
        told.clear()
        handle, task = asked("2")
        handle.terminate()
        task.refresh_from_db()
        assert (task.ending, task.is_open, Candidate.objects.count()) == ("run_closed", False, 0)
        assert told == [f"human_task_{what} 1" for what in ("opened", "closed")]
        with pytest.raises(errors.HumanTaskClosed, match="the run ended at"):
            act(Decide, task, ann, outcome="approved")
    finally:
        for name, signal in every.items():
            signal.disconnect(receivers[name])


@pytest.mark.postgres
def test_of_two_who_decide_at_once_the_second_reads_who_did() -> None:
    ann, bob = stored("ann", MAY), stored("bob", MAY)
    with override_settings(TEMPORALEX={"UPDATE_LOCK_WAIT": 30.0}):
        _, task = asked()
        second = at_once(
            lambda: act(Decide, task, ann, outcome="approved"), lambda: act(Decide, task, bob, outcome="rejected")
        )
        assert isinstance(second, errors.HumanTaskClosed), second
        assert "ann decided 'approved'" in str(second) or "the run ended" in str(second)
        _, task = asked("2")
        second = at_once(lambda: act(Claim, task, ann), lambda: act(Decide, task, bob, outcome="approved"))
        assert isinstance(second, errors.HumanTaskClaimed), second
        _, task = asked("3")
        second = at_once(lambda: act(Claim, task, ann), lambda: act(Claim, task, bob))
        assert isinstance(second, errors.HumanTaskClaimed), second
