"""Schedules in environments: ``env.schedules``, and the assertion about their times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from temporalex_django.authoring.schedules.schedule import Schedule
from temporalex_django.engine.schedules import SlotRecord


def assert_fires(schedule: Schedule, times: Sequence[datetime], *, after: datetime) -> None:
    """Assert that the first slots of a schedule after ``after`` (aware) are exactly ``times``.

    A naive time is compared with the wall clock of the schedule's zone, an aware one with the instant. Raises
    ``AssertionError`` with the slots that the schedule has instead.
    """
    position, slots = after, []
    for _ in times:
        slot = schedule.table.next_slot(position)
        if slot is None:
            break
        slots.append(slot)
        position = slot.instant
    actual_times = [
        slot.wall if moment.tzinfo is None else slot.instant for slot, moment in zip(slots, times, strict=False)
    ]
    actual_times += [slot.instant for slot in slots[len(actual_times) :]]
    if actual_times != [*times]:
        raise AssertionError(
            f"the schedule {schedule.name} fires at {_times_text(actual_times)} after {after.isoformat()}, not at "
            f"{_times_text(times)}"
        )


def _times_text(times: Sequence[datetime]) -> str:
    return ", ".join(moment.isoformat() for moment in times) or "no time"


class EnvironmentSchedules(ABC):
    """The schedules of a test environment (``env.schedules``), which fire when the virtual clock reaches their slots.

    ``workflows`` has the classes of the added schedules by the name of the class; a test may define several of a name.
    """

    def __init__(self) -> None:
        self.workflows: dict[str, Any] = {}

    @abstractmethod
    def add(self, schedule: Schedule) -> None:
        """Add a declared schedule, or replace the schedule that has its name.

        The first slot comes after the present virtual time. Raises ``ScheduleInvalid`` for an invalid schedule, and
        ``PayloadError`` for arguments that the workflow does not accept.
        """

    @abstractmethod
    def slots(self, name: str) -> list[SlotRecord]:
        """Return the slots (times to fire) of the schedule ``name`` that have an outcome, oldest first.

        Raises ``ScheduleNotFound``.
        """

    @abstractmethod
    def trigger(self, name: str) -> SlotRecord:
        """Fire a schedule now, do the work that follows, and return the slot. Raises ``ScheduleNotFound``."""

    @abstractmethod
    def pause(self, name: str, *, reason: str = "") -> None:
        """Pause a schedule. Raises ``ActionNotPossible`` if it is paused, and ``ScheduleNotFound``."""

    @abstractmethod
    def unpause(self, name: str) -> None:
        """End the pause of a schedule. Raises ``ActionNotPossible`` if it is not paused, and ``ScheduleNotFound``."""

    @abstractmethod
    def fire(self) -> bool:
        """Do the next step of each schedule that is due by the virtual clock, such as the start of a slot's run.

        Return True if there was one.
        """
