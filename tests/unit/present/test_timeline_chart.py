"""The drawing of a timeline: places on an axis that folds idle time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from temporalex_django.authoring.backend import EndedAttempt, OpenActivity
from temporalex_django.present.timeline import TimelineRow
from temporalex_django.present.timeline_chart import TimelineChart, draw_timeline

START = datetime(2026, 11, 3, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def row(kind: str, began: float, ended: float | None = None, **fields: Any) -> TimelineRow:
    return TimelineRow(
        **{
            "kind": kind,
            "name": kind,
            "state": "open" if ended is None else "done",
            "number": 1,
            "last": 2,
            "activation": 1,
            "began": at(began),
            "ended": None if ended is None else at(ended),
            "seq": 1,
            **fields,
        }
    )


def failed(number: int, began: float, ended: float) -> EndedAttempt:
    return EndedAttempt(
        seq=1, activity="a", attempt=number, outcome="failed", began_at=at(began), ended_at=at(ended), worker="", type="E",
        message="",
    )  # fmt: skip


def bars(chart: TimelineChart) -> list[str]:
    return [bar.kind for bar in chart.lanes[0].bars]


def test_an_activity_has_a_bar_for_each_attempt_and_the_time_before_it() -> None:
    done = row("activity", 0, 20, attempt_began=at(15), attempts=3)
    chart = draw_timeline([done], now=at(30), attempts=[failed(1, 2, 4), failed(2, 8, 9)], is_open=False)

    assert bars(chart) == ["queue", "failed", "backoff", "failed", "backoff", "run"]
    lane = chart.lanes[0].bars
    # One ends where the next begins.
    assert all(abs(bar.x + bar.width - later.x) < 0.05 for bar, later in pairwise(lane))
    assert [bar.attempt for bar in lane if bar.kind != "backoff"] == [0, 1, 2, 3]


def test_what_is_open_ends_now_or_at_its_next_attempt() -> None:
    def task(**fields: Any) -> OpenActivity:
        return OpenActivity(
            **{
                "seq": 1,
                "activity": "a",
                "queue": "q",
                "attempt": 1,
                "max_attempts": 0,
                "scheduled_at": at(0),
                "due_at": at(0),
                **fields,
            }
        )

    waiting = draw_timeline([row("activity", 0)], now=at(9), tasks={1: task()})
    assert bars(waiting) == ["queue"]
    running = draw_timeline([row("activity", 0)], now=at(9), tasks={1: task(owner=4, started_at=at(3))})
    assert bars(running) == ["queue", "run"]
    retrying = draw_timeline(
        [row("activity", 0)], now=at(9), tasks={1: task(due_at=at(30))}, attempts=[failed(1, 1, 2)]
    )
    assert bars(retrying) == ["queue", "failed", "backoff"]
    last = retrying.lanes[0].bars[-1]
    assert retrying.now_x is not None
    assert last.x < retrying.now_x < last.x + last.width


def test_a_timer_is_dotted_to_when_it_is_due_and_a_message_is_a_diamond() -> None:
    chart = draw_timeline([row("timer", 0, due=at(100)), row("signal", 4, state="taken")], now=at(10))

    assert bars(chart) == ["wait", "due"]
    assert chart.lanes[0].mark == "due"
    assert chart.lanes[0].mark_x == chart.lanes[0].bars[1].x + chart.lanes[0].bars[1].width
    assert (chart.lanes[1].mark, chart.lanes[1].bars) == ("message", [])


def test_idle_time_is_folded_and_says_its_length_and_work_is_not() -> None:
    rows = [
        row("activity", 0, 5, attempt_began=at(0)),
        row("activity", 90_000, 90_007, attempt_began=at(90_001), seq=2),
    ]
    chart = draw_timeline(rows, now=at(90_010), is_open=False)

    (fold,) = chart.folds
    assert fold.text == "1 d"
    first, second = (lane.bars[-1] for lane in chart.lanes)
    assert first.width > 20
    assert second.width > 20
    # An attempt that ran for a day is no idle time.
    assert draw_timeline([row("activity", 0, 90_000, attempt_began=at(1))], now=at(90_001), is_open=False).folds == []


def test_texts_of_folds_neither_overlap_nor_are_cut() -> None:
    hours = [0, 1, 3, 6, 10, 15]
    rows = [row("signal", 3700 * hour, state="taken") for hour in hours]
    chart = draw_timeline(rows, now=at(3700 * 15 + 5), is_open=True)

    assert len(chart.folds) > 3
    # Three folds of 7 % stand side by side at the left edge, and a text is wider than one.
    assert chart.folds[0].anchor == "start"
    assert chart.folds[1].anchor is None
    spans = [
        (fold.x, fold.x + width) if fold.anchor == "start" else (fold.x + fold.width - width, fold.x + fold.width)
        for fold in chart.folds
        if fold.anchor is not None
        for width in [2.4 * len(fold.text)]
    ]
    assert len(spans) > 1
    assert all(0 <= begin < end <= 100 for begin, end in spans)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


def test_the_time_of_a_block_reaches_until_now() -> None:
    chart = draw_timeline([row("signal", 0, state="taken")], now=at(100), blocked_since=at(40))

    assert chart.blocked is not None
    x, width = chart.blocked
    assert chart.now_x == round(x + width, 2)


def test_everything_stays_on_the_axis_whatever_the_times_are() -> None:
    same = [row("signal", 0, state="taken"), row("patch", 0, 0)]
    odd = [row("activity", 10, 3, attempt_began=at(50)), row("timer", 0, due=at(-5)), row("child", 0)]
    for rows in ([], same, odd, [row("timer", 0, due=at(10**8))]):
        chart = draw_timeline(rows, now=at(7), attempts=[failed(1, 9, 2)], blocked_since=at(-60))
        for lane in chart.lanes:
            assert all(bar.x >= 0 and bar.width > 0 and bar.x + bar.width <= 100.5 for bar in lane.bars)
            assert 0 <= lane.mark_x <= 100
