"""Declarations of schedules in code, their functions and the ids of their runs."""

from __future__ import annotations

import types
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from temporalex_django import Ok, Overlap, Schedule, Unique, Workflow
from temporalex_django.authoring.schedules import functions, schedule
from temporalex_django.authoring.schedules.functions import FunctionRegistry, holiday_test
from temporalex_django.authoring.schedules.schedule import registered_schedules
from temporalex_django.authoring.schedules.specs import CalendarRule, Cron, Interval, Once
from temporalex_django.errors import ScheduleInvalid
from tests.unit.authoring.schedules.test_slots import naive

NOW = datetime(2024, 6, 1, tzinfo=UTC)


class NightlyReport(Workflow):
    name = "test.NightlyReport"

    async def run(self, args: Any) -> Ok[Any]:
        return Ok(args)


class Orders(Workflow):
    unique = Unique(key="orders")

    async def run(self, args: Any) -> Ok[Any]:
        return Ok(args)


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_declarations", {})
    for registry in (functions.HOLIDAYS, functions.ARGUMENTS):
        monkeypatch.setattr(registry, "_functions", {})


def declare(source: str, module: str = "shop.schedules") -> dict[str, Any]:
    """Run the source of a module that declares schedules, and return its names."""
    names = {"__name__": module, "Schedule": Schedule, "NightlyReport": NightlyReport}
    exec(compile(source, "schedules.py", "exec"), names)
    return names


def test_a_schedule_is_declared_and_registered() -> None:
    nightly = Schedule("nightly", NightlyReport, cron="30 2 * * *", tz="Europe/Berlin", overlap=Overlap.ALLOW_ALL)

    assert registered_schedules() == {"nightly": nightly}
    assert nightly.workflow is NightlyReport
    assert nightly.module == __name__
    assert nightly.specs == (Cron("30 2 * * *"),)
    slot = nightly.table.next_slot(NOW)
    assert slot is not None
    assert slot.instant == datetime(2024, 6, 1, 0, 30, tzinfo=UTC)
    assert nightly.problems(NOW) == []
    nightly.check(NOW)


def test_all_arguments_reach_the_table_and_the_fields() -> None:
    Schedule.holidays_function(name="bavaria")(lambda day: day == date(2024, 6, 28))

    full = Schedule(
        "full",
        NightlyReport,
        cron="0 1 * * *",
        every=3600,
        offset=60,
        calendar="last working day 18:00",
        holidays="bavaria",
        at=naive(2024, 6, 5),
        tz=ZoneInfo("Europe/Berlin"),
        args={"days": 1},
        workflow_id="full::{slot:%Y}",
        overlap="buffer_one",  # type: ignore[arg-type] # the value of the enum
        catch_up=60,
        jitter=5,
        start=naive(2024, 6, 1),
        end=naive(2024, 7, 1),
        max_fires=7,
        pause_after=3,
        dst_gap="skip",
        dst_fold="both",
    )

    assert full.specs == (
        Cron("0 1 * * *"),
        Interval(timedelta(hours=1), timedelta(minutes=1)),
        CalendarRule("last working day 18:00", "bavaria"),
        Once(naive(2024, 6, 5)),
    )
    table = full.table
    assert (table.zone, table.dst_gap, table.dst_fold) == ("Europe/Berlin", "skip", "both")
    assert (table.start, table.end) == (datetime(2024, 5, 31, 22, tzinfo=UTC), datetime(2024, 6, 30, 22, tzinfo=UTC))
    assert (full.overlap, full.catch_up, full.jitter) == (
        Overlap.BUFFER_ONE,
        timedelta(minutes=1),
        timedelta(seconds=5),
    )
    assert (full.max_fires, full.pause_after, full.args, full.tz) == (7, 3, {"days": 1}, "Europe/Berlin")
    holiday = datetime(2024, 6, 28, 15, 59, tzinfo=UTC)
    assert [slot.instant.hour for slot in table.slots(holiday, until=holiday + timedelta(minutes=1))] == []
    assert full.run_id(NOW) == "full::2024"


def test_arguments_of_a_function() -> None:
    @Schedule.arguments_function
    def last_day(slot: datetime) -> dict[str, Any]:
        return {"day": slot.date()}

    report = Schedule("report", NightlyReport, every=60, args=last_day)

    assert report.arguments_function_name == "last_day"
    assert functions.ARGUMENTS.find("last_day")(NOW) == {"day": NOW.date()}
    named = Schedule.arguments_function(name="today")(lambda slot: slot.date())
    assert Schedule("named", NightlyReport, every=60, args=named).arguments_function_name == "today"
    assert Schedule("fixed", NightlyReport, every=60, args=3).arguments_function_name is None


def test_a_function_that_is_not_registered_is_refused() -> None:
    with pytest.raises(
        ScheduleInvalid, match=r"schedule 'x': .*bool is not registered .* `@Schedule.arguments_function`"
    ):
        Schedule("x", NightlyReport, every=60, args=bool)
    with pytest.raises(ScheduleInvalid, match="`@Schedule.holidays_function`"):
        Schedule("x", NightlyReport, calendar="last working day 18:00", holidays=bool)


def test_holidays_are_found_when_slots_are() -> None:
    close = Schedule("close", NightlyReport, calendar="last working day 18:00", holidays="bavaria")
    assert close.problems(NOW) == [
        "no holidays function 'bavaria' in this process: register it with `@Schedule.holidays_function`"
    ]

    @Schedule.holidays_function
    def bavaria(day: date) -> bool:
        return day == date(2024, 6, 28)

    assert close.problems(NOW) == []
    slot = close.table.next_slot(NOW)
    assert slot is not None
    assert slot.wall == naive(2024, 6, 27, 18)
    with pytest.raises(ScheduleInvalid, match="did you mean 'bavaria'"):
        holiday_test("bavarya")


def test_a_holidays_function_that_raises_is_named() -> None:
    @Schedule.holidays_function(name="broken")
    def no_table(day: date) -> bool:
        raise KeyError(day.year)

    close = Schedule("close", NightlyReport, calendar="last working day 18:00", holidays=no_table)

    with pytest.raises(ScheduleInvalid, match=r"'broken' raised KeyError for 2024-05-31: 2024; correct .*no_table"):
        close.check(NOW)


def test_names_of_functions_are_unique() -> None:
    registry: FunctionRegistry[Any] = FunctionRegistry("test", "register")
    registry.register(lambda: 1, name="first")
    reloaded = registry.register(lambda: 2, name="second")

    assert registry.names() == ["first", "second"]
    assert registry.find("second") is reloaded
    assert registry.name_of(reloaded) == "second"
    with pytest.raises(ScheduleInvalid, match="two test functions are named 'first': .* and builtins.bool"):
        registry.register(bool, name="first")
    with pytest.raises(ScheduleInvalid, match="must be a name of 1 to 200"):
        registry.register(bool, name="")
    with pytest.raises(ScheduleInvalid, match="is not a function"):
        registry.register("bool")


def test_two_schedules_of_one_name_are_refused_with_both_places() -> None:
    declare("Schedule('a', NightlyReport, every=60)")

    with pytest.raises(ScheduleInvalid, match="'a': one in shop.schedules and one in crm.schedules"):
        declare("Schedule('a', NightlyReport, every=60)", module="crm.schedules")
    with pytest.raises(ScheduleInvalid, match="'b': in shop.schedules, lines 1 and 2"):
        declare("Schedule('b', NightlyReport, every=60)\nSchedule('b', NightlyReport, every=60)")


def test_a_module_that_is_imported_again_replaces_its_schedules() -> None:
    declare("Schedule('a', NightlyReport, every=60)")

    again = declare("\n\nA = Schedule('a', NightlyReport, every=90)")

    assert registered_schedules() == {"a": again["A"]}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": ""}, "schedule '': the name must be"),
        ({"name": "a/b"}, "without '/'"),
        ({"name": 5}, "the name must be a string"),
        ({"name": "a" * 101}, "the name must be a string of 1 to 100 printable characters"),
        ({"name": " a"}, "without leading or trailing spaces or dots"),
        ({"start": naive(1, 1, 1)}, "start must be in a year from 2 to 9998"),
        ({"end": naive(9999, 12, 31)}, "end must be in a year from 2 to 9998"),
        ({"at": naive(9999, 12, 31), "every": None}, "at must be in a year from 2 to 9998"),
        ({"workflow": "NightlyReport"}, "'NightlyReport' is not a workflow class"),
        ({"workflow": int}, "is not a workflow class"),
        ({"overlap": "queue"}, "overlap: 'queue' must be one of Overlap.SKIP, "),
        ({"catch_up": -1}, "catch_up: .* must not be negative"),
        ({"catch_up": None}, "catch_up must be a timedelta or a number of seconds"),
        ({"jitter": "5m"}, "jitter must be a timedelta"),
        ({"max_fires": 0}, "max_fires: 0 must be a whole number of 1 or more"),
        ({"pause_after": True}, "pause_after: True must be"),
        ({"tz": timedelta(hours=1)}, "there is no time zone"),
        ({"tz": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"start": naive(2024, 1, 2), "end": naive(2024, 1, 1)}, "end: .* must be later than the start"),
        ({"every": 0}, "schedule 'a': every: an interval must be"),
        ({"workflow_id": "{when}"}, "unknown field {when}: use {schedule} and {slot:"),
        ({"workflow_id": "{}"}, "unknown field {}"),
        ({"workflow_id": "{slot.__class__}"}, "unknown field {slot.__class__}"),
        ({"workflow_id": "{slot!r}"}, "unknown field {slot}"),
        ({"workflow_id": "{slot"}, "is not a template"),
        ({"workflow_id": None}, "is not a template"),
        ({"workflow_id": "{slot:%Y/%m}"}, "gives no id: .* without '/'"),
        ({"workflow_id": ""}, "is not a template of 1 to 200 printable characters"),
        ({"workflow_id": "x" * 201}, "is not a template of 1 to 200 printable characters"),
        ({"workflow_id": "a{slot:\0}"}, "is not a template of 1 to 200 printable characters"),
        ({"workflow_id": "one", "overlap": Overlap.ALLOW_ALL}, "two runs can be open at once, so the template needs"),
        ({"workflow": Orders}, "Orders has `unique`, .* use 'orders::{slot:%Y%m%d%H%M}'"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], text: str) -> None:
    name, workflow = options.pop("name", "a"), options.pop("workflow", NightlyReport)

    with pytest.raises(ScheduleInvalid, match=text.replace("{", r"\{")):
        Schedule(name, workflow, **{"every": 60, **options})
    assert registered_schedules() == {}


@pytest.mark.parametrize(
    ("template", "hour", "run_id"),
    [
        ("{schedule}-{slot:%Y%m%dT%H%M}", 0, "fold-20241027T0230"),
        ("{schedule}-{slot:%Y%m%dT%H%M}", 1, "fold-20241027T0230b"),  # the second pass
        ("{schedule}-{slot}", 2, "fold-20241027T0330"),
        ("{slot:%d}-{schedule}", 1, "27-foldb"),
        ("{schedule}", 1, "fold"),
        ("{{x}}-{slot:%H:%M}", 0, "{x}-02:30"),
    ],
)
def test_ids_of_runs(template: str, hour: int, run_id: str) -> None:
    fold = Schedule("fold", NightlyReport, every=60, tz="Europe/Berlin", workflow_id=template)

    assert fold.run_id(datetime(2024, 10, 27, hour, 30, tzinfo=UTC)) == run_id


def test_ids_fit_a_class_with_a_business_key() -> None:
    orders = Schedule("orders", Orders, every=60, workflow_id="orders::{slot:%Y%m%d%H%M}")

    assert orders.run_id(NOW) == "orders::202406010000"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"at": naive(2024, 1, 1)}, "the schedule never fires: none of its times is later"),
        (
            {"cron": "0 * * * *", "jitter": timedelta(hours=3)},
            "jitter: 3:00:00 is longer than .* 1:00:00",
        ),
        ({"every": 30, "overlap": Overlap.CANCEL_OTHER}, "two slots have the id a-20240601T0001, .* be more precise"),
        (
            {"every": 3600, "overlap": Overlap.ALLOW_ALL, "workflow_id": "{slot:%Y%m%d}"},
            "two slots have the id 20240601",
        ),
    ],
)
def test_problems_that_depend_on_the_slots(options: dict[str, Any], problem: str) -> None:
    declared = Schedule("a", NightlyReport, **options)

    with pytest.raises(ScheduleInvalid, match=f"schedule 'a': .*{problem}"):
        declared.check(NOW)
    assert len(declared.problems(NOW)) == 1


def test_problems_are_none_at_the_limits() -> None:
    assert Schedule("a", NightlyReport, cron="0 2 * * *", jitter=timedelta(days=1)).problems(NOW) == []
    assert Schedule("b", NightlyReport, every=30).problems(NOW) == []  # a run ends before the next one starts
    seconds = "{slot:%H%M%S}"
    assert Schedule("c", NightlyReport, every=30, overlap=Overlap.ALLOW_ALL, workflow_id=seconds).problems(NOW) == []


def test_a_schedule_cannot_be_changed() -> None:
    fixed = Schedule("fixed", NightlyReport, every=60)

    with pytest.raises(AttributeError):
        fixed.name = "other"  # type: ignore[misc] # frozen
    assert isinstance(registered_schedules(), dict)
    assert isinstance(fixed, Schedule)
    assert not isinstance(fixed.args, types.FunctionType)
