"""What code asks people: human tasks that somebody decides, that are due, that nobody waits for any more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from temporalex_django import (
    Approval,
    ContinueAsNew,
    Done,
    Escalation,
    GraphWorkflow,
    Ok,
    Reply,
    Stop,
    Unique,
    Workflow,
    api,
    errors,
)
from tests.support.graphs import leads
from tests.support.hosts import in_memory
from tests.support.people import person
from tests.support.runs import events, kinds, once, work

MAY = "auth.change_group"
ALSO = "auth.delete_group"
DAY = timedelta(days=1)
START = "temporalex_django.start_instance"


@dataclass
class Cost:
    account: str
    amount: int = 0


class Invoice(Workflow):
    """Asks twice, the second time other eyes."""

    name = "test.ApprovalInvoice"

    async def run(self, args: Any) -> Any:
        first = await api.approval("Approve invoice 4711", role=MAY, users=["bob"], form=Cost)
        if first.outcome == "rejected":
            return Ok(first.comment)
        second = await api.approval("Pay it", role=MAY, outcomes=["pay", "wait"], four_eyes=True)
        await work(first.data.account)
        return Ok([first.data.amount, first.by.name, second.outcome, second.by.key, second.comment])


class Late(Workflow):
    """Nobody may be in a hurry."""

    name = "test.ApprovalLate"

    async def run(self, args: Any) -> Any:
        decision = await api.approval(
            "Approve it", role=MAY, due=3 * DAY, remind=DAY, escalate=Escalation(after=2 * DAY, role=ALSO)
        )
        return Ok([decision.outcome, decision.by and decision.by.name])


def people(env: Any) -> tuple[Any, Any, Any]:
    """Ann may; Bob is asked by his name; Cleo may nothing."""
    return person(env, "ann", MAY, START), person(env, "bob"), person(env, "cleo", ALSO)


def key(user: Any) -> str:
    return str(getattr(user, "pk", user.username))


def titles(env: Any, user: Any) -> list[str]:
    return [task.title for task in env.inbox(user)]


def test_somebody_decides_and_the_run_goes_on(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Invoice, id="4711", by=ann)
    (task,) = run.human_tasks()
    assert (task.key, task.title) == ("1", "Approve invoice 4711")
    assert [*task.outcomes] == ["approved", "rejected"]
    assert [*task.asked] == [f"perm:{MAY}", "user:bob"]
    assert task.form is not None and task.form["name"] == "Cost" and task.opened_at == env.clock
    assert (titles(env, ann), titles(env, bob), titles(env, cleo)) == ([task.title], [task.title], [])
    length = len(run.history())

    for by, outcome, data, error, words in (
        (cleo, "approved", {"account": "x"}, errors.ActionNotPermitted, "cleo may not decide"),
        (None, "approved", {"account": "x"}, errors.ActionNotPermitted, "by=user"),
        (ann, "perhaps", {"account": "x"}, errors.PayloadError, "accepts approved, rejected, not 'perhaps'"),
        (ann, "approved", {"account": 5}, errors.PayloadError, r"does not fit Cost: .*\$.account"),
        (ann, "approved", None, errors.PayloadError, "does not fit Cost"),
    ):
        with pytest.raises(error, match=words):
            run.decide(outcome, data=data, by=by)
    with pytest.raises(errors.HumanTaskNotFound, match="has no open decision 'Pay it'"):
        run.decide("pay", task="Pay it", by=ann)
    assert len(run.history()) == length

    run.decide("approved", task="Approve invoice 4711", data={"account": "4400", "amount": 12}, by=bob)
    (decided,) = events(run, "SignalReceived")
    assert decided["name"] == "__resume__" and decided["sender"] == {"key": key(bob), "name": "bob"}
    assert decided["payload"] == {
        "event": "approved",
        "step": "1",
        "data": {"account": "4400", "amount": 12},
        "by": "bob",
        "by_key": key(bob),
    }
    with pytest.raises(errors.HumanTaskClosed, match="bob decided 'approved' at 2026-01-01"):
        run.decide("rejected", task="1", data={"account": "x"}, by=ann)

    dora = person(env, "dora", MAY)
    assert (titles(env, ann), titles(env, bob), titles(env, dora)) == ([], [], ["Pay it"])
    with pytest.raises(errors.FourEyes, match="ann"):
        run.decide("pay", by=ann)
    run.decide("pay", by=dora, comment="because")
    assert run.result() == [12, "bob", "pay", key(dora), "because"]
    assert run.human_tasks() == [] and titles(env, dora) == []
    with pytest.raises(errors.HumanTaskClosed, match="dora decided 'pay'"):
        run.decide("wait", by=dora)


def test_who_approved_before_does_not_give_the_second_approval(env: Any) -> None:
    ann, _, _ = people(env)
    run = env.start(Invoice)
    run.decide("approved", data={"account": "1"}, by=ann)
    with pytest.raises(errors.FourEyes, match="ann"):
        run.decide("wait", by=ann)
    assert titles(env, ann) == []
    other = env.start(Invoice)
    other.decide("rejected", data={"account": "1"}, by=ann, comment="too much")
    assert other.result() == "too much"


def test_nobody_decides_in_time(env: Any) -> None:
    ann, _, cleo = people(env)
    run = env.start(Late)
    assert [task.due_at - env.clock for task in env.inbox(ann)] == [3 * DAY]
    env.advance(DAY)
    assert run.human_tasks()[0].reminders == 1 and titles(env, cleo) == []
    env.advance(DAY)
    (task,) = env.inbox(cleo)
    assert (task.reminders, task.escalated_at) == (2, env.clock)
    env.advance(DAY)
    assert run.result() == ["overdue", None] and titles(env, ann) == titles(env, cleo) == []
    with pytest.raises(errors.HumanTaskClosed, match="nobody had decided by 2026-01-04"):
        run.decide("approved", by=ann)

    run = env.start(Late)
    env.advance(2 * DAY)
    run.decide("approved", by=cleo)
    assert run.result() == ["approved", "cleo"]
    assert kinds(run)[-3:] == ["TimerCancelled", "TimerCancelled", "WorkflowCompleted"]


def test_only_one_branch_is_waited_for(env: Any) -> None:
    ann, _, _ = people(env)

    async def raced() -> Any:
        index, got = await api.race(
            lambda: api.approval("left", role=MAY, remind=DAY), lambda: api.approval("right", role=MAY, due=DAY)
        )
        return [index, got.outcome, await api.wait_for_signal("end")]

    run = env.start(once(raced), id="raced")
    assert sorted(titles(env, ann)) == ["left", "right"]
    with pytest.raises(errors.HumanTaskNotFound, match=r"several decisions: choose one with task=, from '1' \(left\)"):
        run.decide("approved", by=ann)
    run.decide("rejected", task="right", by=ann)
    assert titles(env, ann) == []
    with pytest.raises(errors.HumanTaskClosed, match="'left' is no longer open: the run stopped waiting for it"):
        run.decide("approved", task="left", by=ann)
    run.signal("end")
    assert run.result() == [1, "rejected", None]

    both = env.start(once(raced), id="both")
    with env.batch():
        both.decide("approved", task="right", by=ann)
        both.decide("rejected", task="left", by=ann)
    both.signal("end")
    assert both.result()[:2] in ([0, "rejected"], [1, "approved"])


def test_what_ends_a_run_closes_what_it_asks(env: Any) -> None:
    ann, _, _ = people(env)

    async def asking() -> Any:
        try:
            await api.approval("one", role=MAY)
        except errors.Cancelled:
            async with api.shield():
                return (await api.approval("really?", role=MAY)).outcome

    run = env.start(once(asking), id="cancelled")
    run.cancel()
    assert titles(env, ann) == ["really?"]
    with pytest.raises(errors.HumanTaskClosed, match="the run stopped waiting"):
        run.decide("approved", task="1", by=ann)
    run.decide("approved", by=ann)
    assert run.result() == "approved"

    run = env.start(once(asking), id="terminated")
    run.terminate("enough")
    assert titles(env, ann) == []
    with pytest.raises(errors.HumanTaskClosed, match="the run ended at 2026"):
        run.decide("approved", by=ann)

    class Again(Workflow):
        name = "test.ApprovalAgain"

        async def run(self, args: Any) -> Any:
            asked = api.approval(f"round {args}", role=MAY, four_eyes=True)
            index, got = await api.race(asked, api.wait_for_signal("on"))
            return ContinueAsNew(args + 1) if index else Ok(got.outcome)

    run = env.start(Again, 1, id="again", by=ann)
    run.signal("on")
    bob = person(env, "eve", MAY)
    assert (titles(env, bob), titles(env, ann)) == (["round 2"], [])
    with pytest.raises(errors.FourEyes, match="ann"):
        run.decide("approved", by=ann)
    run.decide("approved", by=bob)
    assert run.result() == "approved"


def test_a_handler_asks_while_its_phase_goes_on(env: Any) -> None:
    ann, _, _ = people(env)

    class Asked(Workflow):
        name = "test.ApprovalInPhase"

        async def run(self, args: Any) -> Any:
            return Ok(await api.phase([], update={"ask": self.ask}, signal={"end": lambda _, state: Stop(state)}))

        @staticmethod
        async def ask(what: str, state: list[str]) -> Any:
            decision = await api.approval(what, role=MAY)
            return Reply(decision.outcome, [*state, decision.outcome])

    run = env.start(Asked)
    update = run.update_async("ask", "may I?")
    run.decide("rejected", by=ann)
    assert update.result() == "rejected"
    run.signal("end")
    assert run.result() == ["rejected"]


def test_a_run_that_takes_up_another_one_asks_anew(env: Any) -> None:
    ann, bob, _ = people(env)
    run = env.start(Invoice, id="taken")
    run.decide("approved", data={"account": "1"}, by=bob)
    first = run.human_tasks()[0].id
    fork = run.fork(run.history()[-1].activation, id="forked")
    (task,) = fork.human_tasks()
    assert task.title == "Pay it" and task.id != first
    assert len(env.inbox(ann)) == 2
    fork.decide("pay", by=ann)

    run.reset(1, messages="drop")
    assert titles(env, ann) == ["Approve invoice 4711"]
    run.reset(1)  # again: what came behind, and nothing did
    run.decide("approved", data={"account": "2"}, by=bob)
    again = run.history()[-1].activation
    run.reset(again - 1)
    assert titles(env, ann) == ["Pay it"], "what bob decided comes again"
    run.decide("pay", by=ann)
    assert run.result()[:3] == [0, "bob", "pay"]


check = Approval(
    key="check", title="Check the order", role=MAY, users=["bob"], due=3 * DAY, remind=DAY, form=Cost,
    escalate=Escalation(after=DAY, role=ALSO),
)  # fmt: skip
sign = Approval(key="sign", users=("bob", "cleo"), four_eyes=True)


class Loop(GraphWorkflow):
    """Checked by one, signed by another one."""

    name = "test.ApprovalLoop"
    unique = Unique(key="approvalloop")
    initial = check
    transitions = {
        **leads(check, approved=sign, rejected=Done, overdue=Done),
        **leads(sign, approved=Done, rejected=Done),
    }


def test_a_step_of_a_graph_asks_people_too(env: Any) -> None:
    ann, bob, cleo = people(env)
    run = env.start(Loop, value="1", by=ann)
    (task,) = env.inbox(ann)
    assert (task.key, task.title, task.due_at) == ("check", "Check the order", env.clock + 3 * DAY)
    with pytest.raises(errors.ActionNotPermitted, match=r"cleo may not decide"):
        run.decide("approved", data={"account": "1"}, by=cleo)
    env.advance(DAY)
    assert titles(env, cleo) == ["Check the order"]
    with pytest.raises(errors.PayloadError, match="does not fit Cost"):
        run.resume("approved", by=ann)
    with pytest.raises(errors.ActionNotPermitted, match=f"requires the role '{MAY}' or the name 'bob'"):
        run.resume("approved", data={"account": "1"})
    run.decide("approved", data={"account": "1"}, by=bob, comment="fine")
    said = run.instance().context.steps.check
    assert (said.account, said.by, said.by_key, said.comment) == ("1", "bob", key(bob), "fine")
    assert titles(env, cleo) == ["Sign"] and titles(env, bob) == []
    with pytest.raises(errors.HumanTaskClosed, match="bob decided 'approved'"):
        run.decide("approved", task="check", data={"account": "1"}, by=ann)
    with pytest.raises(errors.FourEyes, match="bob"):
        run.decide("approved", by=bob)
    run.resume("approved", by=cleo)
    assert run.status == "completed" and titles(env, cleo) == []

    late = env.start(Loop, value="2")
    env.advance(3 * DAY)
    assert late.status == "completed" and titles(env, ann) == []
    with pytest.raises(errors.HumanTaskClosed, match="nobody had decided"):
        late.decide("approved", data={"account": "1"}, by=ann)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "has no candidates: give it a role, users or groups"),
        ({"role": ""}, "role must be a permission"),
        ({"users": "ann"}, "users must be a list of usernames, not 'ann'"),
        ({"groups": [5]}, "groups must be a list of group names"),
        ({"role": MAY, "outcomes": []}, "outcomes must be a list of names"),
        ({"role": MAY, "outcomes": ["a", "a"]}, "must not contain duplicates"),
        ({"role": MAY, "outcomes": ["__a"]}, "is not a valid name"),
        ({"role": MAY, "outcomes": ["overdue"], "due": 5}, "is reserved for a passed due date"),
        ({"role": MAY, "remind": 0}, "remind must be more than 0"),
        ({"role": MAY, "escalate": DAY}, "must be an Escalation"),
        ({"role": MAY, "escalate": Escalation(after=5)}, "escalate has no candidates"),
        ({"role": MAY, "form": object()}, "form"),
        ({"role": MAY, "form": "no path"}, "is not the dotted path"),
        ({"role": MAY, "four_eyes": 1}, "four_eyes must be True or False"),
        ({"role": MAY, "title": ""}, "the title: .* is not a text of at least one printable character"),
    ],
)
@in_memory
def test_what_cannot_be_asked(env: Any, given: dict[str, Any], words: str) -> None:
    given = dict(given)
    title = given.pop("title", "Approve it")
    run = env.start(once(lambda: api.approval(title, **given)))
    with pytest.raises(errors.WorkflowFailed, match=words):
        run.result()


def test_nobody_is_reminded_for_ever(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is never due it would be a timer for each day until the end of days."""
    monkeypatch.setattr("temporalex_django.core.human_tasks.MAX_REMINDERS", 2)
    run = env.start(once(lambda: api.approval("Approve it", role=MAY, remind=DAY), name="test.ApprovalForEver"))
    for _ in range(4):
        env.advance(DAY)
    assert [task.reminders for task in run.human_tasks()] == [2]
    assert kinds(run).count("TimerStarted") == kinds(run).count("TimerFired") == 2
    run.terminate()


@pytest.mark.parametrize("point", ["before_turn", "after_turn"])
def test_a_worker_that_dies_neither_loses_nor_doubles_what_is_asked(env: Any, point: str) -> None:
    ann, bob, _ = people(env)
    env.crash_at(point)
    run = env.start(Late, id="crashed")
    assert [task.title for task in run.human_tasks()] == ["Approve it"]
    env.crash_at(point)
    env.advance(DAY)
    assert [task.reminders for task in run.human_tasks()] == [1]
    env.crash_at(point)
    run.decide("approved", by=ann)
    assert run.result() == ["approved", "ann"] and titles(env, bob) == []
    assert kinds(run).count("SignalReceived") == 1
