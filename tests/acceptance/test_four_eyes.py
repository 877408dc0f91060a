"""Two people for what one must not do alone, and timers that nobody can be quicker than."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import Approval, Done, GraphWorkflow, Unique, WaitForEvent
from temporalex_django.errors import ActionNotPermitted, FourEyes, ResumeRefused, WorkflowDefinitionError
from tests.support.graphs import leads
from tests.support.people import person

MAY = "auth.change_group"
first = Approval(role=MAY, key="first")
second = Approval(role=MAY, key="second", due=timedelta(days=1), four_eyes=True)
parcel = WaitForEvent("came", timeout=60, key="parcel")


class Payment(GraphWorkflow):
    name = "test.FourEyesPayment"
    unique = Unique(key="foureyespayment")
    initial = first
    transitions = {
        **leads(first, approved=second, rejected=Done),
        **leads(second, approved=parcel, rejected=Done, overdue=Done),
        **leads(parcel, came=Done, timeout=Done),
    }


def users(env: Any) -> tuple[Any, Any, Any]:
    start = "temporalex_django.start_instance"
    return person(env, "ann", MAY, start), person(env, "bob", MAY), person(env, "cleo", MAY)


def test_neither_who_started_it_nor_who_approved_before_decides(env: Any) -> None:
    ann, bob, cleo = users(env)
    run = env.start(Payment, value="1", by=ann)
    run.resume("approved", by=bob)
    length = len(run.history())

    with pytest.raises(FourEyes, match=r"ann may not decide Approval\(second\): they started the run") as refused:
        run.resume("approved", by=ann)
    assert refused.value.code == "four_eyes"
    with pytest.raises(FourEyes, match="bob may not decide .*: they decided an earlier approval"):
        run.resume("rejected", by=bob)
    with pytest.raises(ActionNotPermitted, match="requires the role"):
        run.resume("approved")
    assert len(run.history()) == length
    run.resume("approved", by=cleo, data={"by_key": "somebody else"})

    noted = run.instance().context.steps
    assert [noted[step]["by_key"] for step in ("first", "second")] == [key(env, bob), key(env, cleo)]


def test_what_code_started_nobody_has_started(env: Any) -> None:
    ann, bob, _ = users(env)
    run = env.start(Payment, value="1")
    run.resume("approved", by=bob)
    run.resume("approved", by=ann)
    assert run.instance().context.steps.second.by_key == key(env, ann)


def test_the_starter_may_decide_where_two_are_not_wanted(env: Any) -> None:
    ann, _, _ = users(env)
    run = env.start(Payment, value="1", by=ann)
    run.resume("approved", by=ann)
    assert run.instance().context.steps.first.by_key == key(env, ann)


def test_the_event_of_a_timer_is_not_sent_from_outside(env: Any) -> None:
    ann, bob, _ = users(env)
    run = env.start(Payment, value="1")
    run.resume("approved", by=ann)
    with pytest.raises(ResumeRefused, match="no step is waiting for the event 'overdue'"):
        run.resume("overdue", by=bob)
    run.resume("approved", by=bob)
    with pytest.raises(ResumeRefused, match="no step is waiting for the event 'timeout'.*parcel.: came"):
        run.resume("timeout")
    env.advance(61)
    assert run.status == "completed"
    assert [entry.event for entry in run.instance().execution_history] == ["approved", "approved", "timeout", "done"]


@pytest.mark.hosts("memory")
def test_four_eyes_are_wanted_or_not(env: Any) -> None:
    with pytest.raises(WorkflowDefinitionError, match="four_eyes must be True or False"):
        Approval(four_eyes="yes")  # type: ignore[arg-type]


def key(env: Any, user: Any) -> str:
    return str(getattr(user, "pk", user.username))
