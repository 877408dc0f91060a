"""What a run tells others: messages to chains, children and ids, answers, and what its end does to children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from temporalex_django.engine.contracts.records import Outcome, RunWrite
from temporalex_django.engine.external_messages import NewMessage
from tests.contract.places import NOW
from tests.contract.test_transactions import child

if TYPE_CHECKING:
    from uuid import UUID

    from tests.contract.places import Place


def named(place: Place, chain: UUID) -> list[tuple[str, str, Any]]:
    return [(m.kind, m.name, m.payload) for m in place.inbox(chain)]


def signal(name: str = "told", body: Any = None, **to: Any) -> NewMessage:
    return NewMessage(kind="signal", name=name, payload=body, **to)


def started_by(place: Place, chain: UUID, **fields: Any) -> UUID:
    """The chain of a child."""
    before = set(place.claim())
    place.write(chain, children=[child(place, chain, **fields)])
    (new,) = set(place.claim()) - before
    return new


def close(place: Place, chain: UUID, **stored: Any) -> None:
    place.write(
        chain, run={"closed": True}, closing=Outcome(status="failed"), instance={"status": "completed"}, **stored
    )


def test_messages_reach_chains_in_their_order(place: Place) -> None:
    one, two = place.start("one"), place.start("two")
    place.write(
        one,
        messages=[
            signal("a", 1, chain_id=two),
            signal("b", {"x": 2}, workflow_id="two", run_id=place.runs(one)[0]),
            signal("c", 3, workflow_id=str(place.runs(two)[0])),
            signal("d", 4, workflow_id="nobody"),
        ],
    )

    assert named(place, two) == [("signal", "a", 1), ("signal", "b", {"x": 2}), ("signal", "c", 3)]
    assert [m.run_id for m in place.inbox(two)] == [None, place.runs(one)[0], None]
    assert place.inbox(one) == []


def test_a_message_rings(place: Place) -> None:
    one, two = place.start("one"), place.start("two")
    place.quiet(one, two)
    place.write(one, messages=[signal(chain_id=two)])

    assert place.claim() == [two]


def test_a_message_with_an_id_comes_once(place: Place) -> None:
    one, two = place.start("one"), place.start("two")
    place.write(one, messages=[signal("a", chain_id=two, message_id="m-1")])
    place.write(
        one, messages=[signal("a", chain_id=two, message_id="m-1"), signal("b", chain_id=two, message_id="m-2")]
    )

    assert [(m.name, m.message_id) for m in place.inbox(two)] == [("a", "m-1"), ("b", "m-2")]


def test_the_newest_open_run_of_an_id_is_meant(place: Place) -> None:
    one, old = place.start("one"), place.start("two")
    close(place, old)
    new = place.start("two")
    place.write(one, messages=[signal("a", workflow_id="two")])

    assert [len(place.inbox(chain)) for chain in (old, new)] == [0, 1]


@pytest.mark.parametrize(
    ("which", "answer"),
    [
        ("open", {"seq": 4}),
        ("closed", {"seq": 4, "type": "WorkflowClosed", "message": "the run 'closed' is closed"}),
        ("nobody", {"seq": 4, "type": "WorkflowNotFound", "message": "no run with the id 'nobody' was ever started"}),
    ],
)
def test_who_asks_hears_what_became_of_it(place: Place, which: str, answer: dict[str, Any]) -> None:
    one, there, gone = place.start("one"), place.start("open"), place.start("closed")
    close(place, gone)
    (run,) = place.runs(one)
    place.write(one, messages=[signal("a", workflow_id=which, ask=(one, run, 4))])

    (heard,) = place.inbox(one)
    assert (heard.kind, heard.run_id, heard.payload) == ("external", run, answer)
    assert heard.name == ("ExternalDelivered" if which == "open" else "ExternalFailed")
    assert len(place.inbox(there)) == (which == "open")
    assert place.inbox(gone) == []


def test_who_asks_for_an_id_of_several_workflows_hears_which(place: Place) -> None:
    one = place.start("one")
    several = [place.start("same", workflow=name, scope="workflow") for name in ("Cart", "Order")]
    place.write(one, messages=[signal("a", workflow_id="same", ask=(one, place.runs(one)[0], 4))])

    (heard,) = place.inbox(one)
    assert (heard.name, heard.payload["type"]) == ("ExternalFailed", "AmbiguousId")
    assert {c["run_id"] for c in heard.payload["candidates"]} == {str(place.runs(chain)[0]) for chain in several}
    assert [place.inbox(chain) for chain in several] == [[], []]
    close(place, several[0])
    place.write(one, consumed=[heard.id], messages=[signal("a", workflow_id="same", ask=(one, place.runs(one)[0], 5))])
    assert named(place, one) == [("external", "ExternalDelivered", {"seq": 5})]


# -- children ----------------------------------------------------------------------------------------------------------


def test_a_child_is_a_run_of_its_own(place: Place) -> None:
    parent = place.start("one")
    new = started_by(place, parent, execution_timeout=60, run_timeout=5, args={"a": [1]}, seq=3)
    (run,) = place.runs(new)

    facts = place.storage.run_records([run])[run]

    assert (facts.workflow, facts.workflow_id, facts.args, facts.seed) == ("Child", "child", {"a": [1]}, 1)
    assert (facts.parent, facts.parent_chain, facts.parent_run) == ("w-1", parent, place.runs(parent)[0])
    assert (facts.parent_seq, facts.parent_close, facts.run_timeout) == (3, "terminate", 5)
    assert facts.expires_at == NOW.replace(minute=1)
    assert place.state(new).deadline == NOW.replace(second=5)
    assert place.state(new).due_at == NOW


def test_a_child_in_a_queue_of_its_own(place: Place) -> None:
    parent = place.start("one")
    place.write(parent, children=[child(place, parent, queue="slow")])

    assert len(place.claim("slow")) == 1
    assert place.claim("default") == [parent]


def test_a_message_of_the_same_turn_finds_the_child(place: Place) -> None:
    parent = place.start("one")
    (run,) = place.runs(parent)
    place.write(
        parent,
        children=[child(place, parent)],
        messages=[signal("by number", child=(run, 1)), signal("by id", workflow_id="child")],
    )
    (new,) = set(place.claim()) - {parent}

    assert [m.name for m in place.inbox(new)] == ["by number", "by id"]


def test_a_child_that_is_closed_gets_no_messages(place: Place) -> None:
    parent = place.start("one")
    (run,) = place.runs(parent)
    new = started_by(place, parent)
    close(place, new)
    place.write(parent, messages=[signal("late", child=(run, 1)), signal("asks", child=(run, 1), ask=(parent, run, 2))])

    assert place.inbox(new) == []
    (heard,) = place.inbox(parent)
    assert (heard.name, heard.payload["type"]) == ("ExternalFailed", "WorkflowClosed")


def test_a_child_whose_id_is_taken_is_refused(place: Place) -> None:
    parent, taken = place.start("one"), place.start("taken")
    (run,) = place.runs(parent)
    place.write(parent, children=[child(place, parent, "taken", 3), child(place, parent, "free", 4)])

    (heard,) = place.inbox(parent)
    assert (heard.kind, heard.name, heard.run_id) == ("child", "ChildFailed", run)
    assert (heard.payload["seq"], heard.payload["type"]) == (3, "AlreadyRunning")
    assert len(place.claim()) == 3
    assert len(place.runs(taken)) == 1


def test_a_child_may_not_have_the_id_of_a_run(place: Place) -> None:
    parent = place.start("one")
    (run,) = place.runs(parent)
    place.write(parent, children=[child(place, parent, str(run), 3)])

    (heard,) = place.inbox(parent)
    assert (heard.name, heard.payload["seq"], heard.payload["type"]) == ("ChildFailed", 3, "InvalidId")


def test_of_two_children_of_one_id_the_first_is_started(place: Place) -> None:
    parents = [place.start(f"p-{i}") for i in range(2)]
    with place.storage.transaction():
        runs = {run.chain_id: run for run in place.storage.claim(limit=2, queues=["default"])}
        place.storage.write([RunWrite(run=runs[p], children=[child(place, p, "same")]) for p in parents])

    assert sorted(len(place.inbox(parent)) for parent in parents) == [0, 1]
    assert len(place.claim()) == 3


@pytest.mark.parametrize(
    ("policy", "heard"),
    [
        ("terminate", [("terminate", "", {"reason": "its parent closed"})]),
        ("request_cancel", [("cancel", "", {"reason": "its parent closed"})]),
        ("abandon", []),
    ],
)
def test_the_end_of_a_parent(place: Place, policy: str, heard: list[Any]) -> None:
    parent = place.start("one")
    open_one = started_by(place, parent, workflow_id="open", seq=1, parent_close=policy)
    closed_one = started_by(place, parent, workflow_id="closed", seq=2, parent_close=policy)
    stranger = place.start("stranger")
    close(place, closed_one)
    close(place, parent, close_children=True)

    assert named(place, open_one) == heard
    assert place.inbox(closed_one) == []
    assert place.inbox(stranger) == []
