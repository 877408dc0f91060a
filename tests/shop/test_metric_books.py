"""The books of the metrics, when the metrics do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from example_project.replay import metric_books
from example_project.replay.metric_books import COUNTERS, MetricBooks, Totals

QUIET = Totals(dict.fromkeys(COUNTERS, 3.0), dict.fromkeys(COUNTERS, 3))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Totals | None]:
    """The answers of the metrics, in order. The last one is repeated."""
    remaining: list[Totals | None] = [QUIET]
    monkeypatch.setattr(metric_books, "QUIET", 0.0)
    monkeypatch.setattr(metric_books, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(MetricBooks, "_totals", lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0])
    return remaining


def test_metrics_that_are_away_at_the_end_fail_their_checks(answers: list[Totals | None]) -> None:
    books = MetricBooks("http://shop")
    answers[:] = [None]
    assert [check.ok for check in books.checks(patience=0)] == [False] * len(COUNTERS)


def test_metrics_that_come_back_are_compared(answers: list[Totals | None]) -> None:
    books = MetricBooks("http://shop")
    answers[:] = [None, QUIET]
    assert [(check.ok, check.seen) for check in books.checks(patience=30)] == [(True, 0)] * len(COUNTERS)


def test_results_that_were_dropped_are_counted_for_the_report(answers: list[Totals | None]) -> None:
    answers[:] = [replace(QUIET, dropped=2.0)]
    books = MetricBooks("http://shop")
    answers[:] = [replace(QUIET, dropped=3.0)]
    assert all(check.ok for check in books.checks(patience=0))
    assert books.dropped == 1


def test_a_shop_without_metrics_has_no_checks(answers: list[Totals | None]) -> None:
    answers[:] = [None]
    assert MetricBooks("http://shop").checks(patience=0) == []


def test_figures_that_metrics_cannot_count_are_named_with_the_reason(answers: list[Totals | None]) -> None:
    with_gap = MetricBooks("http://shop", gap="a worker was killed")
    assert with_gap.checks(patience=0) == []
    assert {figure.name: figure.reason for figure in with_gap.not_compared()} == dict.fromkeys(
        COUNTERS, "a worker was killed"
    )
    assert MetricBooks("http://shop").not_compared() == []
    answers[:] = [None]
    without_metrics = MetricBooks("http://shop").not_compared()
    assert {figure.reason for figure in without_metrics} == {"the shop exports no metrics"}
