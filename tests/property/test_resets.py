"""A run of any program can be taken up at each of its activations."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.history.prefix import count_activations, is_closed_by_code
from temporalex_django.engine.activity_policy import idempotency_key
from tests.property import grammar
from tests.property.examples import examples
from tests.property.playing import Played, play, replay_everything


def taken_up(program: Any, schedule: Any, where: int, messages: str, *, evict: bool) -> Played:
    """The program after its schedule, a reset, and the schedule once more."""
    played = play(program, schedule, evict=evict)
    history = played.handle.history()
    last = count_activations(history) - is_closed_by_code(history)
    played.handle.reset(where % (last + 1), messages=messages)
    assert len(played.handle.run_ids) > 1
    for event in schedule:
        played.deliver(*event)
    return played


@examples(0.3)
@given(grammar.program, grammar.schedule, st.integers(0, 50), st.sampled_from(["again", "drop"]))
def test_a_run_goes_on_from_each_of_its_activations(program: Any, schedule: Any, where: int, messages: str) -> None:
    """TX-030: never blocked, replaying at each activation; cached and rebuilt executors do the same."""
    kept, rebuilt = (taken_up(program, schedule, where, messages, evict=evict) for evict in (False, True))

    for played in (kept, rebuilt):
        assert not played.env.errors, played.env.errors
        assert replay_everything(played) > 0
    assert kept.commands() == rebuilt.commands()
    assert kept.outcomes() == rebuilt.outcomes()
    assert kept.handle.status == rebuilt.handle.status


@examples(0.3)
@given(grammar.program, grammar.schedule, st.integers(0, 50))
def test_a_fork_changes_nothing_of_what_it_was_made_from(program: Any, schedule: Any, where: int) -> None:
    """But for runs that its code sends something to."""
    told = set(re.findall(r'"tell", "(\w+)"|"(strict)", \[', json.dumps(program)))
    told = {name for names in told for name in names}
    played = play(program, schedule)
    before = played.facts()
    history = played.handle.history()
    last = count_activations(history) - is_closed_by_code(history)
    played.handle.fork(where % (last + 1), id="fork", messages="drop")

    kept = zip(before, played.facts(), strict=False)  # the fork comes behind them
    assert [after for of, after in kept if of[0] not in told] == [of for of in before if of[0] not in told]
    assert not played.env.errors, played.env.errors
    assert replay_everything(played) > 0


@examples(0.2)
@given(grammar.program, grammar.schedule, grammar.waiting)
def test_what_was_done_by_hand_is_of_the_run_that_takes_it_up(program: Any, schedule: Any, waiting: Any) -> None:
    """Nothing that somebody ended is done again, and what he edited keeps its input and its key."""
    played = play(program, schedule)
    for event in [("unpause",), ("edit", 0), ("pause",), *waiting]:
        played.deliver(*event)
    operator, run_id, history = played.operator, UUID(played.handle.run_id), played.handle.history()
    ended = {number for run, number in operator.skipped | operator.by_hand if run == str(run_id)}
    open_ones = inputs(played, run_id)
    last = count_activations(history) - is_closed_by_code(history)
    ended -= {e.attributes["seq"] for e in history if "by" in e.attributes and e.activation > last}  # that it has read
    # that was due when it was skipped, and came by itself
    ended -= {e.attributes["seq"] for e in history if e.kind == "TimerFired" and "by" not in e.attributes}
    fork = played.handle.fork(last, id="fork", messages="drop")
    taken_up_as = played.handle.reset(last, messages="drop")

    for new in (taken_up_as, fork.run_ids[0]):  # and not as what that has gone on
        row = played.env.row(UUID(new))
        assert row.paused is None
        by_hand = {e.attributes["seq"] for e in row.events if "by" in e.attributes}
        assert by_hand <= ended if last else not by_hand
        assert by_hand == ended or not (row.status not in CLOSED_STATUSES and last), (by_hand, ended)
        now = inputs(played, UUID(new))
        assert all(now[number] == open_ones[number] for number in now.keys() & open_ones.keys())
    assert not played.env.errors, played.env.errors
    assert replay_everything(played) > 0


def inputs(played: Played, run_id: UUID) -> dict[int, Any]:
    return {task.seq: [task.args, idempotency_key(task)] for task in played.env.engine.tasks.tasks_of_run(run_id)}
