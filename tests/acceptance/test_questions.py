"""A decision answers the question that was asked, and no other one: the question stands beside it in the history."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from temporalex_django import Approval, Done, GraphWorkflow, Ok, Unique, Workflow, api, errors
from tests.support.people import person
from tests.support.runs import events, forget

MAY = "auth.change_group"
OTHER = "auth.delete_group"


@dataclass
class Amount:
    euros: int


@dataclass
class Reason:
    words: str


SMALL = {"title": "Pay 5 EUR?", "role": MAY}
CHANGES = {
    "title": {"title": "Wire 1,000,000 EUR?", "role": MAY},
    "people": {"title": "Pay 5 EUR?", "role": OTHER},
    "more people": {"title": "Pay 5 EUR?", "role": MAY, "users": ["cleo"]},
    "outcomes": {"title": "Pay 5 EUR?", "role": MAY, "outcomes": ["approved", "later"]},
    "form": {"title": "Pay 5 EUR?", "role": MAY, "form": Amount},
}
ASKED = {"now": SMALL}


class Asks(Workflow):
    name = "test.QuestionAsks"

    async def run(self, args):
        first = await api.approval(**ASKED["now"])
        await api.wait_for_signal("go")
        return Ok(first.outcome)


@pytest.fixture(autouse=True)
def _small():
    ASKED["now"] = SMALL
    yield
    ASKED["now"] = SMALL


def decided(env):
    h = env.start(Asks, id="asks")
    h.decide("approved", by=person(env, "bob", MAY))
    return h


def test_the_question_stands_beside_the_decision(env):
    h = decided(env)

    (decision,) = events(h, "SignalReceived")
    assert decision["question"] == {
        "title": "Pay 5 EUR?",
        "asked": [f"perm:{MAY}"],
        "outcomes": ["approved", "rejected"],
        "form": None,
    }
    assert len(decision["shown"]) == 16


@pytest.mark.parametrize("change", CHANGES)
def test_a_recorded_decision_of_another_question_blocks(env, change):
    h = decided(env)
    ASKED["now"] = CHANGES[change]

    with pytest.raises(errors.NondeterminismError, match="a different question"):
        env.replay(h)
    forget(env)
    h.signal("go")
    assert isinstance(h.blocked, errors.NondeterminismError)
    assert "Wire" not in str(h.blocked)  # what people are asked is no business of the log

    ASKED["now"] = SMALL
    env.advance(0)
    assert h.result() == "approved"


def test_a_decision_does_not_answer_a_question_that_came_after_it_was_shown(env):
    h = env.start(Asks, id="asks")
    ASKED["now"] = CHANGES["title"]
    forget(env)  # the next turn rebuilds the run, with the code of the deploy

    with pytest.raises(errors.HumanTaskClosed, match="a different question"):
        h.decide("approved", by=person(env, "bob", MAY))

    assert events(h, "SignalReceived") == []


def test_code_that_asks_nobody_any_more_blocks(env):
    h = decided(env)

    class Silent(Workflow):
        name = "test.QuestionSilent"

        async def run(self, args):
            await api.wait_for_signal("go")
            return Ok("nobody was asked")

    with pytest.raises(errors.NondeterminismError, match="does not ask for it at this point"):
        env.replay_history(Silent, h.history())


def test_a_task_that_nobody_has_decided_takes_the_new_question(env):
    h = env.start(Asks, id="asks")
    ASKED["now"] = CHANGES["title"]
    forget(env)
    h.signal("go")  # buffered; the run is rebuilt

    assert h.blocked is None
    assert [task.title for task in h.human_tasks()] == ["Wire 1,000,000 EUR?"]
    h.decide("rejected", by=person(env, "bob", MAY))
    assert h.result() == "rejected"


def test_histories_without_a_question_are_not_compared(env):
    h = decided(env)
    history = [
        replace(event, attributes={k: v for k, v in event.attributes.items() if k not in ("question", "shown")})
        for event in h.history()
    ]
    ASKED["now"] = CHANGES["title"]

    assert env.replay_history(Asks, history, strict=True) == []
    ASKED["now"] = SMALL


review = Approval(key="review", role=MAY, title="Let it pass?")
stricter = Approval(key="review", role=MAY, title="Let it pass for good?")


def graph(step):
    class Reviewed(GraphWorkflow):
        name = "test.QuestionReviewed"
        unique = Unique(key="reviewed", scope="workflow")
        initial = step
        transitions = {(step, "approved"): Done, (step, "rejected"): Done}

    return Reviewed


def test_steps_that_ask_people_are_compared_too(env):
    h = env.start(graph(review), value="1")
    h.decide("approved", by=person(env, "bob", MAY))
    assert h.status == "completed"

    with pytest.raises(errors.NondeterminismError, match="a different question"):
        env.replay_history(graph(stricter), h.history())
    graph(review)


@pytest.mark.hosts("database")
def test_a_claim_lapses_with_its_question(env):
    from datetime import timedelta

    from temporalex_django.models import HumanTask

    h = env.start(Asks, id="asks")
    HumanTask.objects.update(
        claimed_by_key="7",
        claimed_by_name="bob",
        claimed_until=env.clock + timedelta(hours=1),
        delegated=[{"to": "dan"}],
    )
    forget(env)
    h.signal("go")
    assert HumanTask.objects.get().claimed_by_name == "bob"

    ASKED["now"] = CHANGES["title"]
    forget(env)
    h.signal("go")

    task = HumanTask.objects.get()
    assert (task.title, task.claimed_by_name, task.claimed_until, task.delegated) == (
        "Wire 1,000,000 EUR?",
        "",
        None,
        [],
    )
