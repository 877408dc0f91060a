"""The steps of a schedule over a store of this test: what is decided at a time, in which order, and what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from temporalex_django.authoring.schedules.schedule import Overlap
from temporalex_django.authoring.schedules.slots import TimeTable
from temporalex_django.authoring.schedules.specs import parse_specs
from temporalex_django.core.messages.sender import Sender
from temporalex_django.engine import policy
from temporalex_django.engine.schedules import (
    Backfill,
    RunningSlot,
    ScheduleFirer,
    SchedulePause,
    ScheduleState,
    SlotFailure,
    SlotOutcome,
    SlotRecord,
    SlotStart,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


class Store:
    """A store in a dict. ``closed`` has the statuses of closed runs by the time of their slot."""

    def __init__(self) -> None:
        self.slots: dict[datetime, SlotRecord] = {}
        self.closed: dict[datetime, str] = {}
        self.stopped: list[tuple[datetime, bool]] = []
        self.failing: set[datetime] = set()
        self.unstoppable = False
        self.unready: set[datetime] = set()
        self.saved: ScheduleState | None = None

    def find_slot(self, at: datetime) -> SlotRecord | None:
        return self.slots.get(at)

    def add_slots(self, slots: Sequence[SlotRecord]) -> None:
        for slot in slots:
            assert slot.at not in self.slots, "each time has one slot"
            self.slots[slot.at] = slot

    def replace_slot(self, slot: SlotRecord) -> None:
        assert slot.at in self.slots
        self.slots[slot.at] = slot

    def running_slots(self) -> list[RunningSlot]:
        return [
            RunningSlot(slot=slot, closed_as=self.closed.get(at))
            for at, slot in sorted(self.slots.items())
            if slot.running
        ]

    def waiting_slots(self, limit: int) -> list[SlotRecord]:
        return [slot for _, slot in sorted(self.slots.items()) if slot.outcome == "waiting"][:limit]

    def mark_closed(self, slots: Sequence[SlotRecord]) -> None:
        self.slots.update((slot.at, replace(slot, running=False)) for slot in slots)

    def check_start(self, schedule: ScheduleState, at: datetime) -> SlotFailure | None:
        if at in self.unready:
            return SlotFailure(code="arguments", message="no data")
        return None

    def start(self, schedule: ScheduleState, slot: SlotRecord) -> SlotStart | SlotFailure:
        at, cause = slot.at, slot.cause
        if at in self.failing:
            return SlotFailure(code="already_running", message="the id is taken")
        return SlotStart(chain_id=UUID(int=1), run_id=UUID(int=2), workflow_id=schedule.workflow_id_of(at, cause=cause))

    def stop_run(self, schedule: ScheduleState, slot: SlotRecord, *, terminate: bool) -> SlotFailure | None:
        assert schedule.name == "hourly"
        if self.unstoppable:
            return SlotFailure(code="not_permitted", message="may not cancel")
        self.stopped.append((slot.at, terminate))
        if terminate:
            self.closed[slot.at] = "terminated"
        return None

    def save(self, schedule: ScheduleState) -> None:
        self.saved = schedule

    @property
    def outcomes(self) -> list[tuple[int, str, str]]:
        return [(slot.at.hour, str(slot.outcome), str(slot.reason)) for _, slot in sorted(self.slots.items())]


def schedule(**values: Any) -> ScheduleState:
    table = values.pop("table", None) or TimeTable(parse_specs(cron="0 * * * *"))
    return ScheduleState(
        **{
            "id": 1,
            "name": "hourly",
            "workflow": "Report",
            "workflow_id": "{schedule}-{slot:%H}",
            "table": table,
            "overlap": Overlap.SKIP,
            "catch_up": HOUR,
            "position": BEGIN,
            **values,
        }
    )


def fire_until(store: Store, state: ScheduleState, now: datetime, *, buffer_limit: int = 100) -> ScheduleState:
    """Fire as a worker does that looks at ``now``: until nothing is due."""
    firer = ScheduleFirer(store, buffer_limit=buffer_limit)
    for _ in range(1000):
        due_at = state.next_due()
        if due_at is None or due_at > now:
            return state
        state = firer.fire(state, now)
        assert store.saved == state
    raise AssertionError("it is always due")


def test_slots_within_the_window_are_started_oldest_first_and_older_ones_are_missed() -> None:
    store = Store()

    state = fire_until(store, schedule(overlap=Overlap.ALLOW_ALL, catch_up=2 * HOUR), BEGIN + 5 * HOUR + MINUTE)

    assert store.outcomes == [
        *((hour, "missed", "window") for hour in (1, 2, 3)),
        *((hour, "started", "") for hour in (4, 5)),
    ]
    assert (state.position, state.fires) == (BEGIN + 5 * HOUR, 2)
    assert state.next_due() == BEGIN + 6 * HOUR


def test_a_slot_at_the_edge_of_the_window_is_started() -> None:
    store = Store()

    fire_until(store, schedule(), BEGIN + 2 * HOUR)

    assert store.outcomes == [(1, "started", ""), (2, "skipped", "overlap")]


def test_many_missed_slots_are_one_record_that_counts_them() -> None:
    store, table = Store(), TimeTable(parse_specs(cron="* * * * *"))

    state = fire_until(store, schedule(table=table, overlap=Overlap.ALLOW_ALL), BEGIN + 30 * DAY)

    missed = [slot for slot in store.slots.values() if slot.outcome is SlotOutcome.MISSED]
    assert [slot.count for slot in missed] == [policy.PASSED_SLOTS] * 4 + [30 * 24 * 60 - 61 - 4 * policy.PASSED_SLOTS]
    assert missed[0].until == BEGIN + policy.PASSED_SLOTS * MINUTE
    assert sum(slot.outcome == "started" for slot in store.slots.values()) == 61
    assert state.position == BEGIN + 30 * DAY


def test_a_slot_that_has_an_outcome_is_not_fired_again_when_the_position_went_back() -> None:
    store = Store()
    state = fire_until(store, schedule(overlap=Overlap.ALLOW_ALL), BEGIN + 2 * HOUR)
    before = dict(store.slots)

    state = fire_until(store, state.changed(position=BEGIN), BEGIN + 2 * HOUR)

    assert store.slots == before
    assert state.position == BEGIN + 2 * HOUR


def test_a_later_table_that_moves_a_slot_does_not_fire_it_twice() -> None:
    store, at = Store(), datetime(2026, 1, 1, 2, 30)  # noqa: DTZ001 - a wall-clock time
    daily = parse_specs(cron="30 2 * * *")
    state = schedule(table=TimeTable(daily, "Etc/GMT"), overlap=Overlap.ALLOW_ALL)
    state = fire_until(store, state, BEGIN + 3 * HOUR)
    assert [*state.last_walls.values()] == [at]

    # The other worker's data puts the zone an hour to the west, so its clock shows 02:30 an hour later.
    other = state.changed(table=TimeTable(daily, "Etc/GMT+1"))

    assert fire_until(store, other, BEGIN + 4 * HOUR).fires == 1
    assert fire_until(store, other, BEGIN + DAY + 4 * HOUR).fires == 2


@pytest.mark.parametrize(("status", "paused"), [("failed", True), ("timed_out", True), ("cancelled", False)])
def test_failures_in_a_row_pause_it(status: str, paused: bool) -> None:
    store, state = Store(), schedule(pause_after=2)
    for hour in range(1, 4):
        state = fire_until(store, state, BEGIN + hour * HOUR)
        store.closed[BEGIN + hour * HOUR] = status

    assert (state.paused is not None) is paused
    if state.paused is not None:
        assert state.paused.after_failures
        assert state.paused.reason == "2 failures in a row"
        assert store.outcomes[-1] == (3, "skipped", "paused")


def test_a_completed_run_ends_the_row_of_failures() -> None:
    store, state = Store(), schedule(pause_after=2)
    for hour, status in enumerate(["failed", "completed", "failed", "completed"], 1):
        state = fire_until(store, state, BEGIN + hour * HOUR)
        store.closed[BEGIN + hour * HOUR] = status

    assert state.paused is None


def test_slots_that_cannot_start_count_as_failures_and_the_next_one_fires() -> None:
    store, state = Store(), schedule(pause_after=2)
    store.failing = {BEGIN + HOUR, BEGIN + 3 * HOUR}

    state = fire_until(store, state, BEGIN + HOUR)
    assert (state.failures, state.fires) == (1, 0)
    slot = store.slots[BEGIN + HOUR]
    assert (slot.outcome, slot.error_code, slot.error) == ("failed", "already_running", "the id is taken")
    assert fire_until(store, state, BEGIN + 2 * HOUR).fires == 1


def test_a_pause_holds_waiting_slots_and_backfills_too() -> None:
    store, state = Store(), schedule(overlap=Overlap.BUFFER_ALL)
    state = fire_until(store, state, BEGIN + HOUR)
    state = fire_until(store, state, BEGIN + 2 * HOUR)
    store.closed[BEGIN + HOUR] = "completed"
    backfill = Backfill(after=BEGIN - DAY, until=BEGIN - DAY + HOUR, pause=1, next_at=BEGIN, total=1)
    held = state.changed(paused=SchedulePause(since=BEGIN + 2 * HOUR), backfill=backfill)

    assert held.next_due() == BEGIN + 3 * HOUR
    held = ScheduleFirer(store, buffer_limit=100).fire(held, BEGIN + 2 * HOUR)
    assert held.waiting == 1
    assert held.backfill == backfill
    freed = ScheduleFirer(store, buffer_limit=100).fire(held.changed(paused=None), BEGIN + 2 * HOUR)
    assert freed.waiting == 1  # the slot of the backfill
    assert store.slots[BEGIN + 2 * HOUR].outcome == "started"


def test_other_runs_are_stopped_and_a_waiting_slot_gives_way() -> None:
    store, state = Store(), schedule(overlap=Overlap.CANCEL_OTHER)
    for hour in (1, 2, 3):
        state = fire_until(store, state, BEGIN + hour * HOUR)

    assert store.stopped == [(BEGIN + HOUR, False)] * 2
    assert store.outcomes == [(1, "started", ""), (2, "skipped", "overlap"), (3, "waiting", "overlap")]
    store.closed[BEGIN + HOUR] = "cancelled"
    state = ScheduleFirer(store, buffer_limit=100).fire(state, BEGIN + 3 * HOUR + MINUTE)
    assert (store.outcomes[-1], state.waiting) == ((3, "started", ""), 0)


def test_a_run_that_may_not_be_stopped_makes_the_slot_fail() -> None:
    store, state = Store(), schedule(overlap=Overlap.TERMINATE_OTHER)
    state = fire_until(store, state, BEGIN + HOUR)
    store.unstoppable = True

    fire_until(store, state, BEGIN + 2 * HOUR)

    assert store.outcomes == [(1, "started", ""), (2, "failed", "")]
    assert store.slots[BEGIN + 2 * HOUR].error_code == "not_permitted"


def test_a_backfill_starts_what_has_no_run_at_its_rate() -> None:
    store, state = Store(), schedule(overlap=Overlap.ALLOW_ALL, catch_up=MINUTE)
    state = fire_until(store, state, BEGIN + 5 * HOUR)
    assert [outcome for _, outcome, _ in store.outcomes] == ["missed"] * 4 + ["started"]
    now = BEGIN + 5 * HOUR + MINUTE
    backfill = Backfill(after=BEGIN, until=BEGIN + 5 * HOUR, pause=10, next_at=now, total=4, actor="ann")

    state = state.changed(backfill=backfill)
    started_at = []
    while state.backfill is not None:
        now = state.backfill.next_at
        state = fire_until(store, state, now)
        started_at.append(now)

    assert [outcome for _, outcome, _ in store.outcomes] == ["started"] * 5
    assert [(slot.cause, slot.actor) for slot in store.slots.values()][:4] == [("backfill", "ann")] * 4
    assert [later - earlier for earlier, later in pairwise(started_at)][:3] == [timedelta(seconds=10)] * 3
    assert state.fires == 1  # a limit on fires counts those of the time


def test_a_trigger_takes_a_time_of_its_own_and_leaves_the_position() -> None:
    store, state = Store(), schedule(overlap=Overlap.ALLOW_ALL, max_fires=1)
    state = fire_until(store, state, BEGIN + HOUR)
    firer = ScheduleFirer(store, buffer_limit=100)

    state, first = firer.trigger(state, BEGIN + HOUR, actor=Sender("1", "ann"))
    state, second = firer.trigger(state, BEGIN + HOUR)

    assert first.at == BEGIN + HOUR + timedelta(microseconds=1)
    assert second.at == BEGIN + HOUR + timedelta(microseconds=2)
    assert (first.workflow_id, second.workflow_id) == ("hourly-01-00000001", "hourly-01-00000002")
    assert (first.cause, first.actor, state.position, state.fires) == ("trigger", "ann", BEGIN + HOUR, 1)
    assert state.next_due() is None


def test_a_run_does_not_give_way_to_a_slot_that_cannot_start() -> None:
    store, state = Store(), schedule(overlap=Overlap.TERMINATE_OTHER)
    state = fire_until(store, state, BEGIN + HOUR)
    store.unready = {BEGIN + 2 * HOUR}

    fire_until(store, state, BEGIN + 2 * HOUR)

    assert store.stopped == []
    assert store.slots[BEGIN + 2 * HOUR].error_code == "arguments"


def test_a_waiting_slot_of_a_backfill_does_not_give_way() -> None:
    store, state = Store(), schedule(overlap=Overlap.CANCEL_OTHER, catch_up=MINUTE)
    state = fire_until(store, state, BEGIN + 3 * HOUR)
    state = fire_until(store, state, BEGIN + 3 * HOUR + MINUTE)
    now = BEGIN + 3 * HOUR + MINUTE
    backfill = Backfill(after=BEGIN, until=BEGIN + 2 * HOUR, pause=0, next_at=now, total=2)
    state = fire_until(store, state.changed(backfill=backfill), now)
    # Why they were left out at first remains to be seen.
    assert store.outcomes == [(1, "waiting", "window"), (2, "waiting", "window"), (3, "started", "")]

    state = fire_until(store, state, BEGIN + 4 * HOUR)

    assert state.waiting == 3
    assert [outcome for _, outcome, _ in store.outcomes] == ["waiting", "waiting", "started", "waiting"]


def test_a_limit_on_fires_counts_the_runs_that_were_started() -> None:
    store, state = Store(), schedule(overlap=Overlap.CANCEL_OTHER, max_fires=2)
    for hour in (1, 2, 3):
        state = fire_until(store, state, BEGIN + hour * HOUR)

    assert (state.fires, state.waiting) == (1, 1)
    store.closed[BEGIN + HOUR] = "cancelled"
    state = ScheduleFirer(store, buffer_limit=100).fire(state, BEGIN + 3 * HOUR)
    assert (state.fires, state.waiting, state.next_due()) == (2, 0, None)


def test_a_slot_that_waits_and_is_due_by_the_time_as_well_starts_once() -> None:
    store, state = Store(), schedule(overlap=Overlap.BUFFER_ONE)
    state = fire_until(store, state, BEGIN + HOUR)
    state = fire_until(store, state, BEGIN + 2 * HOUR)
    store.closed[BEGIN + HOUR] = "completed"

    state = fire_until(store, state.changed(position=BEGIN + HOUR), BEGIN + 2 * HOUR)

    assert store.outcomes == [(1, "started", ""), (2, "started", "")]
    assert (state.fires, state.waiting) == (2, 0)
