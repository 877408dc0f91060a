"""The times that ``RetryLater`` accepts, and the header that it reads."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import temporalex_django
from temporalex_django import RetryLater, errors

NOW = datetime(2026, 3, 1, 14, tzinfo=UTC)
YEAR = 365 * 86_400.0


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        (-5, 0.0),
        (timedelta(minutes=2), 120.0),
        (NOW + timedelta(minutes=5), 300.0),
        (NOW.astimezone(timezone(timedelta(hours=5))) + timedelta(seconds=1), 1.0),
        (NOW - timedelta(days=1), 0.0),
        (None, None),
        (math.inf, YEAR),
        (-math.inf, 0.0),
        (10**400, YEAR),
        (timedelta.max, YEAR),
        (datetime.max.replace(tzinfo=UTC), YEAR),
    ],
)
def test_after_is_a_span_or_a_point_in_time(after: Any, seconds: float | None) -> None:
    assert RetryLater(after=after).seconds_from(NOW) == seconds


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"after": datetime(2026, 3, 1, 14)}, r"after=2026-03-01T14:00:00 has no time zone\. Pass an aware"),  # noqa: DTZ001 - refused
        ({"after": "120"}, r"after='120' is not a point in time.*from_header"),
        ({"after": True}, "after=True is not a point in time"),
        ({"after": math.nan}, "after=nan is not a number"),
        ({"hold": "all"}, 'hold=\'all\' is unknown. Pass "queue", "key" or None'),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        RetryLater(**arguments)


@pytest.mark.parametrize(
    ("header", "after"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("9" * 5000, YEAR),
        ("Sun, 01 Mar 2026 14:05:00 GMT", NOW + timedelta(minutes=5)),
        ("Sunday, 01-Mar-26 14:05:00 GMT", NOW + timedelta(minutes=5)),
        ("Sun Mar  1 14:05:00 2026", NOW + timedelta(minutes=5)),
        *((text, None) for text in (None, "", "soon", "-5", "1e3", "٣", "Sun, 99 Mar 2026 14:05:00 GMT", "\x00")),
    ],
)
def test_a_header_is_seconds_or_a_date_and_anything_else_leaves_the_pause_to_the_policy(
    header: str | None, after: Any
) -> None:
    error = RetryLater.from_header(header)

    assert error.after == after
    assert ("the retry policy decides the pause" in error.message) == (after is None)
    assert len(error.message) < 300


def test_a_header_takes_the_arguments_of_the_class() -> None:
    class BankBusy(RetryLater):
        """The bank is busy."""

    error = BankBusy.from_header("5", "closed", counts=False, hold="key", type="Busy", details={"code": 429})

    assert isinstance(error, BankBusy)
    assert (error.message, error.after, error.counts, error.hold, error.type, error.details) == (
        *("closed", 5.0, False, "key", "Busy", {"code": 429}),
    )


def test_it_is_exported() -> None:
    assert temporalex_django.RetryLater is errors.RetryLater
    assert issubclass(RetryLater, errors.ApplicationError)
    assert RetryLater().message == "The activity asked to be retried later."
