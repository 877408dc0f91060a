"""How specs are read, checked, stored and said in words."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice

import pytest

from temporalex_django.authoring.schedules import specs as calendar_rules
from temporalex_django.authoring.schedules.schedule import spec_in_words, specs_in_words
from temporalex_django.authoring.schedules.specs import (
    CalendarRule,
    Cron,
    Interval,
    Once,
    Spec,
    parse_specs,
    spec_key,
    specs_from_json,
    specs_to_json,
)
from temporalex_django.errors import ScheduleInvalid
from tests.unit.authoring.schedules.test_slots import naive

EXAMPLES: list[tuple[Spec, str, str]] = [
    (Cron("30 2  * * *"), "cron:30 2 * * *", "Every day at 02:30"),
    (Cron("0 9,17 * * mon-fri"), "cron:0 9,17 * * mon-fri", "On Monday through Friday at 09:00 and 17:00"),
    (Cron("*/15 * * * *"), "cron:*/15 * * * *", "Every 15 minutes"),
    (Cron("*/25 * * * *"), "cron:*/25 * * * *", "Every 25th minute of every hour"),
    (Cron("*/1 * * * *"), "cron:*/1 * * * *", "Every minute"),
    (Cron("0 0 LW * *"), "cron:0 0 LW * *", "On the last weekday of every month at 00:00"),
    (Interval(timedelta(minutes=15)), "interval:900+0", "Every 15 minutes"),
    (Interval(timedelta(hours=1), 90), "interval:3600+90", "Every hour, offset by 1 minute and 30 seconds"),  # type: ignore[arg-type] # seconds
    (Interval(timedelta(seconds=1.5)), "interval:1.5+0", "Every 1.5 seconds"),
    (
        CalendarRule("Last  working day 18:00", "bavaria"),
        "calendar:last working day 18:00 | bavaria",
        "On the last working day of the month at 18:00, holidays: bavaria",
    ),
    (
        CalendarRule("second last fri 9:05 in mar, jun and september"),
        "calendar:second last fri 9:05 in mar, jun and september",
        "On the second last Friday of March, June and September at 09:05",
    ),
    (CalendarRule("21 08:00"), "calendar:21 08:00", "On the 21st day of the month at 08:00"),
    (CalendarRule("every working day 08:00"), "calendar:every working day 08:00", "Every working day at 08:00"),
    (CalendarRule("every mon 08:00 in dec"), "calendar:every mon 08:00 in dec", "Every Monday in December at 08:00"),
    (Once(naive(2027, 3, 3, 9)), "once:2027-03-03T09:00:00", "Once, on 3 March 2027 at 09:00"),
    (
        Once(datetime(2027, 3, 3, 9, 0, 30, tzinfo=UTC)),
        "once:2027-03-03T09:00:30+00:00",
        "Once, on 3 March 2027 at 09:00:30 UTC+00:00",
    ),
]


@pytest.mark.parametrize(("spec", "key", "words"), EXAMPLES, ids=[key for _, key, _ in EXAMPLES])
def test_a_spec_is_stored_and_said(spec: Spec, key: str, words: str) -> None:
    stored = specs_to_json([spec])

    assert specs_from_json(stored) == (spec,)
    assert specs_to_json(specs_from_json(stored)) == stored
    assert spec_key(spec) == key
    assert spec_in_words(spec) == words


def test_arguments_are_values_or_lists_and_equal_specs_are_one() -> None:
    specs = parse_specs(
        cron=["0 1 * * *", "0  1 * * *"],
        every=(60, timedelta(hours=1)),
        offset=30,
        calendar=["last working day 18:00", "15 08:00"],
        holidays="bavaria",
        at=naive(2027, 1, 1),
    )

    assert specs == (
        Cron("0 1 * * *"),
        Interval(timedelta(minutes=1), timedelta(seconds=30)),
        Interval(timedelta(hours=1), timedelta(seconds=30)),
        CalendarRule("last working day 18:00", "bavaria"),
        CalendarRule("15 08:00"),
        Once(naive(2027, 1, 1)),
    )


def test_specs_are_said_with_their_zone() -> None:
    specs = parse_specs(cron="30 2 * * *", every=900)

    assert specs_in_words(specs, "Europe/Berlin") == "Every day at 02:30; every 15 minutes (Europe/Berlin)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs a spec: give `cron`"),
        ({"cron": []}, "needs a spec"),
        ({"cron": [f"{minute} * * * *" for minute in range(60)] * 2, "every": [*range(1, 60)]}, "at most 100 specs"),
        ({"cron": "0 30 2 * * *"}, "has six fields: leave out the seconds"),
        ({"cron": "30 2 * *"}, "must have five fields"),
        ({"cron": "@daily"}, "must have five fields"),
        ({"cron": 5}, "must be a string"),
        ({"cron": "* " * 200}, "must be a string of at most 200 characters"),
        ({"cron": "60 * * * *"}, "cannot be read: .*minute"),
        ({"cron": "* * * * funday"}, "cannot be read: .*day-of-week"),
        ({"cron": "* * * * 1#2/3"}, "cannot be read"),
        ({"cron": "* * l/x * *"}, "cannot be read"),
        ({"cron": "0 0 31 2 *"}, "'0 0 31 2 \\*' never fires"),
        ({"cron": "0 0 31 2,4,6 *"}, "never fires"),
        ({"every": 0}, "every: an interval must be at least one second"),
        ({"every": -5}, "at least one second"),
        ({"every": "5m"}, "every must be a timedelta or a number of seconds"),
        ({"every": float("nan")}, "every"),
        ({"every": 60, "offset": 60}, "offset: .* less than the interval"),
        ({"every": 60, "offset": -1}, "offset: .* at least 0"),
        ({"cron": "0 0 * * *", "offset": 5}, "there is no interval: add `every`"),
        ({"calendar": "sometimes"}, "'sometimes' cannot be read"),
        ({"calendar": "first moonday 09:00"}, "'first moonday' cannot be read"),
        ({"calendar": "monday 09:00"}, "does not say which monday of the month"),
        ({"calendar": "sixth monday 09:00"}, "does not say which monday"),
        ({"calendar": "6th monday 09:00"}, "a position up to 5"),
        ({"calendar": "last last monday 09:00"}, "does not say which"),
        ({"calendar": "every last monday 09:00"}, "does not say which"),
        ({"calendar": "32 09:00"}, "a position up to 31"),
        ({"calendar": "24th working day 09:00"}, "a position up to 23"),
        ({"calendar": "15 24:00"}, "has no time of day"),
        ({"calendar": "15 09:00 in mai"}, "has no month 'mai'"),
        ({"calendar": "30 09:00 in feb"}, "never fires: no such month has 30 days"),
        ({"calendar": "15 09:00", "holidays": "bavaria"}, "holidays affect only working days"),
        ({"every": 60, "holidays": "bavaria"}, "holidays affect only working days"),
        ({"at": "tomorrow"}, "at: 'tomorrow' must be a datetime"),
        ({"at": date(2027, 1, 1)}, "must be a datetime"),
    ],
)
def test_what_cannot_be_a_spec_is_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(ScheduleInvalid, match=text):
        parse_specs(**options)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({}, "must be a list"),
        ([], "needs a spec"),
        (["30 2 * * *"], "must be an object with a `type`"),
        ([{"type": "sundial"}], "the type 'sundial' must be one of cron, interval, calendar, once"),
        ([{"type": ["cron"]}], "must be one of"),
        ([{"type": "cron"}], "its fields are expression"),
        ([{"type": "cron", "expression": "30 2 * * *", "tz": "UTC"}], "its fields are expression"),
        ([{"type": "interval", "every": "x"}], "every must be"),
        ([{"type": "once", "at": "noon"}], "at: 'noon' is not a time"),
        ([{"type": "calendar", "rule": "last working day 18:00", "holidays": 3}], "must be the name"),
        ([{"type": "calendar", "rule": "first day 18:00", "holidays": "x"}], "has no working days"),
    ],
)
def test_json_that_is_no_spec_is_named(entries: object, text: str) -> None:
    with pytest.raises(ScheduleInvalid, match=text):
        specs_from_json(entries)


@pytest.mark.parametrize(
    ("rule", "days"),
    [
        ("first monday 09:00", ["01-01", "02-05", "03-04"]),
        ("fifth monday 09:00", ["01-29", "04-29", "07-29"]),
        ("last friday 09:00", ["01-26", "02-23", "03-29"]),
        ("second last friday 09:00", ["01-19", "02-16", "03-22"]),
        ("31 09:00", ["01-31", "03-31", "05-31"]),
        ("29 09:00 in feb", ["02-29", "02-29", "02-29"]),
        ("last day 09:00", ["01-31", "02-29", "03-31"]),
        ("second last day 09:00", ["01-30", "02-28", "03-30"]),
        ("last working day 09:00", ["01-31", "02-29", "03-28"]),  # the 29th is Good Friday
        ("first working day 09:00", ["01-02", "02-01", "03-01"]),
        ("3rd working day 09:00 in apr, may", ["04-04", "05-06", "04-03"]),
        ("every working day 09:00 in apr", ["04-02", "04-03", "04-04"]),
        ("every sat 09:00", ["01-06", "01-13", "01-20"]),
    ],
)
def test_days_of_rules(rule: str, days: list[str]) -> None:
    holidays = {date(2024, 1, 1), date(2024, 3, 29), date(2024, 4, 1), date(2024, 5, 1)}
    parsed = calendar_rules.parse_rule(calendar_rules.normalize(rule))

    walls = [*islice(parsed.walls_after(naive(2023, 12, 31, 12), holidays.__contains__), 3)]

    assert [f"{wall:%m-%d}" for wall in walls] == days
    assert {wall.hour for wall in walls} == {9}
    assert [*islice(parsed.walls_after(walls[0], holidays.__contains__), 2)] == walls[1:]


def test_a_rule_without_a_day_ends() -> None:
    parsed = calendar_rules.parse_rule("every working day 09:00")

    assert [*parsed.walls_after(naive(2024, 1, 1), lambda day: day.year > 0)] == []
