"""A run of any program can be taken up at each of its activations."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from temporalex_django.core.history.prefix import activations_of, closed_itself
from tests.property import grammar
from tests.property.examples import examples
from tests.property.playing import Played, play, replay_everything


def taken_up(program: Any, schedule: Any, where: int, messages: str, *, evict: bool) -> Played:
    """The program after its schedule, a reset, and the schedule once more."""
    played = play(program, schedule, evict=evict)
    history = played.handle.history()
    last = activations_of(history) - closed_itself(history)
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
    played = play(program, schedule)
    before = played.facts()
    history = played.handle.history()
    last = activations_of(history) - closed_itself(history)
    played.handle.fork(where % (last + 1), id="fork", messages="drop")

    assert played.facts()[: len(before)] == before
    assert not played.env.errors, played.env.errors
    assert replay_everything(played) > 0
