"""What somebody does to a run is of its history like everything else, and a pause costs it nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from temporalex_django import errors
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.testing import WorkflowEnvironment
from tests.property import grammar, legal
from tests.property.examples import examples
from tests.property.playing import Played, begin, play, replay_everything


def after_waiting(program: Any, schedule: Any, waiting: Any, then: Any, *, how: str, evict: bool) -> Played:
    """A program, with what comes while it is paused, or all at once, somewhere on its way."""
    played = begin(program, WorkflowEnvironment(evict=evict))
    for event in schedule:
        played.deliver(*event)
    played.deliver("unpause")  # the schedule may have left it paused, with messages that wait
    if how == "paused":
        played.deliver("pause")
        for event in waiting:
            played.deliver(*event)
        played.deliver("unpause")
    else:
        played.deliver("unpause")
        played.deliver("batch", waiting)
    for event in then:
        played.deliver(*event)
    played.operator.judge(played.env)
    return played


@examples(0.25)
@given(grammar.alone, grammar.schedule, grammar.waiting)
def test_a_pause_is_as_if_everything_had_come_at_its_end(program: Any, schedule: Any, waiting: Any) -> None:
    """Signals, results, skipped timers: nothing is lost, nothing comes twice, all of it in order."""
    schedule, then = schedule[: len(schedule) // 2], schedule[len(schedule) // 2 :]
    paused, kept, rebuilt = (
        after_waiting(program, schedule, waiting, then, how=how, evict=evict)
        for how, evict in (("paused", False), ("at once", False), ("paused", True))
    )

    assert paused.facts() == kept.facts() == rebuilt.facts()
    assert paused.commands() == kept.commands() == rebuilt.commands()
    assert replay_everything(paused) > 0
    for _, history in paused.histories():
        legal.check(history)


@examples(0.1)
@given(grammar.program, grammar.schedule)
def test_a_closed_run_leaves_nothing_but_other_runs(program: Any, schedule: Any) -> None:
    played = play(program, schedule)
    if played.handle.status not in CLOSED_STATUSES:
        played.handle.terminate()
    before = [facts for facts in played.facts() if facts[0] != "program"]
    played.handle.delete()

    assert played.facts() == before
    with pytest.raises(errors.WorkflowNotFound):
        played.env.handle("program")
    assert begin(program, played.env).handle.history() or program["begins"] is not None
    assert not played.env.errors
