"""Pause a schedule, and end its pause."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import Schedule
from temporalex_django.operations.schedules.base import ScheduleAction


class PauseSchedule(ScheduleAction[Schedule]):
    """Operation that pauses a schedule and returns its row.

    Slots that become due during the pause are listed as skipped and start no run. Slots that wait already, and a
    backfill, wait for the end of the pause. Open runs continue. Raises ``ActionNotPossible`` if it is paused already.
    Locks and writes one row.
    """

    name: ClassVar[str] = "pause_schedule"

    def perform(self) -> Schedule:
        with self.storage.transaction():
            row = self.lock()
            if row.paused_at is not None:
                raise ActionNotPossible(f"the schedule {row.name} is already paused")
            self.save(
                row,
                paused_at=self.now(),
                pause_reason=self.reason,
                paused_by=self.actor_name,
                paused_by_failures=False,
            )
            self.record_schedule(row)
        return row


class UnpauseSchedule(ScheduleAction[Schedule]):
    """Operation that ends the pause of a schedule and returns its row.

    Slots within the pause that no worker has listed as skipped yet are started if they are within the catch-up window.
    The count of failures in a row is reset. A schedule that is ahead of the clock, because the clock was set back,
    fires again from now. Raises ``ActionNotPossible`` if it is not paused. Locks and writes one row.
    """

    name: ClassVar[str] = "unpause_schedule"

    def perform(self) -> Schedule:
        with self.storage.transaction():
            row, now = self.lock(), self.now()
            if row.paused_at is None:
                raise ActionNotPossible(f"the schedule {row.name} is not paused")
            last_walls = row.last_walls
            if row.position > now:
                last_walls = {}
            self.save(
                row,
                paused_at=None,
                pause_reason="",
                paused_by="",
                paused_by_failures=False,
                failures=0,
                position=min(row.position, now),
                last_walls=last_walls,
            )
            self.record_schedule(row)
        return row
