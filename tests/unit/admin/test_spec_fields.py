"""Durations and specs as lines of a form: what is shown can be posted again."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError

from temporalex_django import Schedule
from temporalex_django.authoring.schedules.specs import CalendarRule, Cron, Interval, Once
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.forms.schedule_fields import (
    DurationTextField,
    SpecLinesField,
    common_holidays,
    duration_text,
    parse_calendar_rule,
    parse_duration,
    parse_interval,
    parse_once,
    spec_line,
    zone_choices,
)


@Schedule.holidays_function(name="test.never")
def never(day: date) -> bool:
    return False


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 s", 90),
        ("15 min", 900),
        ("15m", 900),
        ("1 h 30 min", 5400),
        ("1h30m", 5400),
        ("2 days, 1 hour and 5 seconds", 176405),
        ("1 week", 604800),
        ("0.5 s", 0.5),
        ("1 H", 3600),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5", "5 parsecs", "-5 s", "5 s 3", "1 h," * 90, "999999999 weeks", "٣ s"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ScheduleInvalid, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0, 1, 59.5, 60, 3600, 5400, 86400, 90061, 2_000_000, 0.000001])
def test_a_duration_can_be_posted_as_it_is_shown(seconds: float) -> None:
    duration = timedelta(seconds=seconds)

    assert parse_duration(duration_text(duration)) == duration


@pytest.mark.parametrize(
    ("spec", "parse"),
    [
        (Cron("30 2 * * mon-fri"), Cron),
        (Interval(timedelta(minutes=15)), parse_interval),
        (Interval(timedelta(days=1), timedelta(hours=2)), parse_interval),
        (CalendarRule("last working day 18:00"), parse_calendar_rule),
        (CalendarRule("last working day 18:00", "test.never"), parse_calendar_rule),
        (CalendarRule("first monday 09:00 in mar, sep"), parse_calendar_rule),
        (Once(datetime.fromisoformat("2027-03-03T09:00")), parse_once),
        (Once(datetime.fromisoformat("2027-03-03T09:00:00+02:00")), parse_once),
    ],
)
def test_a_spec_can_be_posted_as_it_is_shown(spec: object, parse: object) -> None:
    assert SpecLinesField(parse).clean(spec_line(spec)) == [spec]  # type: ignore[arg-type] # each its own


def test_each_wrong_line_has_its_error() -> None:
    field = SpecLinesField(Cron)

    with pytest.raises(ValidationError) as caught:
        field.clean(f"30 2 * * *\n\n nonsense \n{'* ' * 200}")

    first, second = caught.value.messages
    assert first.startswith("'nonsense' must have five fields")
    assert "at most 250 characters" in second


def test_holidays_that_rules_share_are_found() -> None:
    rules = [CalendarRule("last working day 18:00", "test.never"), CalendarRule("15 08:00"), Cron("0 4 * * *")]

    assert common_holidays(rules) == "test.never"
    assert common_holidays([*rules, CalendarRule("first working day 18:00")]) == ""
    assert common_holidays([]) == ""


def test_an_empty_duration_is_none_and_zones_are_grouped() -> None:
    assert DurationTextField(required=False).clean("") is None
    groups = dict(zone_choices())
    assert ("Europe/Berlin", "Europe/Berlin") in groups["Europe"]
    assert ("UTC", "UTC") in groups["UTC"]
