"""``write``: what a turn stored is read back, and belongs to the storage from then on."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from temporalex_django.engine.contracts.records import Outcome, RunWrite
from temporalex_django.errors import AlreadyRunning, InvalidId
from tests.contract.places import NOW, event

if TYPE_CHECKING:
    from tests.contract.places import Place


def test_facts_are_those_of_the_start(place: Place) -> None:
    chain = place.start("cart-1", workflow="Cart", version=3, args={"n": [1]}, execution_timeout=60, run_timeout=5)
    (run,) = place.runs(chain)

    facts = place.storage.run_records([run])[run]

    assert (facts.run_id, facts.workflow_id, facts.workflow, facts.version) == (run, "cart-1", "Cart", 3)
    assert (facts.args, facts.seed, facts.carried_messages, facts.attempt, facts.snapshot) == (
        {"n": [1]},
        7,
        None,
        1,
        None,
    )
    assert (facts.expires_at, facts.run_timeout) == (NOW + timedelta(seconds=60), 5)
    assert (facts.parent, facts.parent_chain, facts.parent_run, facts.parent_seq) == (None, None, None, None)
    assert facts.started_at is None


def test_facts_are_of_those_runs_that_there_are(place: Place) -> None:
    (run,) = place.runs(place.start())

    assert place.storage.run_records([]) == {}
    assert list(place.storage.run_records([run, place.storage.new_run_id()])) == [run]


def test_facts_say_when_the_run_started(place: Place) -> None:
    chain = place.start()
    place.write(chain, instance={"started_at": NOW, "status": "running"})
    (run,) = place.runs(chain)

    assert place.storage.run_records([run])[run].started_at == NOW


def test_the_state_of_a_run_comes_back(place: Place) -> None:
    chain = place.start()
    later = NOW + timedelta(seconds=9)
    changed: dict[str, Any] = {
        "head_token": 77,
        "length": 4,
        "activations": 2,
        "activated_at": NOW,
        "due_at": later,
        "deadline": later,
        "failed_tries": 3,
        "paused": True,
        "atomic_due": later,
        "crashes": 2,
    }

    place.write(chain, run=changed)
    place.advance(60)

    state = place.state(chain)
    assert {name: getattr(state, name) for name in changed} == changed


def test_code_that_ran_and_came_back_is_no_suspect_any_more(place: Place) -> None:
    chain = place.start()
    place.write(chain, run={"crashes": 2})
    assert place.state(chain).crashes == 2
    place.write(chain)
    assert place.state(chain).crashes == 2
    place.write(chain, delivered=True)
    assert place.state(chain).crashes == 0


def test_events_are_appended_in_order(place: Place) -> None:
    chain, other = place.start("one"), place.start("two")
    place.write(chain, events=[event(1, name="ü"), event(2, activation=1)])
    place.write(other, events=[event(1, name="other")])
    place.write(chain, events=[event(3, activation=2, at=NOW + timedelta(seconds=1))])
    (run,), (second,) = place.runs(chain), place.runs(other)

    found = place.storage.histories({run: 0, second: 0})

    assert [(e.number, e.activation, e.kind, e.at) for e in found[run]] == [
        (1, 1, "SignalReceived", NOW),
        (2, 1, "SignalReceived", NOW),
        (3, 2, "SignalReceived", NOW + timedelta(seconds=1)),
    ]
    assert found[run][0].attributes == {"name": "ü"}
    assert [e.attributes for e in found[second]] == [{"name": "other"}]


def test_histories_begin_behind_what_is_known(place: Place) -> None:
    chain = place.start()
    place.write(chain, events=[event(number) for number in range(1, 6)])
    (run,) = place.runs(chain)
    nobody = place.storage.new_run_id()

    found = place.storage.histories({run: 3, nobody: 0})

    assert [e.number for e in found[run]] == [4, 5]
    assert found[nobody] == []
    assert place.storage.histories({run: 5}) == {run: []}


def test_a_history_in_pages(place: Place) -> None:
    chain = place.start()
    place.write(chain, events=[event(number) for number in range(1, 6)])
    (run,) = place.runs(chain)

    assert [e.number for e in place.storage.history_page(run, after=0, limit=2)] == [1, 2]
    assert [e.number for e in place.storage.history_page(run, after=2, limit=2)] == [3, 4]
    assert [e.number for e in place.storage.history_page(run, after=4, limit=2)] == [5]
    assert place.storage.history_page(run, after=5, limit=2) == []
    assert place.storage.history_page(place.storage.new_run_id(), after=0, limit=2) == []


def test_markers_of_patches(place: Place) -> None:
    chain = place.start()
    (run,) = place.runs(chain)
    assert place.storage.patch_markers(run) == set()
    place.write(chain, events=[event(1), event(2, "PatchMarked", id="a"), event(3, "PatchMarked", id="b")])

    assert place.storage.patch_markers(run) == {"a", "b"}
    assert place.storage.patch_markers(place.storage.new_run_id()) == set()


def test_columns_of_the_run_that_are_named_change_and_the_others_stay(place: Place) -> None:
    chain = place.start()
    (run,) = place.runs(chain)
    assert place.row(run).status == "pending"
    block = {"code": "x", "error": "y"}
    every = {
        "status": "waiting",
        "published": {"n": 1},
        "accepts": {"signals": ["s"], "updates": []},
        "waiting_for": ["signal s"],
        "started_at": NOW,
        "blocked": block,
    }
    place.write(chain, instance=every)
    place.write(chain, instance={"status": "running", "blocked": None})

    row = place.row(run)

    assert (row.status, row.published, row.accepts, row.waiting_for) == (
        "running",
        {"n": 1},
        every["accepts"],
        ["signal s"],
    )
    assert (row.started_at, row.blocked, row.closed_at) == (NOW, None, None)
    place.write(chain, instance={"closing": {"result": 1}, "closed_at": NOW, "status": "completed"})
    assert (place.row(run).closing, place.row(run).closed_at) == ({"result": 1}, NOW)


def test_several_runs_change_different_columns_in_one_write(place: Place) -> None:
    one, two = place.start("one"), place.start("two")
    with place.storage.transaction():
        runs = {run.chain_id: run for run in place.storage.claim(limit=2, queues=["default"])}
        place.storage.write(
            [
                RunWrite(run=runs[one], instance={"status": "waiting"}),
                RunWrite(run=runs[two], instance={"published": 5}),
            ]
        )

    first, second = place.row(place.runs(one)[0]), place.row(place.runs(two)[0])
    assert (first.status, first.published, second.status, second.published) == ("waiting", None, "pending", 5)


def test_what_was_given_may_change_afterwards(place: Place) -> None:
    """A storage keeps no reference to what it was given."""
    args, published, attributes, value = {"a": [1]}, {"b": [1]}, {"c": [1]}, [1]
    chain = place.start(args=args)
    (run,) = place.runs(chain)
    message = place.send(chain, kind="update", request_id="u")
    call: list[Any] = [[1]]
    new = place.task(place.state(chain), 1, args=call)
    place.write(
        chain,
        instance={"published": published},
        events=[event(1, **attributes)],
        settled={message: Outcome(status="completed", value=value)},
        tasks=[new],
    )
    for changed in (args["a"], published["b"], attributes["c"], value, call[0]):
        changed.append(2)

    assert place.storage.run_records([run])[run].args == {"a": [1]}
    assert place.row(run).published == {"b": [1]}
    assert place.storage.histories({run: 0})[run][0].attributes == {"c": [1]}
    assert place.outcome(message) == Outcome(status="completed", value=[1])
    assert place.take()[0].args == [[1]]


def test_two_runs_of_a_chain(place: Place) -> None:
    chain = place.start("w", version=3, args={"n": 1}, execution_timeout=60, run_timeout=9)
    carried = {"signals": [{"name": "s", "payload": 1}], "cancel": None}
    next_id = place.storage.new_run_id()
    place.schedule(chain, 1)
    place.write(
        chain,
        run={
            "head_token": 5,
            "length": 3,
            "activations": 2,
            "activated_at": NOW,
            "due_at": None,
            "failed_tries": 2,
            "crashes": 1,
            "atomic_due": NOW,
        },
        instance={"status": "continued_as_new", "closed_at": NOW, "started_at": NOW, "published": 1},
        events=[event(1)],
        drop_tasks=True,
        next_run=place.successor(chain, next_id, args={"n": 2}, seed=9, carried_messages=carried),
    )

    state = place.state(chain)
    assert place.runs(chain) == [place.runs(chain)[0], next_id]
    assert (state.run_id, state.head_token, state.length, state.activations, state.activated_at) == (
        next_id,
        None,
        0,
        0,
        NOW,
    )
    assert (state.failed_tries, state.crashes, state.atomic_due, state.closed) == (0, 0, None, False)
    assert place.claim() == [chain]  # it is due at once
    facts = place.storage.run_records([next_id])[next_id]
    assert (facts.args, facts.seed, facts.carried_messages, facts.version) == ({"n": 2}, 9, carried, 3)
    assert (facts.workflow_id, facts.expires_at, facts.run_timeout) == ("w", NOW + timedelta(seconds=60), 9)
    assert (facts.started_at, facts.snapshot) == (None, None)
    row = place.row(next_id)
    assert (row.status, row.published, row.closed_at) == ("pending", None, None)
    assert place.storage.histories({next_id: 0}) == {next_id: []}
    assert place.take() == []
    with pytest.raises(AlreadyRunning):
        place.start("w")


def test_a_mark_of_a_pause_and_stored_fields_go_on_but_not_where_a_run_is_taken_back(place: Place) -> None:
    chain = place.start()
    first, second, third = place.runs(chain)[0], place.storage.new_run_id(), place.storage.new_run_id()
    mark = {"since": NOW.isoformat(), "reason": "r", "by": None}
    on: dict[str, Any] = {"run": {"activated_at": NOW}}
    place.write(
        chain,
        instance={"paused": mark, "stored": {"n": 1}},
        next_run=place.successor(chain, second, args=2, seed=1),
        **on,
    )
    assert (place.row(second).paused, place.row(second).stored) == (mark, {"n": 1})

    place.write(
        chain,
        instance={"paused": None},
        next_run=place.successor(chain, third, args=2, seed=1),
        reset_run_id=first,
        **on,
    )

    assert [(place.row(run).paused, place.row(run).stored) for run in place.runs(chain)] == [
        (mark, {"n": 1}),
        (None, {"n": 1}),
        (None, None),
    ]


def test_ids_of_runs_are_drawn_in_their_order(place: Place) -> None:
    drawn = [place.storage.new_run_id() for _ in range(50)]

    assert len(set(drawn)) == 50
    assert sorted(drawn) == drawn


def test_tokens_are_never_drawn_twice(place: Place) -> None:
    drawn = [place.storage.new_token() for _ in range(50)]
    with pytest.raises(ZeroDivisionError), place.storage.transaction():  # noqa: PT012 - the block is the transaction
        drawn += [place.storage.new_token() for _ in range(50)]
        raise ZeroDivisionError
    drawn += [place.storage.new_token() for _ in range(50)]

    assert len(set(drawn)) == 150


def test_the_clock_does_not_go_back(place: Place) -> None:
    before = place.storage.now()
    assert before.utcoffset() == timedelta(0)
    place.advance(1)

    assert place.storage.now() - before == timedelta(seconds=1)


# -- the end of a chain ------------------------------------------------------------------------------------------------


def closed(place: Place, chain: Any, **stored: Any) -> Outcome:
    answer = Outcome(status="failed", value={"code": "workflow_closed"})
    place.write(
        chain, run={"closed": True}, closing=answer, drop_tasks=True, instance={"status": "completed"}, **stored
    )
    return answer


def test_the_end_answers_updates_that_were_accepted(place: Place) -> None:
    chain = place.start()
    accepted, done, waits, parked = (place.send(chain, "add", kind="update", request_id=f"u-{i}") for i in range(4))
    place.write(
        chain,
        run={"due_at": None},
        settled={accepted: Outcome(status="accepted"), done: Outcome(status="completed", value=1)},
        waiting={waits: 0},
        parked=[parked],
    )
    assert place.claim() == []

    answer = closed(place, chain)

    assert place.outcome(accepted) == answer
    assert place.outcome(done) == Outcome(status="completed", value=1)
    assert place.claim() == [chain]  # a turn answers those that are left
    assert [m.id for m in place.inbox(chain)] == [waits, parked]


def test_the_end_drops_activities_and_frees_the_id(place: Place) -> None:
    chain = place.start()
    place.schedule(chain, 1, 2)
    with pytest.raises(AlreadyRunning):
        place.start()

    closed(place, chain)

    assert place.take() == []
    assert place.start() != chain


def test_who_closes_a_run_from_outside_is_told_what_was_going_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    chain = place.start()
    accepted, done = (place.send(chain, f"add-{i}", kind="update", request_id=f"u-{i}") for i in range(2))
    place.write(chain, settled={accepted: Outcome(status="accepted"), done: Outcome(status="completed")})
    with caplog.at_level(logging.WARNING, logger="temporalex_django"):
        closed(place, chain, events=[event(1, "WorkflowTerminated", reason="")])

    (record,) = caplog.records
    assert "WorkflowTerminated" in record.getMessage()
    assert record.getMessage().endswith(": add-0")


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "asked", "free"),
    [
        ("global", "global", False),
        ("workflow", "global", False),
        ("version", "global", False),
        ("workflow", "workflow", False),
        ("version", "workflow", False),
        ("version", "version", False),
        ("none", "none", True),
        ("none", "global", True),
        ("version", "none", True),
        ("global", "workflow", False),
        ("global", "version", True),
        ("workflow", "version", True),
    ],
)
def test_an_id_is_unique_among_open_runs_of_its_scope(place: Place, held: str, asked: str, *, free: bool) -> None:
    """A wider scope sees narrower ones."""
    first = place.start("same", scope=held)
    if free:
        assert place.start("same", scope=asked) != first
        return
    with pytest.raises(AlreadyRunning):
        place.start("same", scope=asked)
    closed(place, first)
    assert place.start("same", scope=asked) != first


def test_scopes_see_their_own(place: Place) -> None:
    place.start("same", workflow="Cart", version=1, scope="version")
    place.start("same", workflow="Cart", version=2, scope="version")
    place.start("same", workflow="Order", scope="workflow")
    with pytest.raises(AlreadyRunning):
        place.start("same", workflow="Cart", version=2, scope="version")
    with pytest.raises(AlreadyRunning):
        place.start("same", workflow="Order", scope="workflow")


def test_no_business_id_is_the_id_of_a_run(place: Place) -> None:
    (run,) = place.runs(place.start())

    with pytest.raises(InvalidId):
        place.start(str(run))
