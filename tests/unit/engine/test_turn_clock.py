"""The time of a turn decides which runs start, except in an environment."""

from __future__ import annotations

import time

import pytest

from temporalex_django.engine.turn import TurnClock


@pytest.mark.parametrize(("limited", "starts"), [(True, [True, False, True]), (False, [True, True, True])])
def test_a_slow_run_keeps_others_from_a_turn_only_where_turns_are_limited(limited: bool, starts: list[bool]) -> None:
    """In tests of users the second run came a turn later on a slow machine, and with it the order of messages."""
    clock = TurnClock(short_count=2, limited=limited)
    later = time.monotonic() + 0.5

    # the first run always starts; the first one with a long inbox, at index 2, may come late
    assert [clock.may_start(index, later, has_results=False) for index in range(3)] == starts
