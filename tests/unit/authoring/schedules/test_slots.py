"""When schedules fire: against every minute of a year, and through changes of the clock and of the tz database."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temporalex_django.authoring.schedules.slots import Slot, TimeTable
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.errors import ScheduleInvalid
from tests.unit.authoring.schedules.oracle import Year

CRONS = (
    *("30 2 * * *", "0 2 * * *", "0 3 * * *", "59 1 * * *", "45 1 * * *", "15 0 * * *", "30 23 * * *"),
    *("*/15 2 * * *", "15 1-4 * * *", "10 */5 * * mon-fri"),
    *("30 2 * * sun", "30 2 31 3 *", "15 2 1-7 * sun", "0 9 */10 * mon-fri", "30 2 * 3,10 *"),
)
#: Crons that fire so often that one zone has them for a whole year; the others have them around the changes.
DENSE_CRONS = ("*/20 1,2,3 * * *", "0 0-23/2 * * *", "0 * * * *", "*/30 */2 * * *")
RULES = [(gap, fold) for gap in ("shift", "skip") for fold in ("first", "second", "both")]
BERLIN = "Europe/Berlin"
#: The nights of the changes of 2024 in Berlin, as instants.
SPRING = datetime(2024, 3, 30, 23, tzinfo=UTC)
AUTUMN = datetime(2024, 10, 26, 22, tzinfo=UTC)


def naive(*parts: int) -> datetime:
    """Return a wall-clock time, which has no zone."""
    return datetime(*parts)  # type: ignore[arg-type] # noqa: DTZ001 - numbers from the year on


def table(zone: str = BERLIN, **options: object) -> TimeTable:
    bounds = {name: options.pop(name) for name in ("start", "end", "dst_gap", "dst_fold") if name in options}
    return TimeTable(parse_specs(**options), zone, **bounds)  # type: ignore[arg-type] # options of both


def night(times: TimeTable, begin: datetime, **options: object) -> list[str]:
    slots = times.slots(begin, until=begin + timedelta(hours=9), **options)  # type: ignore[arg-type] # last_walls
    return [f"{slot.instant:%H:%M}" for slot in slots]


@pytest.mark.parametrize(
    ("zone", "year", "has_changes"),
    [
        (BERLIN, 2024, True),
        ("America/New_York", 2024, True),
        ("Australia/Lord_Howe", 2024, True),  # half an hour
        ("Africa/Casablanca", 2024, True),  # back for Ramadan
        ("Africa/Casablanca", 2018, True),  # the year in which the rule changed
        ("Pacific/Apia", 2011, True),  # a day that does not exist
        ("UTC", 2024, False),
    ],
)
def test_a_year_agrees_with_every_minute_of_zoneinfo(zone: str, year: int, has_changes: bool) -> None:
    oracle = Year(zone, year)
    assert bool(oracle.changes) is has_changes
    begin, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, tzinfo=UTC)
    for cron in (*CRONS, *DENSE_CRONS):
        fires = oracle.fires(cron)
        first = begin if cron in CRONS or zone == BERLIN else end - timedelta(days=7)
        slots = [*table(zone, cron=cron).slots(first - timedelta.resolution, until=end)]
        assert [slot.instant for slot in slots] == fires.slots("shift", "first", first, end), cron
        walls = [slot.instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for slot in slots]
        assert [slot.wall for slot in slots] == walls, cron

        for change in oracle.changes:
            first, last = change - timedelta(hours=60), min(change + timedelta(hours=60), end)
            for gap, fold in RULES:
                slots = [
                    *table(zone, cron=cron, dst_gap=gap, dst_fold=fold).slots(first - timedelta.resolution, until=last)
                ]
                assert [slot.instant for slot in slots] == fires.slots(gap, fold, first, last), (cron, gap, fold)


@pytest.mark.parametrize(
    ("options", "spring", "autumn"),
    [
        ({"cron": "30 2 * * *"}, ["01:00"], ["00:30"]),
        ({"cron": "30 2 * * *", "dst_gap": "skip", "dst_fold": "second"}, [], ["01:30"]),
        ({"cron": "30 2 * * *", "dst_fold": "both"}, ["01:00"], ["00:30", "01:30"]),
        ({"cron": "*/15 2 * * *"}, ["01:00"], ["00:00", "00:15", "00:30", "00:45"]),
        (
            {"cron": "0,30 1,2 * * *", "dst_fold": "both"},
            ["00:00", "00:30", "01:00"],
            ["23:00", "23:30", "00:00", "00:30", "01:00", "01:30"],
        ),
        ({"cron": "15 2,3 * * *"}, ["01:00", "01:15"], ["00:15", "02:15"]),
        ({"cron": ["30 2 * * *", "0 3 * * *"]}, ["01:00"], ["00:30", "02:00"]),
        ({"cron": "30 */2 * * *"}, ["23:30", "02:30", "04:30", "06:30"], ["22:30", "00:30", "01:30", "03:30", "05:30"]),
        ({"calendar": "last sunday 02:30"}, ["01:00"], ["00:30"]),
        ({"calendar": "last day 02:30"}, ["01:00"], []),
        ({"at": [naive(2024, 3, 31, 2, 30), naive(2024, 10, 27, 2, 30)]}, ["01:00"], ["00:30"]),
        ({"at": naive(2024, 10, 27, 2, 30), "dst_fold": "second"}, [], ["01:30"]),
        ({"at": datetime(2024, 10, 27, 1, 30, tzinfo=UTC)}, [], ["01:30"]),
        ({"every": timedelta(hours=4), "offset": 1800}, ["00:30", "04:30"], ["00:30", "04:30"]),
    ],
)
def test_the_nights_of_the_changes(options: dict[str, object], spring: list[str], autumn: list[str]) -> None:
    assert night(table(**options), SPRING) == spring
    assert night(table(**options), AUTUMN) == autumn


def test_a_slot_of_two_specs_is_one() -> None:
    slots = table(cron=["30 2 * * *", "0 * * * *"], every=3600).slots(SPRING, until=SPRING + timedelta(hours=2))

    assert [*slots] == [
        Slot(datetime(2024, 3, 31, hour, tzinfo=UTC), naive(2024, 3, 31, wall), specs, by_wall)
        for hour, wall, specs, by_wall in [
            (0, 1, ("cron:0 * * * *", "interval:3600+0"), ()),
            (1, 3, ("cron:30 2 * * *", "cron:0 * * * *", "interval:3600+0"), ("cron:30 2 * * *",)),
        ]
    ]


SPECS = st.sampled_from(
    [
        *({"cron": cron} for cron in ("30 2 * * *", "*/7 1-3 * * *", "15 * * * *", "0 0 l * *", "* 2 * * sun")),
        *({"calendar": rule} for rule in ("last working day 02:30", "every sunday 02:15", "31 01:00")),
        {"every": 5400, "offset": 60},
        {"cron": ["*/20 2 * * *", "*/30 * * * *"], "every": 1200, "calendar": "every day 03:00"},
    ]
)
ZONES = st.sampled_from([BERLIN, "Australia/Lord_Howe", "Africa/Casablanca", "America/New_York"])
MOMENTS = st.one_of(
    st.datetimes(naive(2000, 1, 1), naive(2030, 1, 1)),
    *(st.datetimes(night - timedelta(hours=3), night + timedelta(hours=6)) for night in (
        naive(2024, 3, 31), naive(2024, 10, 27), naive(2024, 4, 6, 15), naive(2024, 10, 5, 15),
        naive(2024, 3, 10, 6), naive(2024, 11, 3, 5), naive(2024, 3, 10, 2), naive(2024, 4, 14, 2),
    )),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(options=SPECS, zone=ZONES, moment=MOMENTS, rule=st.sampled_from(RULES), position=st.integers(0, 20))
def test_slots_ascend_and_continue_from_anywhere(
    options: dict[str, object], zone: str, moment: datetime, rule: tuple[str, str], position: int
) -> None:
    times = table(zone, dst_gap=rule[0], dst_fold=rule[1], **options)
    after = moment.replace(tzinfo=UTC)

    slots = [*islice(times.slots(after), 40)]

    instants = [slot.instant for slot in slots]
    assert instants == sorted(set(instants))
    assert instants[0] > after
    assert [*islice(times.slots(instants[position]), 39 - position)] == slots[position + 1 :]
    between = instants[position] - timedelta(microseconds=1)
    assert times.next_slot(between) == slots[position]


@settings(max_examples=60, deadline=None)
@given(
    versions=st.lists(st.booleans(), min_size=12, max_size=12),
    other=st.sampled_from(["Etc/GMT-1", "Etc/GMT-2", "Europe/London"]),
    month=st.sampled_from([3, 10]),
    cron=st.sampled_from(["30 2 * * *", "0 2 * * *", "59 1 * * *", "0 3 * * *"]),
)
def test_two_tz_databases_fire_each_wall_clock_time_once(
    versions: list[bool], other: str, month: int, cron: str
) -> None:
    """One database says that the clock changes, another one does not know of it or says another offset."""
    tables = (table(BERLIN, cron=cron), table(other, cron=cron))
    after = datetime(2024, month, 22, tzinfo=UTC)
    last_walls: dict[str, datetime] = {}
    days: list[date] = []
    for version in versions:
        slot = tables[version].next_slot(after, last_walls)
        assert slot is not None
        after = slot.instant
        last_walls = dict.fromkeys(slot.by_wall, slot.wall)
        days.append(slot.wall.date())

    assert days == [days[0] + timedelta(days=number) for number in range(12)]


def test_wall_clock_order_does_not_concern_elapsed_time() -> None:
    last = naive(2024, 10, 27, 2, 45)
    for options in ({"cron": "30 * * * *"}, {"every": 1800}, {"cron": "30 2 * * *", "dst_fold": "both"}):
        times = table(**options)
        last_walls = dict.fromkeys(next(times.slots(AUTUMN)).specs, last)

        assert night(times, AUTUMN, last_walls=last_walls) == night(times, AUTUMN)
    times = table(cron="30 2 * * *")
    assert night(times, AUTUMN, last_walls={"cron:30 2 * * *": last}) == []
    assert night(times, AUTUMN, last_walls={"cron:31 2 * * *": last}) == ["00:30"]


def test_start_and_end_are_inclusive_and_on_the_wall_clock_if_naive() -> None:
    times = table(cron="0 * * * *", start=naive(2024, 7, 1, 10), end=datetime(2024, 7, 1, 9, tzinfo=UTC))

    assert [slot.wall.hour for slot in times.slots(datetime(2000, 1, 1, tzinfo=UTC))] == [10, 11]
    assert times.start == datetime(2024, 7, 1, 8, tzinfo=UTC)


def test_counts_are_bounded() -> None:
    times = table(every=1)
    begin = datetime(2024, 1, 1, tzinfo=UTC)

    assert times.count(begin, begin + timedelta(seconds=7), 10) == 7
    assert times.count(begin, begin + timedelta(days=36500), 10) == 10


def test_the_smallest_gap() -> None:
    assert table(cron=["0 9 * * *", "30 10 * * *"]).smallest_gap(SPRING) == timedelta(minutes=90)
    assert table(at=naive(2027, 1, 1)).smallest_gap(SPRING) is None


def test_a_time_table_ends() -> None:
    end_of_time = datetime(9999, 12, 31, 20, tzinfo=UTC)

    assert len([*table("UTC", cron="30 * * * *").slots(end_of_time)]) == 4
    assert len([*table("UTC", every=3600).slots(end_of_time)]) == 3
    assert table("UTC", calendar="last day 18:00").next_slot(end_of_time) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cron": "0 2 * * *", "end": naive(2024, 1, 1)}, "its end, .*, is in the past"),
        ({"at": naive(2024, 1, 1)}, "none of its times is later"),
        ({"cron": "0 0 1 1 *", "end": naive(2024, 6, 1)}, "no slot after"),
    ],
)
def test_a_schedule_that_never_fires_again_is_invalid(options: dict[str, object], text: str) -> None:
    with pytest.raises(ScheduleInvalid, match=text):
        table(**options).check(datetime(2024, 3, 1, tzinfo=UTC))
    table(**options).check(datetime(2023, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"zone": "Europe/Berlim"}, "no time zone 'Europe/Berlim'"),
        ({"zone": "Europe"}, "no time zone 'Europe'"),
        ({"zone": "../etc/passwd"}, "no time zone"),
        ({"start": naive(2024, 1, 1), "end": naive(2024, 1, 1)}, "must be later than the start"),
        ({"start": "2024-01-01"}, "start: '2024-01-01' must be a datetime"),
        ({"dst_gap": "jump"}, "dst_gap: 'jump' must be one of shift, skip"),
        ({"dst_fold": "third"}, "dst_fold: 'third' must be one of first, second, both"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(ScheduleInvalid, match=text):
        table(**{"cron": "0 2 * * *", **options})  # type: ignore[arg-type] # wrong on purpose


def test_naive_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        table(every=60).slots(naive(2024, 1, 1))
    with pytest.raises(ValueError, match="time zone"):
        table(every=60).slots(SPRING, until=naive(2024, 1, 1))
