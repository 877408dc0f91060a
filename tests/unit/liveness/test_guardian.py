"""When a guardian ends a worker, and whom a death is blamed on: both are pure."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from temporalex_django.engine import policy
from temporalex_django.liveness.crash_markers import MarkedWork
from temporalex_django.liveness.guardian import WatchState, _run_with_timeout
from temporalex_django.liveness.recovery import attribute_crashes

ONE, TWO = MarkedWork("chain", UUID(int=1)), MarkedWork("chain", UUID(int=2))
TASK, TRIAL, OTHER = MarkedWork("task", 1), MarkedWork("trial", 1), MarkedWork("task", 2)
ASKED = MarkedWork("run", UUID(int=1))


def looks(vigil, *, seconds, beats, stopped=False, since=0.0, step=0.2):
    """Look every ``step`` seconds: after how many it is to be ended, or None."""
    for number in range(1, int(seconds / step) + 1):
        if vigil.observe(
            heartbeats=beats(number) if callable(beats) else beats, stopped=stopped, now=since + number * step
        ):
            return number * step
    return None


def test_who_beats_is_left_alone():
    assert looks(WatchState(1.0), seconds=60, beats=lambda n: n) is None


def test_who_does_not_beat_is_ended_after_the_limit():
    ended = looks(WatchState(1.0), seconds=60, beats=7)
    assert ended is not None and 1.0 < ended < 1.7


def test_before_the_first_beat_and_after_the_last_nothing_counts():
    assert looks(WatchState(1.0), seconds=60, beats=0) is None


def test_stopped_time_does_not_count():
    vigil = WatchState(1.0)
    assert looks(vigil, seconds=1, beats=7) is None
    assert looks(vigil, seconds=60, beats=7, stopped=True, since=1.0) is None
    assert looks(vigil, seconds=60, beats=7, since=61.0) is not None


def test_a_guardian_that_was_late_itself_counts_only_what_it_saw():
    """It was stopped, or the machine was."""
    vigil = WatchState(1.0)
    assert not vigil.observe(heartbeats=7, stopped=False, now=0.0)
    assert not vigil.observe(heartbeats=7, stopped=False, now=0.2)
    assert not vigil.observe(heartbeats=7, stopped=False, now=60.0)
    assert not vigil.observe(heartbeats=8, stopped=False, now=60.2)
    assert vigil.silent == 0.0


@pytest.mark.parametrize(
    ("marked", "recorded", "crashes"),
    [
        pytest.param([ONE], {ONE: 0}, {ONE: 1}, id="the first death of a run"),
        pytest.param([ONE], {ONE: 2}, {ONE: 3}, id="the last one"),
        pytest.param([ONE], {}, {}, id="closed meanwhile"),
        pytest.param([], {}, {}, id="nothing was run"),
        pytest.param([ONE, TASK], {ONE: 1, TASK: 0}, {ONE: 2, TASK: 1}, id="a run beside an activity"),
        pytest.param(
            [ONE, TASK], {ONE: 0, TASK: 2}, {ONE: 1, TASK: 1}, id="in company an activity is suspected at most"
        ),
        pytest.param([ONE, TWO], {ONE: 0, TWO: 1}, {ONE: 1, TWO: 1}, id="threads of a web process"),
        pytest.param([ONE, ASKED], {ONE: 1, ASKED: 1}, {ONE: 2, ASKED: 2}, id="a query and a turn of one run"),
        pytest.param([TASK], {TASK: 0}, {TASK: 1}, id="an activity alone"),
        pytest.param([TASK, TRIAL, OTHER], {TASK: 2, OTHER: 0}, {TASK: 3, OTHER: 0}, id="on trial beside another one"),
        pytest.param([TASK, TRIAL, OTHER], {TASK: 1, OTHER: 2}, {TASK: 2, OTHER: 1}, id="beside one that outlived it"),
        pytest.param([TASK, TRIAL], {TASK: 1}, {TASK: 2}, id="on trial alone"),
        pytest.param([TASK], {TASK: 2}, {TASK: 3}, id="the last death of an activity"),
        pytest.param([TASK, OTHER], {TASK: 0, OTHER: 0}, {TASK: 1, OTHER: 1}, id="two activities"),
        pytest.param(
            [TASK, OTHER], {TASK: 1, OTHER: 1}, {TASK: 1, OTHER: 1}, id="two suspects are no nearer to the end"
        ),
        pytest.param([TASK, OTHER], {TASK: 1}, {TASK: 1}, id="its company is over, and was there"),
    ],
)
def test_judge(marked, recorded, crashes):
    verdicts = attribute_crashes(marked, recorded)
    assert {verdict.mark: verdict.crashes for verdict in verdicts} == crashes
    assert all(verdict.is_final == (verdict.crashes == policy.MOST_CRASHES) for verdict in verdicts)


def test_it_comes_back_later_each_time():
    waits = [attribute_crashes([ONE], {ONE: before})[0].wait for before in range(policy.MOST_CRASHES)]
    assert waits == sorted(waits) and waits[0] >= 1.0


def test_a_guardian_whose_database_does_not_answer_ends_all_the_same(caplog):
    away = threading.Event()
    try:
        _run_with_timeout(0.05, away.wait)
    finally:
        away.set()
    assert "the database did not answer within 0.05 s" in caplog.text


def test_a_guardian_reports_before_it_ends():
    reported = []
    _run_with_timeout(60.0, lambda: reported.append(True))
    assert reported == [True]
