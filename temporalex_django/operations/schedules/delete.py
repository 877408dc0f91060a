"""Delete a schedule."""

from __future__ import annotations

from typing import ClassVar

from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import Schedule
from temporalex_django.operations.schedules.base import ScheduleAction


class DeleteSchedule(ScheduleAction[None]):
    """Operation that deletes a schedule and its slots. Runs that it has started stay, and continue.

    Raises ``ActionNotPossible`` for a schedule declared in code, because the next ``migrate`` would create it anew.
    Locks the row, so a slot that is being started is started first.
    """

    name: ClassVar[str] = "delete_schedule"

    def perform(self) -> None:
        with self.storage.transaction():
            row = self.lock()
            if row.owner == Schedule.Owner.CODE and row.gone_since is None:
                raise ActionNotPossible(
                    f"the schedule {row.name} is declared in {row.module}: remove it there, or pause it"
                )
            self.record_schedule(row)
            row.delete(using=self.storage.alias)
