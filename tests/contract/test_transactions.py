"""``transaction``, ``savepoint``, ``attempt``, ``on_commit``: all of a turn, or nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from temporalex_django.engine.contracts.records import Outcome, Retry, TaskResult
from temporalex_django.engine.external_messages import NewChild, NewMessage
from tests.contract.places import NOW, event

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.contract.places import Place


class Undone(Exception):
    pass


def everything(place: Place, chain: UUID) -> Any:
    """All that the contract lets be seen of one run."""
    (first, *others) = place.runs(chain)
    row = place.row(first)
    history = place.storage.histories({first: 0})[first]
    messages = [(m.id, m.kind, m.name, m.after) for m in place.inbox(chain)]
    with place.storage.transaction():
        atomic = [(t.id, t.seq, t.attempt, t.due_at) for t in place.storage.atomic_tasks(chain)]
    return place.state(chain), others, row.status, row.published, history, messages, atomic, place.claim()


def child(place: Place, chain: UUID, workflow_id: str = "child", seq: int = 1, **fields: Any) -> NewChild:
    given: dict[str, Any] = {
        "workflow": "Child",
        "workflow_id": workflow_id,
        "version": 1,
        "queue": "default",
        "scope": "global",
        "args": {},
        "seed": 1,
        "at": place.now,
        "parent": "w-1",
        "parent_chain": chain,
        "parent_run": place.runs(chain)[-1],
        "parent_seq": seq,
        "parent_close": "terminate",
        **fields,
    }
    return NewChild(**given)


def much(place: Place, chain: UUID, other: UUID) -> None:
    """A turn that stores something in every place."""
    first, second, third, fourth = (m.id for m in place.inbox(chain))
    state = place.state(chain)
    place.write_inside(
        chain,
        run={"length": 9, "due_at": None, "head_token": 5, "activated_at": NOW},
        events=[event(2), event(3)],
        tasks=[place.task(state, 7), place.task(state, 8, atomic=True)],
        cancelled_tasks=[1],
        retried_tasks={2: Retry(attempt=3, due_at=NOW.replace(hour=5))},
        consumed=[first],
        settled={second: Outcome(status="completed", value=1)},
        waiting={third: 2},
        parked=[fourth],
        outcomes={"known": Outcome(status="completed")},
        messages=[NewMessage(kind="signal", name="told", payload=1, chain_id=other)],
        children=[child(place, chain)],
        instance={"status": "running", "published": 3},
        next_run=place.successor(chain, place.storage.new_run_id(), seed=2),
    )


def prepared(place: Place) -> tuple[UUID, UUID, int]:
    chain, other = place.start(), place.start("other")
    known = place.send(chain, "add", kind="update", request_id="known")
    for i in range(4):
        place.send(chain, "add", kind="update", request_id=f"u-{i}")
    state = place.state(chain)
    place.write(
        chain,
        settled={known: Outcome(status="accepted")},
        tasks=[place.task(state, 1), place.task(state, 2, atomic=True)],
        events=[event(1)],
        instance={"published": 1},
    )
    return chain, other, known


def within_transaction(place: Place) -> Any:
    return place.storage.transaction()


def within_savepoint(place: Place) -> Any:
    return place.storage.savepoint()


def within_checked_savepoint(place: Place) -> Any:
    return place.storage.checked_savepoint()


BLOCKS = [within_transaction, within_savepoint, within_checked_savepoint]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_raises_leaves_nothing_of_itself(place: Place, block: Callable[[Place], Any]) -> None:
    chain, other, known = prepared(place)
    before, told = everything(place, chain), everything(place, other)

    with place.storage.transaction():
        with pytest.raises(Undone), block(place):  # noqa: PT012 - the block is what is undone
            much(place, chain, other)
            place.send(chain, "late")
            place.start("late")
            raise Undone
        assert everything(place, chain) == before

    assert everything(place, chain) == before
    assert everything(place, other) == told
    assert place.outcome(known) == Outcome(status="accepted")
    assert [t.seq for t in place.take()] == [1]
    place.start("late")
    place.start("child")


def test_a_turn_that_raises_leaves_nothing_of_itself(place: Place) -> None:
    chain, other, known = prepared(place)
    before = everything(place, chain)

    with pytest.raises(Undone), place.storage.transaction():  # noqa: PT012 - the block is the transaction
        much(place, chain, other)
        raise Undone

    assert everything(place, chain) == before
    assert place.outcome(known) == Outcome(status="accepted")
    assert [t.seq for t in place.take()] == [1]


def test_a_write_that_cannot_be_stored_leaves_nothing_of_itself(place: Place) -> None:
    """The turn of the second run knows another history than there is."""
    one, two = place.start("one"), place.start("two")
    place.write(two, events=[event(1)])
    before = everything(place, one), everything(place, two)

    with pytest.raises(Exception, match="."), place.storage.transaction():  # noqa: PT012 - whatever it says
        place.write_inside(one, events=[event(1)], run={"length": 1}, instance={"status": "running"})
        place.write_inside(two, events=[event(1, name="another")])

    assert (everything(place, one), everything(place, two)) == before


def test_what_a_failed_run_of_a_batch_did_is_undone_alone(place: Place) -> None:
    chains = [place.start(f"w-{i}") for i in range(3)]
    with place.storage.transaction():
        for i, chain in enumerate(chains):
            try:
                with place.storage.savepoint():
                    place.write_inside(chain, events=[event(1)], run={"length": 1, "due_at": None})
                    if i == 1:
                        raise Undone
            except Undone:
                pass

    assert [place.state(chain).length for chain in chains] == [1, 0, 1]
    assert place.claim() == [chains[1]]


def test_savepoints_in_each_other(place: Place) -> None:
    chain = place.start()
    (run,) = place.runs(chain)
    with place.storage.transaction():
        place.write_inside(chain, events=[event(1)])
        with place.storage.savepoint():
            place.write_inside(chain, events=[event(2)])
            with pytest.raises(Undone), place.storage.savepoint():  # noqa: PT012
                place.write_inside(chain, events=[event(3, name="gone")])
                raise Undone
            place.write_inside(chain, events=[event(3, name="kept")])

    assert [(e.number, e.attributes) for e in place.storage.histories({run: 0})[run]] == [
        (1, {}),
        (2, {}),
        (3, {"name": "kept"}),
    ]


def test_activities_come_back_with_their_transaction(place: Place) -> None:
    chain = place.start()
    place.schedule(chain, 1)
    with pytest.raises(Undone), place.storage.transaction():  # noqa: PT012
        (task,) = place.take()
        place.storage.finish_tasks([TaskResult(task=task, outcome=("ActivityCompleted", {"seq": 1, "result": 1}))])
        raise Undone

    assert place.inbox(chain) == []
    (again,) = place.take(owner=2)
    assert (again.id, again.attempt, again.owner) == (task.id, 1, 2)


# -- what is to happen after the commit --------------------------------------------------------------------------------


@pytest.fixture
def committed(place: Place, request: pytest.FixtureRequest) -> Any:
    """The outermost transaction of a test on the database is the test's: it says when callbacks would be due."""
    if request.node.callspec.params["place"] == "memory":
        from contextlib import nullcontext

        return nullcontext
    from django.test import TestCase

    return lambda: TestCase.captureOnCommitCallbacks(execute=True)


def test_callbacks_come_after_the_commit(place: Place, committed: Any) -> None:
    heard: list[str] = []
    with committed(), place.storage.transaction():
        place.storage.on_commit(lambda: heard.append("outer"))
        with place.storage.transaction():
            place.storage.on_commit(lambda: heard.append("inner"))
        assert heard == []
    assert heard == ["outer", "inner"]


def test_no_callback_comes_after_a_rollback(place: Place, committed: Any) -> None:
    heard: list[str] = []
    with committed():
        with pytest.raises(Undone), place.storage.transaction():  # noqa: PT012
            place.storage.on_commit(lambda: heard.append("turn"))
            raise Undone
        with place.storage.transaction():
            with pytest.raises(Undone), place.storage.savepoint():  # noqa: PT012
                place.storage.on_commit(lambda: heard.append("savepoint"))
                raise Undone
            place.storage.on_commit(lambda: heard.append("kept"))
    assert heard == ["kept"]


def test_what_a_callback_raises_is_logged(place: Place, committed: Any, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def breaks() -> None:
        raise Undone("the callback broke")

    with caplog.at_level(logging.ERROR), committed(), place.storage.transaction():
        place.storage.on_commit(breaks)
        place.storage.on_commit(lambda: heard.append("next"))

    assert heard == ["next"]
    assert "a callback after a commit failed: Undone" in caplog.text or "the callback broke" in caplog.text


def test_what_user_code_raises_is_no_fault_of_the_storage(place: Place) -> None:
    for error in (ValueError("x"), Undone(), KeyError("y")):
        assert not place.storage.is_transient(error)
        assert not place.storage.is_interrupted(error)
        assert not place.storage.is_connection_lost(error)
