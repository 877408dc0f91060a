"""Rows of schedules and slots as the records that the firing works with, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, cast

from temporalex_django.authoring.schedules.schedule import Overlap
from temporalex_django.authoring.schedules.slots import DstFold, DstGap, TimeTable
from temporalex_django.authoring.schedules.specs import specs_from_json
from temporalex_django.conf import codec
from temporalex_django.engine.schedules import (
    Backfill,
    SchedulePause,
    ScheduleState,
    SlotCause,
    SlotOutcome,
    SlotReason,
    SlotRecord,
)
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.models.fields import unreadable_columns

E = TypeVar("E", bound=StrEnum)


def table_of(row: Schedule) -> TimeTable:
    """Return the time table of a schedule, which computes its slots (the times at which it fires).

    Raises ``ScheduleInvalid`` if this process cannot read the specs of the row.
    """
    return TimeTable(
        specs=specs_from_json(row.specs),
        zone=row.tz,
        start=row.start,
        end=row.end,
        dst_gap=cast("DstGap", row.dst_gap),
        dst_fold=cast("DstFold", row.dst_fold),
    )


def require_readable(row: Schedule) -> None:
    """Raise ``ScheduleInvalid`` for a row with a time or JSON that cannot be read.

    From the times that stand in place of such a time, a table would compute slots for thousands of years.
    """
    if columns := [*unreadable_columns(row, payloads=False)]:
        raise ScheduleInvalid(
            f"the schedule {row.name!r} cannot be read: correct {', '.join(columns)} in its row of temporalex_schedule"
        )


def state_of(row: Schedule) -> ScheduleState:
    """Convert the row of a schedule to the ``ScheduleState`` with which the firing works.

    Its input is decoded, if it has one. Raises ``ScheduleInvalid`` if this process cannot read its specs, and the
    errors of the codec.
    """
    require_readable(row)
    args = None
    if row.args is not None:
        args = codec().decode(bytes(row.args))
    return ScheduleState(
        id=row.pk,
        name=row.name,
        workflow=row.workflow,
        table=table_of(row),
        args=args,
        arguments_function=row.arguments_function,
        workflow_id_template=row.workflow_id,
        overlap=Overlap(row.overlap),
        catch_up=row.catch_up,
        jitter=row.jitter,
        max_fires=row.max_fires,
        pause_after=row.pause_after,
        position=row.position,
        last_walls={key: datetime.fromisoformat(wall) for key, wall in row.last_walls.items()},
        fires=row.fires,
        failures=row.failures,
        waiting=row.waiting,
        paused=_pause_of(row),
        gone_since=row.gone_since,
        backfill=backfill_of(row.backfill),
    )


def _pause_of(row: Schedule) -> SchedulePause | None:
    if row.paused_at is None:
        return None
    return SchedulePause(
        since=row.paused_at, reason=row.pause_reason, by=row.paused_by, after_failures=row.paused_by_failures
    )


_BACKFILL_TIMES = ("after", "until", "next_at")


def backfill_of(stored: Mapping[str, Any] | None) -> Backfill | None:
    """Parse the column ``backfill`` of a schedule; None for a schedule without one, or with one that cannot be read."""
    if not stored:
        return None
    times = {name: datetime.fromisoformat(stored[name]) for name in _BACKFILL_TIMES}
    return Backfill(**{**stored, **times})


def backfill_column(backfill: Backfill | None) -> dict[str, Any] | None:
    """Return a backfill as JSON for the column ``backfill`` of the schedule; None stays None."""
    if backfill is None:
        return None
    times = {name: getattr(backfill, name).isoformat() for name in _BACKFILL_TIMES}
    return {**asdict(backfill), **times}


def state_columns(state: ScheduleState) -> dict[str, Any]:
    """Return the values of the columns of a schedule that firing changes (``FIRED_COLUMNS``), by name, for a state.

    Raises ``ScheduleInvalid`` if a function of holidays fails.
    """
    pause = state.paused or SchedulePause(since=state.position)
    paused_at = None
    if state.paused is not None:
        paused_at = pause.since
    return {
        "position": state.position,
        "last_walls": {key: wall.isoformat() for key, wall in state.last_walls.items()},
        "fires": state.fires,
        "failures": state.failures,
        "waiting": state.waiting,
        "next_at": state.next_due(),
        "backfill": backfill_column(state.backfill),
        "paused_at": paused_at,
        "pause_reason": pause.reason,
        "paused_by": pause.by,
        "paused_by_failures": pause.after_failures,
        "gone_since": state.gone_since,
        "error": "",
    }


_SLOT_FIELDS = [field.name for field in fields(SlotRecord)]


def slot_columns(slot: SlotRecord) -> dict[str, Any]:
    """Return the values of the columns of ``ScheduleSlot`` for a slot (a time at which a schedule fires), by name."""
    return {name: getattr(slot, name) for name in _SLOT_FIELDS}


def slot_of(row: ScheduleSlot) -> SlotRecord:
    """Convert the row of a slot (a time at which a schedule fires) to the ``SlotRecord`` with which firing works."""
    values = {name: getattr(row, name) for name in _SLOT_FIELDS}
    return SlotRecord(
        **{
            **values,
            "cause": _member(SlotCause, row.cause),
            "outcome": _member(SlotOutcome, row.outcome),
            "reason": _member(SlotReason, row.reason),
        }
    )


def _member(kind: type[E], value: str) -> E:
    """Return the member with a value, or one of its own for a text that is none, which pages show as it is."""
    for member in kind:
        if member.value == value:
            return member
    unknown = str.__new__(kind, value)
    unknown._name_, unknown._value_ = "UNKNOWN", value
    return unknown
