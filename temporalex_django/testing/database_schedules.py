"""The schedules of a ``DjangoEnvironment``: rows, fired by the code that workers use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from temporalex_django.authoring.schedules.schedule import Schedule
from temporalex_django.backends.host import OperationHost, use_host
from temporalex_django.engine.schedules import SlotRecord
from temporalex_django.errors import ScheduleNotFound
from temporalex_django.models import Schedule as ScheduleRow
from temporalex_django.models import ScheduleSlot
from temporalex_django.operations.schedules.operations import PauseSchedule, TriggerSchedule, UnpauseSchedule, fire_due
from temporalex_django.operations.schedules.store import put_declaration, slot_of
from temporalex_django.testing.environment_host import is_entered
from temporalex_django.testing.schedules import EnvironmentSchedules

if TYPE_CHECKING:
    from temporalex_django.testing.database import DjangoEnvironment


class DatabaseSchedules(EnvironmentSchedules):
    """The schedules of a ``DjangoEnvironment``, stored as rows; the environment fires them as a worker would."""

    def __init__(self, env: DjangoEnvironment, host: OperationHost) -> None:
        super().__init__()
        self._env = env
        self._host = host
        self._is_firing = False

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """Return a context manager that selects the host (storage, clock and ids) on which operations run.

        It is the host of the application if the environment is entered, or else the host of the environment's handles.
        """
        with use_host(None if is_entered(self._env) else self._host):
            yield

    def add(self, schedule: Schedule) -> None:
        self.workflows[schedule.workflow.name] = schedule.workflow
        with self._on_host():
            put_declaration(schedule, self._env.storage)

    def slots(self, name: str) -> list[SlotRecord]:
        rows = ScheduleSlot.objects.using(self._env.storage.alias).filter(schedule_id=self._find(name).pk)
        return [slot_of(row) for row in rows.order_by("at")]

    def trigger(self, name: str) -> SlotRecord:
        with self._on_host():
            slot = TriggerSchedule(name).execute()
        self._env.work()
        return slot

    def pause(self, name: str, *, reason: str = "") -> None:
        with self._on_host():
            PauseSchedule(name, reason=reason).execute()

    def unpause(self, name: str) -> None:
        with self._on_host():
            UnpauseSchedule(name).execute()
        self._env.work()

    def fire(self) -> bool:
        if self._is_firing or not self._env.has_schedules():
            return False
        self._is_firing = True
        try:
            with self._on_host():
                return fire_due(self._env.storage.alias)
        finally:
            self._is_firing = False

    def _find(self, name: str) -> ScheduleRow:
        row = ScheduleRow.objects.using(self._env.storage.alias).filter(name=name).first()
        if row is None:
            raise ScheduleNotFound(f"there is no schedule {name!r}: add it with env.schedule(…)")
        return row
