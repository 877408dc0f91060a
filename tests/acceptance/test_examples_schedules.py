"""The shop's schedule of the example project: when it fires, and which day its reports close."""
# ruff: noqa: DTZ001 - wall-clock times of schedules are naive

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from example_project.shop.reports import Closing, ReportTotals, close_books
from temporalex_django.testing import assert_fires
from temporalex_django.testing.environment import Environment

BERLIN = ZoneInfo("Europe/Berlin")
TOTALS = ReportTotals(bookings=2, units=3, invoices=1, cents=999)


@pytest.fixture
def shop() -> Iterator[Any]:
    """The module that declares the schedules; afterwards the process does not know them any more."""
    from temporalex_django.authoring.schedules import schedule as declarations

    before = dict(declarations._declarations)
    from example_project.shop import schedules

    yield schedules
    declarations._declarations.clear()
    declarations._declarations.update(before)


def test_the_nightly_report_fires_once_a_night_over_both_clock_changes(shop: Any) -> None:
    assert_fires(
        shop.NIGHTLY,
        [datetime(2026, 3, 28, 2, 30), datetime(2026, 3, 29, 3, 0), datetime(2026, 3, 30, 2, 30)],
        after=datetime(2026, 3, 27, 12, tzinfo=UTC),
    )
    assert_fires(
        shop.NIGHTLY,
        [datetime(2026, 10, day, hour, 30, tzinfo=UTC) for day, hour in ((24, 0), (25, 0), (26, 1))],
        after=datetime(2026, 10, 23, 12, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("slot", "day"),
    [
        (datetime(2026, 3, 29, 3, 0, tzinfo=BERLIN), "2026-03-28"),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), "2026-10-24"),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), "2026-10-24"),
        (datetime(2026, 3, 29, 3, 59, tzinfo=BERLIN), "2026-03-28"),
        (datetime(2026, 3, 29, 4, 0, tzinfo=BERLIN), "2026-03-29"),
        (datetime(2026, 6, 1, 23, 59, tzinfo=BERLIN), "2026-06-01"),
    ],
)
def test_a_business_day_ends_at_four_by_the_wall_clock(shop: Any, slot: datetime, day: str) -> None:
    assert shop.business_day(slot).day == day


def test_each_night_closes_the_day_before(env: Environment, shop: Any) -> None:
    closings: list[Closing] = []

    def close(closing: Closing) -> ReportTotals:
        closings.append(closing)
        return TOTALS

    env.mock(close_books, close)
    env.schedule(shop.NIGHTLY)

    env.advance(days=2, hours=1)

    slots = env.schedules.slots(shop.NIGHTLY.name)
    assert [slot.at for slot in slots] == [datetime(2026, 1, day, 1, 30, tzinfo=UTC) for day in (1, 2)]
    assert closings == [
        Closing(day="2025-12-31", slot=slots[0].at),
        Closing(day="2026-01-01", slot=slots[1].at),
    ]
    assert env.handle(slots[1].workflow_id).result() == {
        "day": "2026-01-01",
        "bookings": 2,
        "units": 3,
        "invoices": 1,
        "cents": 999,
    }
