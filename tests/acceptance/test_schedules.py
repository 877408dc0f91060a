"""Schedules: the clock of an environment fires them, and each slot has an outcome."""
# ruff: noqa: DTZ001 - wall-clock times of schedules are naive

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from temporalex_django import ContinueAsNew, Err, Ok, Overlap, Schedule, Workflow, api
from temporalex_django.errors import ActionNotPossible, PayloadError, ScheduleInvalid, ScheduleNotFound
from temporalex_django.testing import WorkflowEnvironment, assert_fires
from tests.acceptance.graphs import OrderGraph

BERLIN = ZoneInfo("Europe/Berlin")


class NightlyTotals(Workflow):
    async def run(self, day: str = "") -> Any:
        slot = api.info().scheduled_for
        return Ok([day, None if slot is None else slot.isoformat()])


class ThreeHours(Workflow):
    async def run(self, args: None = None) -> Any:
        await api.sleep(timedelta(hours=3))
        return Ok("done")


class FailingReport(Workflow):
    async def run(self, args: None = None) -> Any:
        return Err("no data")


class RepeatedReport(Workflow):
    async def run(self, rounds: int = 0) -> Any:
        if rounds:
            return ContinueAsNew(rounds - 1)
        slot = api.info().scheduled_for
        return Ok(None if slot is None else slot.isoformat())


@pytest.fixture
def declare() -> Iterator[Callable[..., Schedule]]:
    """Make a schedule of a name of its own: a process knows each name once."""
    from temporalex_django.authoring.schedules import schedule as declarations

    before = dict(declarations._declarations)

    def make(name: str, workflow: Any, **arguments: Any) -> Schedule:
        return Schedule(name, workflow, **arguments)

    yield make
    declarations._declarations.clear()
    declarations._declarations.update(before)


def outcomes(env: Any, name: str) -> list[str]:
    return [f"{slot.outcome}{' ' + slot.reason if slot.reason else ''}" for slot in env.schedules.slots(name)]


def test_a_schedule_starts_a_run_at_each_slot(env: Any, declare: Any) -> None:
    env.schedule(declare("totals", NightlyTotals, cron="30 2 * * *", tz="Europe/Berlin", args="today"))

    env.advance(days=2, hours=3)

    slots = env.schedules.slots("totals")
    assert [slot.workflow_id for slot in slots] == [f"totals-202601{day:02}T0230" for day in (1, 2, 3)]
    assert [slot.at for slot in slots] == [datetime(2026, 1, day, 1, 30, tzinfo=UTC) for day in (1, 2, 3)]
    assert outcomes(env, "totals") == ["started"] * 3
    assert env.handle(slots[1].workflow_id).result() == ["today", "2026-01-02T01:30:00+00:00"]
    assert env.handle(slots[1].workflow_id).describe().scheduled_for == slots[1].at
    assert env.start(NightlyTotals, "by hand").result() == ["by hand", None]


# A year of runs that are rebuilt takes seconds and shows nothing else: the slots do not depend on it.
@pytest.mark.hosts("memory", "database")
def test_a_year_with_both_clock_changes_fires_once_a_day(env: Any, declare: Any) -> None:
    env.schedule(declare("yearly", NightlyTotals, cron="30 2 * * *", tz="Europe/Berlin"))

    env.advance(days=365)

    days = [slot.at.astimezone(BERLIN) for slot in env.schedules.slots("yearly")]
    assert [local.date() for local in days] == [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
    assert Counter(f"{local:%H:%M}" for local in days) == {"02:30": 364, "03:00": 1}  # the gap of March


def test_a_chain_keeps_the_time_of_its_slot(env: Any, declare: Any) -> None:
    env.schedule(declare("rounds", RepeatedReport, cron="0 4 * * *", args=2))

    env.advance(hours=5)

    (slot,) = env.schedules.slots("rounds")
    assert env.handle(slot.workflow_id).result() == "2026-01-01T04:00:00+00:00"
    assert env.handle(slot.workflow_id).describe().scheduled_for == slot.at


@pytest.mark.parametrize(
    ("overlap", "expected", "running"),
    [
        (Overlap.SKIP, ["started", "skipped overlap", "skipped overlap", "started", "skipped overlap"], 1),
        (Overlap.BUFFER_ONE, ["started", "started", "skipped overlap", "waiting overlap", "skipped overlap"], 1),
        (Overlap.BUFFER_ALL, ["started", "started", "waiting overlap", "waiting overlap", "waiting overlap"], 1),
        (Overlap.CANCEL_OTHER, ["started"] * 5, 1),
        (Overlap.TERMINATE_OTHER, ["started"] * 5, 1),
        (Overlap.ALLOW_ALL, ["started"] * 5, 3),
    ],
)
def test_the_overlap_policy_decides(
    env: Any, declare: Any, overlap: Overlap, expected: list[str], running: int
) -> None:
    env.schedule(declare("hourly", ThreeHours, cron="0 * * * *", overlap=overlap))

    env.advance(hours=5, minutes=30)

    assert outcomes(env, "hourly") == expected
    ends = {Overlap.CANCEL_OTHER: "cancelled", Overlap.TERMINATE_OTHER: "terminated"}
    statuses = Counter(handle.describe().status for handle in env.list(ThreeHours))
    assert statuses.pop("waiting") == running
    assert set(statuses) == {ends.get(overlap, "completed")}


def test_waiting_slots_start_one_after_the_other(env: Any, declare: Any) -> None:
    env.schedule(declare("buffered", ThreeHours, cron="0 * * * *", overlap=Overlap.BUFFER_ALL, max_fires=4))

    env.advance(hours=13, minutes=30)

    assert outcomes(env, "buffered") == ["started"] * 4
    starts = [env.handle(slot.workflow_id).describe().started_at.hour for slot in env.schedules.slots("buffered")]
    assert starts == [1, 4, 7, 10]


def test_the_buffer_has_an_end(env: Any, declare: Any, settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "SCHEDULE_BUFFER": 2}
    env.schedule(declare("short", ThreeHours, every=timedelta(minutes=10), overlap=Overlap.BUFFER_ALL))

    env.advance(minutes=45)

    assert outcomes(env, "short") == ["started", "waiting overlap", "waiting overlap", "skipped buffer"]


def test_a_paused_schedule_lists_its_slots_as_skipped(env: Any, declare: Any) -> None:
    env.schedule(declare("pausing", NightlyTotals, cron="0 * * * *"))
    env.schedules.pause("pausing", reason="stocktaking")
    env.advance(hours=2, minutes=1)
    assert env.schedules.trigger("pausing").outcome == "started"
    env.schedules.unpause("pausing")
    env.advance(hours=1)

    assert outcomes(env, "pausing") == ["skipped paused", "skipped paused", "started", "started"]
    with pytest.raises(ActionNotPossible, match="not paused"):
        env.schedules.unpause("pausing")


def test_a_schedule_pauses_itself_after_failures_in_a_row(env: Any, declare: Any) -> None:
    env.schedule(declare("failing", FailingReport, cron="0 * * * *", pause_after=2))

    env.advance(hours=4, minutes=30)

    assert outcomes(env, "failing") == ["started", "started", "skipped paused", "skipped paused"]


def test_a_triggered_slot_obeys_the_overlap_policy(env: Any, declare: Any) -> None:
    env.schedule(declare("triggered", ThreeHours, cron="0 0 1 6 *"))

    slots = [env.schedules.trigger("triggered") for _ in range(2)]

    assert [(slot.outcome, slot.reason) for slot in slots] == [("started", ""), ("skipped", "overlap")]
    assert slots[0].at == env.now()
    assert env.handle(slots[0].workflow_id).describe().scheduled_for == slots[0].at


def test_the_id_of_another_run_makes_the_slot_fail_and_the_next_one_fires(env: Any, declare: Any) -> None:
    env.schedule(declare("taken", ThreeHours, cron="0 * * * *", overlap=Overlap.ALLOW_ALL))
    env.start(ThreeHours, id="taken-20260101T0100")

    env.advance(hours=2, minutes=30)

    first, second = env.schedules.slots("taken")
    assert (first.outcome, first.error_code, second.outcome) == ("failed", "already_running", "started")


@Schedule.arguments_function(name="acceptance-day")
def _day(slot: datetime) -> str:
    if slot.day == 2:
        raise KeyError("no data of that day")
    return f"{slot:%d.%m. %H:%M}"


@Schedule.arguments_function(name="acceptance-people")
def _count_people(slot: datetime) -> str:
    from django.contrib.auth import get_user_model

    return f"{get_user_model().objects.count()} people"


def test_a_function_makes_the_input_of_each_slot(env: Any, declare: Any) -> None:
    env.schedule(declare("made", NightlyTotals, cron="30 2 * * *", tz="Europe/Berlin", args=_day))

    env.advance(days=2, hours=3)

    slots = env.schedules.slots("made")
    assert [slot.outcome for slot in slots] == ["started", "failed", "started"]
    assert "KeyError" in slots[1].error
    assert env.handle(slots[2].workflow_id).result()[0] == "03.01. 02:30"


def test_the_limits_of_a_schedule(env: Any, declare: Any) -> None:
    start, end = datetime(2026, 1, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, 4, tzinfo=UTC)
    env.schedule(declare("limited", NightlyTotals, cron="0 * * * *", start=start, end=end))
    env.schedule(declare("twice", NightlyTotals, cron="0 * * * *", max_fires=2))
    env.schedule(declare("once", NightlyTotals, at=datetime(2026, 1, 1, 3), tz="America/New_York"))

    env.advance(days=1)

    assert [slot.at.hour for slot in env.schedules.slots("limited")] == [2, 3, 4]
    assert [slot.at.hour for slot in env.schedules.slots("twice")] == [1, 2]
    assert [slot.at.hour for slot in env.schedules.slots("once")] == [8]


def test_jitter_delays_a_slot_by_the_same_time_in_each_process(env: Any, declare: Any) -> None:
    env.schedule(declare("spread", NightlyTotals, cron="0 * * * *", jitter=timedelta(minutes=30)))

    env.advance(hours=4)

    delays = [slot.decided_at - slot.at for slot in env.schedules.slots("spread")]
    assert [round(delay.total_seconds()) for delay in delays] == [525, 1222, 1704]


def test_bad_schedules_are_refused(env: Any, declare: Any) -> None:
    with pytest.raises(ScheduleInvalid, match="never fires"):
        env.schedule(declare("past", NightlyTotals, at=datetime(2025, 1, 1, tzinfo=UTC)))
    with pytest.raises(ScheduleInvalid, match="jitter"):
        env.schedule(declare("wide", NightlyTotals, cron="0 * * * *", jitter=timedelta(hours=2)))
    with pytest.raises(PayloadError):
        env.schedule(declare("unfit", NightlyTotals, cron="0 * * * *", args=7))
    with pytest.raises(ScheduleInvalid, match="catch_up"):
        env.schedule(declare("hasty", NightlyTotals, cron="0 * * * *", catch_up=timedelta(seconds=1)))
    with pytest.raises(ScheduleNotFound, match=r"env\.schedule"):
        env.schedules.slots("nobody")


def test_an_assertion_about_the_times(declare: Any) -> None:
    nightly = declare("asserted", NightlyTotals, cron="30 2 * * *", tz="Europe/Berlin")
    after = datetime(2026, 3, 28, tzinfo=UTC)

    assert_fires(nightly, [datetime(2026, 3, 28, 2, 30), datetime(2026, 3, 29, 3, 0)], after=after)
    assert_fires(nightly, [datetime(2026, 3, 28, 1, 30, tzinfo=UTC)], after=after)
    with pytest.raises(AssertionError, match="2026-03-29T03:00:00"):
        assert_fires(nightly, [datetime(2026, 3, 28, 2, 30), datetime(2026, 3, 29, 2, 30)], after=after)


def test_a_schedule_that_is_added_again_begins_after_the_present_time(env: Any, declare: Any) -> None:
    schedule = declare("again", NightlyTotals, cron="0 * * * *")
    env.schedule(schedule)
    env.advance(hours=1)
    env.schedule(schedule)
    env.advance(hours=1)

    assert outcomes(env, "again") == ["started", "started"]


def test_an_environment_begins_at_any_time() -> None:
    begin = datetime(2027, 10, 30, tzinfo=UTC)

    env = WorkflowEnvironment(now=begin)

    assert env.now() == begin
    assert env.start(ThreeHours).describe().started_at == begin


def test_a_graph_is_started_too(env: Any, declare: Any) -> None:
    env.schedule(
        declare("graph", OrderGraph, cron="0 4 * * *", args={"total": 5}, workflow_id="orderid::{slot:%Y%m%d%H%M}")
    )

    env.advance(hours=5)

    (slot,) = env.schedules.slots("graph")
    assert slot.outcome == "started"
    assert env.handle(slot.workflow_id).describe().scheduled_for == slot.at
    assert env.schedules.trigger("graph").reason == "overlap"


@pytest.mark.django_db
def test_a_function_sees_what_the_test_has_not_committed(declare: Any) -> None:
    from django.contrib.auth import get_user_model

    from temporalex_django.testing import DjangoEnvironment

    get_user_model().objects.create_user("ann")
    env = DjangoEnvironment()
    env.schedule(declare("people", NightlyTotals, cron="0 4 * * *", args=_count_people))

    env.advance(hours=5)

    (slot,) = env.schedules.slots("people")
    assert env.handle(slot.workflow_id).result()[0] == "1 people"
