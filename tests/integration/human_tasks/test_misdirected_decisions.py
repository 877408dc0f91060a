"""Decisions that are meant for another human task, or go round a claim; what is not for others to know."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail
from django.template import RequestContext, Template
from django.test import RequestFactory, override_settings

from temporalex_django import (
    Approval,
    ContinueAsNew,
    Done,
    Escalation,
    GraphWorkflow,
    Ok,
    Unique,
    Workflow,
    api,
    errors,
    signals,
)
from temporalex_django.access import AccessPolicy
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.models import Candidate, HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.inbox import find_task, inbox
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate
from temporalex_django.pages.mail import TaskMail
from temporalex_django.testing import drain
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

MAY = "auth.change_group"
VIEW = "temporalex_django.view_instance"
DELEGATE = "temporalex_django.delegate_humantask"


class Question(Workflow):
    name = "test.AstrayQuestion"

    async def run(self, args: Any) -> Any:
        decision = await api.approval("Pay it?", role=MAY, form=dict[str, int] if args else None)
        return Ok([decision.outcome, decision.by.name, decision.stood_in_for])


class Renewing(Workflow):
    """A hundred first, and a million when nobody has decided on that."""

    name = "test.AstrayRenewing"

    async def run(self, args: Any) -> Any:
        decision = await api.approval(f"Pay {args or 100}", role=MAY, due=None if args else 60)
        if decision.outcome == "overdue":
            return ContinueAsNew(1_000_000)
        return Ok([decision.outcome, args])


class Hurried(Workflow):
    name = "test.AstrayHurried"

    async def run(self, args: Any) -> Any:
        escalate = Escalation(after=60, users=["boss"])
        decision = await api.approval("Pay it?", role=MAY, remind=60, escalate=escalate, due=args)
        return Ok(decision.outcome)


pay = Approval(key="pay#once", role=MAY)
long = Approval(key="k" * 200)


class Paying(GraphWorkflow):
    name = "test.AstrayPaying"
    unique = Unique(key="astraypaying")
    initial = pay
    transitions = {(pay, "approved"): Done, (pay, "rejected"): Done}


def act(action: type[Any], task: HumanTask, user: Any, **given: Any) -> Any:
    return action(HumanTask.objects.get(pk=task.pk), by=Actor(user=user, source="rest"), **given).execute()


def left_to_workers(monkeypatch: pytest.MonkeyPatch, task: HumanTask, user: Any, **given: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunTarget, "workflow_class", property(lambda self: None))
        with pytest.raises(errors.UpdateTimeout):
            act(Decide, task, user, timeout=0, **given)


def test_a_decision_is_of_its_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = stored("ann", MAY)
    handle = Renewing.start()
    drain()
    left_to_workers(monkeypatch, HumanTask.objects.get(), ann, outcome="approved", id="late")
    handle.skip_timer(1)
    drain()
    asked = HumanTask.objects.get(closed_at=None)
    assert (asked.title, asked.key) == ("Pay 1000000", "1"), "nobody has decided that"
    with pytest.raises(errors.HumanTaskClosed, match="no longer open"):
        act(Decide, HumanTask.objects.exclude(pk=asked.pk).get(), ann, outcome="approved", id="late")
    handle.decide("approved", by=ann)
    assert handle.result() == ["approved", 1_000_000]


def test_what_was_refused_is_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, eve = stored("ann", MAY), stored("bob", MAY), stored("eve", VIEW)
    handle = Question.start()
    drain()
    task = HumanTask.objects.get()
    left_to_workers(monkeypatch, task, ann, outcome="approved", id="mine")
    handle.pause()
    drain()
    handle.unpause()
    with pytest.raises(errors.ActionNotPermitted, match="eve may not decide"):
        act(Decide, task, eve, outcome="approved", id="mine")
    act(Claim, task, bob)
    with pytest.raises(errors.HumanTaskClaimed, match="by bob"):
        act(Decide, task, ann, outcome="approved", id="mine")
    assert HumanTask.objects.get().is_open


def test_a_step_that_somebody_has_claimed_is_not_resumed_by_others() -> None:
    ann, bob = stored("ann", MAY), stored("bob", MAY)
    handle = Paying.start("1")
    drain()
    act(Claim, HumanTask.objects.get(), ann)
    for step in (None, "pay#once"):
        with pytest.raises(errors.HumanTaskClaimed, match="claimed by ann until"):
            handle.resume("approved", step=step, by=bob)
    assert HumanTask.objects.get().is_open
    handle.decide("approved", by=ann)
    assert HumanTask.objects.get().decided_by_name == "ann"


def test_what_happens_at_once_is_all_told() -> None:
    told: list[str] = []
    names = ("human_task_reminded", "human_task_escalated", "human_task_closed")
    receivers = {name: lambda sender, said=name, **facts: told.append(said) for name in names}
    for name in names:
        signals.ALL[name].connect(receivers[name], weak=False)
    try:
        handle = Hurried.start()
        drain()
        handle.skip_timer(1)
        handle.skip_timer(2)
        drain()
        assert told == [*names[:2]]
        handle = Hurried.start(args=3600)
        drain()
        told.clear()
        for number in (3, 2, 1):  # in the order of their numbers: the last closes it
            handle.skip_timer(number)
        drain()
        assert "human_task_closed" in told and handle.result() == "overdue"
    finally:
        for name in names:
            signals.ALL[name].disconnect(receivers[name])


class Tenants(AccessPolicy):
    """Nothing there is for the blue ones; sub stands in for ann and for bob."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs.none() if user.username.startswith("blue") else runs

    def stands_in_for(self, user: Any) -> Any:
        return (
            type(user).objects.filter(username__in=["ann", "bob"]).order_by("username")
            if user.username == "sub"
            else ()
        )


class OtherEyes(Workflow):
    name = "test.AstrayOtherEyes"

    async def run(self, args: Any) -> Any:
        decision = await api.approval("Pay it?", role=MAY, four_eyes=True)
        return Ok([decision.outcome, decision.by.name, decision.stood_in_for])


@override_settings(TEMPORALEX={"ACCESS_POLICY": f"{__name__}.Tenants"})
def test_others_neither_hear_of_it_nor_are_handed_it() -> None:
    ann, blue, sub = (
        stored("ann", MAY, DELEGATE, "temporalex_django.start_instance"),
        stored("blue", MAY),
        stored("sub"),
    )
    bob = stored("bob", MAY, DELEGATE)
    for user in (ann, blue, bob):
        user.email = f"{user}@example.com"
        user.save()
    post = TaskMail(base_url="https://shop.example")
    post.attach()
    try:
        handle = OtherEyes.start(by=ann)
        drain()
    finally:
        post.detach()
    assert [one.to for one in mail.outbox] == [["bob@example.com"]]
    task = HumanTask.objects.get()
    with pytest.raises(errors.ActionNotPermitted, match="may not delegate .* to 'blue'"):
        act(Delegate, task, bob, to=blue)

    request = RequestFactory().get("/")
    request.user = blue
    page = Template("{% load temporalex %}{% temporalex_inbox_count %}{% temporalex_inbox %}")
    shown = page.render(RequestContext(request, {"user": bob}))
    assert shown.startswith("0") and "Pay it" not in shown, "the page of bob is not his inbox"

    fork = handle.fork(reason="look")
    drain()
    forked = HumanTask.objects.get(run_id=fork.run_id)
    for one in (task, forked):
        with pytest.raises(errors.FourEyes):
            act(Decide, one, ann, outcome="approved")
    fork.terminate()
    forked.refresh_from_db()
    assert forked.ending == "run_closed"
    act(Decide, task, sub, outcome="approved")
    assert handle.result() == ["approved", "sub", "bob"]


def test_a_closed_one_keeps_what_it_asked_for() -> None:
    handle = Question.start(args=1)
    drain()
    before = HumanTask.objects.values("form", "asked", "outcomes", "delegated").get()
    assert before["form"]["kind"] == "type"
    handle.terminate()
    assert HumanTask.objects.values("form", "asked", "outcomes", "delegated").get() == before


class Free(GraphWorkflow):
    name = "test.AstrayFree"
    unique = Unique(key="astrayfree")
    initial = long
    transitions = {(long, "approved"): Done, (long, "rejected"): Done}


def test_names_are_as_long_as_they_like() -> None:
    for value, name in (("1", "x" * 300), ("2", "y\x00")):
        handle = Free.start(value)
        drain()
        handle.resume("approved", by=name)
    found = HumanTask.objects.order_by("opened_at").values_list("decided_by_name", flat=True)
    assert [*found] == ["x" * 200, "y\ufffd"]


def test_a_step_with_a_long_key_may_ask_again() -> None:
    """As after a move: then a number stands behind the key."""
    Free.start("1")
    drain()
    task = HumanTask.objects.get()
    assert task.key == "k" * 200
    HumanTask.objects.filter(pk=task.pk).update(key=f"{task.key}#1000000")
    assert find_task(task.pk, None).key.endswith("k#1000000")


#: Who is asked by the code of ``Moved``, as a deploy would change it.
ASKED = ["ann"]


class Moved(Workflow):
    name = "test.AstrayMoved"

    async def run(self, args: Any) -> Any:
        return Ok((await api.approval("Pay it?", users=[*ASKED], remind=60)).outcome)


def test_whom_code_does_not_ask_any_more_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob, cleo = stored("ann", DELEGATE), stored("bob"), stored("cleo")
    handle = Moved.start()
    drain()
    act(Delegate, HumanTask.objects.get(), ann, to=cleo)
    monkeypatch.setitem(globals(), "ASKED", ["bob"])
    handle.skip_timer(1)  # the reminder
    drain()
    # cleo was handed another question: one that asked ann
    assert {*Candidate.objects.values_list("who", flat=True)} == {"user:bob"}
    assert [len(inbox(user)) for user in (ann, bob, cleo)] == [0, 1, 0]
    handle.decide("approved", by=bob)
    assert handle.result() == "approved"


def test_who_decides_what_nobody_in_particular_is_asked_is_judged_in_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ann = stored("ann", "temporalex_django.signal_instance")
    handle = Free.start("late")
    drain()
    left_to_workers(monkeypatch, HumanTask.objects.get(), ann, outcome="approved", id="late")
    ann.user_permissions.clear()
    drain()
    assert HumanTask.objects.get().is_open, "he may not, by the time that it is judged"
    bob = stored("bob", "temporalex_django.signal_instance")
    handle.decide("rejected", by=bob)
    assert HumanTask.objects.get().decided_by_name == "bob"
