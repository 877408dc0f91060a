"""Trigger a schedule: fire it now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from temporalex_django.conf import get_settings
from temporalex_django.engine.schedules import ScheduleFirer, SlotFailure, SlotRecord
from temporalex_django.operations.schedules.base import ScheduleAction, require_run_access, require_workflow
from temporalex_django.operations.schedules.store import Prepared, SlotInterrupted, load_stores, save_stores


class TriggerSchedule(ScheduleAction[SlotRecord]):
    """Operation that fires a schedule for the present time, and returns the slot with its outcome.

    The overlap policy decides whether a run starts. A paused schedule can be triggered, too. The user needs the
    permission to start runs of the class as well. The run is started in the name of the person who owns the schedule's
    runs, as all others of the schedule are. Under four eyes, the user who triggers it may not decide in the run.

    Locks the row of the schedule. The slot and its run commit with the caller's transaction, if one is open. Raises
    ``ScheduleNotFound``, ``UnknownWorkflow`` and ``ScheduleInvalid``; an error of the start is the outcome of the slot.
    """

    name: ClassVar[str] = "trigger_schedule"

    def perform(self) -> SlotRecord:
        now = self.now()
        prepared: dict[tuple[int, datetime], Any | SlotFailure] = {}
        while True:
            try:
                return self._fire(now, prepared)
            except SlotInterrupted as interruption:
                prepared[interruption.key] = interruption.prepare()

    def _fire(self, now: datetime, prepared: Prepared) -> SlotRecord:
        with self.storage.transaction():
            row = self.lock()
            if self.by.user is not None:
                require_run_access(self.by, require_workflow(row), row.overlap, alias=self.storage.alias)
            stores = load_stores([row], self.storage, prepared=prepared)
            firer = ScheduleFirer(stores[0], buffer_limit=get_settings().SCHEDULE_BUFFER)
            _, slot = firer.trigger(stores[0].state, now, actor=self.by.sender)
            save_stores(stores, self.storage)
            self.record_schedule(row, slot=slot.at.isoformat(), outcome=str(slot.outcome))
        return slot
