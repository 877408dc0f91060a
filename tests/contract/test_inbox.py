"""``inbox``: what a turn reads of the messages of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from temporalex_django.core.history.prefix import PendingMessage
from temporalex_django.core.messages.sender import Sender
from temporalex_django.engine.contracts.records import Outcome
from temporalex_django.errors import MessageIdTaken

if TYPE_CHECKING:
    from tests.contract.places import Place


def test_messages_come_in_their_order_with_all_they_have(place: Place) -> None:
    chain = place.start()
    first = place.send(chain, "go", {"a": "ü"})
    second = place.send(chain, "add", [1], kind="update", request_id="u-1", sender=Sender("7", "Ada"))
    third = place.send(chain, "", {"reason": "why"}, kind="cancel")

    found = place.inbox(chain)

    assert [(m.id, m.kind, m.name, m.payload, m.message_id) for m in found] == [
        (first, "signal", "go", {"a": "ü"}, None),
        (second, "update", "add", [1], "u-1"),
        (third, "cancel", "", {"reason": "why"}, None),
    ]
    assert [m.sender for m in found] == [None, Sender("7", "Ada"), None]
    assert [(m.run_id, m.after) for m in found] == [(None, None)] * 3


def test_every_chain_that_is_asked_for_has_an_inbox(place: Place) -> None:
    full, empty = place.start("full"), place.start("empty")
    place.send(full)

    with place.storage.transaction():
        place.storage.claim(limit=2, queues=["default"])
        found = place.storage.inbox([full, empty])
        assert place.storage.inbox([]) == {}

    assert {chain: len(messages) for chain, messages in found.items()} == {full: 1, empty: 0}
    assert not any(messages.has_more for messages in found.values())


def test_a_turn_reads_inboxes_and_the_facts_of_some_runs_together(place: Place) -> None:
    one, other = place.start("one", args={"n": 1}), place.start("other")
    place.send(other)

    with place.storage.transaction():
        place.storage.claim(limit=2, queues=["default"])
        inboxes, facts = place.storage.load_turn_input([one, other], runs=place.runs(one))
        assert {chain: len(messages) for chain, messages in inboxes.items()} == {one: 0, other: 1}
        assert facts == place.storage.run_records(place.runs(one))
        assert [of.workflow_id for of in facts.values()] == ["one"]
        assert place.storage.load_turn_input([]) == ({}, {})


def test_what_is_consumed_is_gone(place: Place) -> None:
    chain = place.start()
    first, second = place.send(chain), place.send(chain)
    place.write(chain, consumed=[first])

    assert [m.id for m in place.inbox(chain)] == [second]


def test_what_waits_is_read_again_with_what_it_waits_behind(place: Place) -> None:
    chain = place.start()
    first = place.send(chain, "add", kind="update", request_id="u-1")
    place.write(chain, run={"due_at": None}, waiting={first: 4})

    assert place.claim() == []  # it does not ring any more
    assert [(m.id, m.after) for m in place.inbox(chain)] == [(first, 4)]


def test_of_a_run_that_waits_only_fresh_ones_are_read(place: Place) -> None:
    """A paused or blocked one parks its messages: what was parked need not be read each time."""
    paused, other = place.start("paused"), place.start("other")
    numbers = {chain: [place.send(chain), place.send(chain)] for chain in (paused, other)}
    for chain, (first, _) in numbers.items():
        place.write(chain, parked=[first])

    with place.storage.transaction():
        place.storage.claim(limit=2, queues=["default"])
        found = place.storage.inbox([paused, other], waiting=[paused])

    assert [m.id for m in found[paused]] == numbers[paused][1:]
    assert [m.id for m in found[other]] == numbers[other]


def test_settled_messages_are_kept_with_their_outcome_and_not_read(place: Place) -> None:
    chain = place.start()
    message = place.send(chain, "add", kind="update", request_id="u-1")
    assert place.outcome(message) is None

    place.write(chain, run={"due_at": None}, settled={message: Outcome(status="accepted")})
    assert place.inbox(chain) == []
    assert place.claim() == []
    assert place.outcome(message) == Outcome(status="accepted")

    place.write(chain, outcomes={"u-1": Outcome(status="completed", value=[1, "ü"])})
    assert place.outcome(message) == Outcome(status="completed", value=[1, "ü"])


def test_outcomes_of_what_is_not_there_change_nothing(place: Place) -> None:
    """An update may be gone by the time its run answers: deleted, or answered by whoever closed the run."""
    chain = place.start()
    message = place.send(chain)

    place.write(
        chain,
        outcomes={"nobody": Outcome(status="completed")},
        settled={message + 1000: Outcome(status="completed")},
        waiting={message + 1001: 1},
        parked=[message + 1002],
        consumed=[message + 1003],
        cancelled_tasks=[17],
    )

    assert [m.id for m in place.inbox(chain)] == [message]


def test_a_message_is_sent_once_under_its_id(place: Place) -> None:
    chain, other = place.start(), place.start("other")
    first = place.send(chain, "add", 1, kind="update", request_id="u-1")

    assert place.send(chain, "add", 2, kind="update", request_id="u-1") == first
    assert place.send(other, "add", 1, kind="update", request_id="u-1") != first
    assert [m.payload for m in place.inbox(chain)] == [1]
    for another in (
        {"name": "else", "kind": "update"},
        {"name": "add", "kind": "signal"},
        {"name": "add", "kind": "update", "sender": Sender("8", "Eve")},
    ):
        with pytest.raises(MessageIdTaken):
            place.send(chain, request_id="u-1", **another)


@pytest.mark.parametrize("status", ["rejected", "undelivered"])
def test_the_id_of_what_was_not_taken_is_free(place: Place, status: str) -> None:
    chain = place.start()
    first = place.send(chain, "add", 1, kind="update", request_id="u-1")
    place.write(chain, settled={first: Outcome(status=status)})

    second = place.send(chain, "add", 2, kind="update", request_id="u-1")

    assert second != first
    assert [(m.id, m.payload) for m in place.inbox(chain)] == [(second, 2)]


def test_the_id_of_what_was_taken_is_not(place: Place) -> None:
    chain = place.start()
    first = place.send(chain, "add", 1, kind="update", request_id="u-1")
    place.write(chain, settled={first: Outcome(status="completed", value=3)})

    assert place.send(chain, "add", 2, kind="update", request_id="u-1") == first
    assert place.outcome(first) == Outcome(status="completed", value=3)


def test_of_a_long_inbox_a_page_is_read(place: Place) -> None:
    chain = place.start()
    place.storage.inbox_page = 3
    numbers = [place.send(chain, body=i) for i in range(7)]

    found = place.inbox(chain)
    assert [m.id for m in found] == numbers[:3]
    assert found.has_more
    place.write(chain, consumed=numbers[:3])
    place.write(chain, consumed=[m.id for m in place.inbox(chain)])
    rest = place.inbox(chain)
    assert [m.id for m in rest] == numbers[6:]
    assert not rest.has_more


def test_a_turn_may_ask_for_less(place: Place) -> None:
    chain = place.start()
    numbers = [place.send(chain, body=i) for i in range(130)]
    place.storage.inbox_page = 1000

    found = place.inbox(chain, page=110)

    assert [m.id for m in found] == numbers[:110]
    assert found.has_more


def test_results_and_waiting_updates_are_read_however_long_the_inbox_is(place: Place) -> None:
    """They bring a run on: behind a thousand signals that nobody takes they would come never."""
    chain = place.start()
    place.storage.inbox_page = 3
    numbers = [place.send(chain, body=i) for i in range(5)]
    waits = place.send(chain, "add", kind="update", request_id="u-1")
    place.write(chain, waiting={waits: 2})
    cancel = place.send(chain, "", {"reason": ""}, kind="cancel")
    result = place.send(chain, "ActivityCompleted", {"seq": 1, "result": 2}, kind="activity")

    found = place.inbox(chain)

    assert [m.id for m in found] == [*numbers[:3], waits, cancel, result]
    assert found.has_more


def test_a_page_is_shared_by_the_runs_of_a_turn(place: Place) -> None:
    chains = [place.start(f"w-{i}") for i in range(2)]
    place.storage.inbox_page = 400
    for chain in chains:
        for i in range(201):
            place.send(chain, body=i)

    with place.storage.transaction():
        place.storage.claim(limit=2, queues=["default"])
        found = place.storage.inbox(chains)

    assert [(len(messages), messages.has_more) for messages in found.values()] == [(200, True), (200, True)]


def test_the_body_is_as_it_was_sent(place: Place) -> None:
    chain = place.start()
    body = {"list": [1]}
    place.send(chain, body=body)
    body["list"].append(2)

    assert place.inbox(chain)[0].payload == {"list": [1]}


def test_messages_are_put_before_those_that_are_there(place: Place) -> None:
    """In their order, with all that they have; one with an id takes the place of the one that had it."""
    chain = place.start()
    place.send(chain, "read", 1, kind="update", request_id="again")
    place.write(chain, settled={place.inbox(chain)[0].id: Outcome(status="completed", value="first")})
    place.send(chain, "unread", 2, sender=Sender("7", "Ada"))
    place.send(chain, "", {"reason": "why"}, kind="cancel")
    waits, waited = (place.send(chain, "wait", n, kind="update", request_id=f"w-{n}") for n in (3, 4))
    place.write(chain, waiting={waits: 1, waited: 5})

    with place.storage.transaction():
        place.storage.claim(limit=1, queues=["default"], chains=[chain])
        messages = [
            PendingMessage(kind="signal", name="first", payload=5, sender=Sender("8", "Bob")),
            PendingMessage(kind="update", name="read", payload=6, message_id="again"),
        ]
        place.storage.prepend_messages(chain, messages, received=3)

    found = [m for m in place.inbox(chain) if m.kind != "cancel"]
    assert [(m.name, m.payload, m.message_id, m.sender) for m in found] == [
        ("first", 5, None, Sender("8", "Bob")),
        ("read", 6, "again", None),
        ("unread", 2, None, Sender("7", "Ada")),
        ("wait", 3, "w-3", None),
        ("wait", 4, "w-4", None),
    ]
    assert [m.after for m in found] == [None, None, None, 1, None]
    assert [place.outcome(m.id) for m in found] == [None] * 5
    assert [m.kind for m in place.inbox(chain)].count("cancel") == 1
    assert place.claim() == [chain]


def test_updates_of_a_history_are_known_to_a_chain_that_never_had_them(place: Place) -> None:
    chain = place.start()
    ada = Sender("7", "Ada")
    updates = [
        (
            PendingMessage(kind="update", name="add", payload=[1], message_id="under-way", sender=ada),
            Outcome(status="accepted"),
        ),
        (
            PendingMessage(kind="update", name="add", payload=[2], message_id="done"),
            Outcome(status="completed", value={"n": 2}),
        ),
    ]
    place.quiet(chain)
    with place.storage.transaction():
        place.storage.claim(limit=1, queues=["default"], chains=[chain])
        place.storage.store_settled_messages(chain, updates)

    assert (place.inbox(chain), place.claim()) == ([], [])
    under_way = place.send(chain, "add", [1], kind="update", request_id="under-way", sender=ada)
    done = place.send(chain, "add", [2], kind="update", request_id="done")
    assert [place.outcome(n) for n in (under_way, done)] == [outcome for _, outcome in updates]
    assert (place.inbox(chain), place.claim()) == ([], [])
    with pytest.raises(MessageIdTaken, match="different sender"):
        place.send(chain, "add", [1], kind="update", request_id="under-way")

    place.write(chain, outcomes={"under-way": Outcome(status="completed", value=1)})
    assert place.outcome(under_way) == Outcome(status="completed", value=1)
