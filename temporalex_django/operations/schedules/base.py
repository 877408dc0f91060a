"""Base of the operations on schedules, and the schedules that exist for a user."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, TypeVar

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.db.storage import FIRED_COLUMNS
from temporalex_django.errors import ScheduleNotFound
from temporalex_django.models import Schedule
from temporalex_django.operations.base import CODE, Action, Actor
from temporalex_django.operations.runs.cancel import Cancel
from temporalex_django.operations.runs.start import require_start_permission
from temporalex_django.operations.runs.terminate import Terminate
from temporalex_django.operations.schedules.store import state_columns, state_of

T = TypeVar("T")
VIEW_SCHEDULE = Operation(action="view_schedule", permission=f"{APP}.view_schedule")
#: What an overlap policy does to runs, which needs its permission too.
_STOPPING = {
    Schedule.OverlapPolicy.CANCEL_OTHER: Cancel,
    Schedule.OverlapPolicy.TERMINATE_OTHER: Terminate,
}


def visible_schedules(user: Person | None, *, alias: str) -> QuerySet[Schedule]:
    """Return the schedules that a user may look at, ordered by name; code (``user`` None) may look at all.

    Raises ``ActionNotPermitted`` for a user without the permission.
    """
    schedules = Schedule.objects.using(alias)
    if user is None:
        return schedules
    access.require_access(user, VIEW_SCHEDULE, alias=alias)
    return access.schedules_for(user, alias=alias)


def find_schedule(name: str, user: Person | None, *, alias: str) -> Schedule:
    """Return the schedule with that name, for reading.

    Raises ``ScheduleNotFound``, also for a schedule that is hidden from the user, and ``ActionNotPermitted`` for a user
    without the permission to view schedules. One read.
    """
    return _first_named(visible_schedules(user, alias=alias), name)


def find_manageable_schedule(name: str, user: Person | None, *, alias: str) -> Schedule:
    """Return the schedule with that name for an operation, which checks the permission of the user itself.

    Raises ``ScheduleNotFound``, also for a schedule that is hidden from the user. One read.
    """
    return _first_named(_existing_schedules(user, alias=alias), name)


def _existing_schedules(user: Person | None, *, alias: str) -> QuerySet[Schedule]:
    return Schedule.objects.using(alias) if user is None else access.schedules_for(user, alias=alias)


def _first_named(rows: QuerySet[Schedule], name: str) -> Schedule:
    # Databases refuse some characters in parameters.
    row = rows.filter(name=name).first() if name.isprintable() else None
    if row is None:
        raise ScheduleNotFound(f"there is no schedule {quoted(name)}")
    return row


def require_run_access(by: Actor, workflow: Any, overlap: str, *, alias: str) -> None:
    """Raise ``ActionNotPermitted`` unless the actor may do what the schedule would do.

    They must be allowed to start runs of the class ``workflow`` and, if the overlap policy ``overlap`` cancels or
    terminates the run before, to do that too.
    """
    require_start_permission(by, workflow, alias=alias)
    stopping = _STOPPING.get(Schedule.OverlapPolicy(overlap))
    if stopping is not None:
        operation = Operation(action=stopping.name, permission=f"{APP}.{stopping.permission}", workflow=workflow.name)
        access.require_access(by.user, operation, alias=alias)


class ScheduleAction(Action[T]):
    """Base class of the operations on one schedule, named ``schedule_name``.

    They need the permission to manage schedules, and are audited with ``reason``. ``perform`` locks the row of the
    schedule, so it waits for a worker that is firing it. Raises ``PayloadError`` for a reason that no database can
    store, and ``ScheduleNotFound``.
    """

    permission: ClassVar[str] = "manage_schedule"
    forced: ClassVar[bool] = True

    def __init__(self, schedule_name: str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.schedule_name = schedule_name
        self.reason = fit_note(reason, label="the reason")

    def lock(self) -> Schedule:
        """Lock the row of the schedule in the open transaction and return it. Raises ``ScheduleNotFound``."""
        alias = self.storage.alias
        rows = Schedule.objects.using(alias)
        if self.by.user is not None:
            # A subquery, because the policy may join tables whose rows must not be locked.
            rows = rows.filter(pk__in=_existing_schedules(self.by.user, alias=alias).order_by().values("pk"))
        return _first_named(rows.select_for_update(), self.schedule_name)

    def save(self, row: Schedule, **values: Any) -> None:
        """Set columns of a locked row of a schedule, compute when the schedule is due next, and save the row.

        ``values`` are the new values by the name of the column.
        """
        for name, value in values.items():
            setattr(row, name, value)
        columns = state_columns(state_of(row))
        row.next_at = columns["next_at"]
        row.save(using=self.storage.alias, update_fields={*FIRED_COLUMNS, *values})

    def record_schedule(self, row: Schedule, **details: Any) -> None:
        """Write the audit row of this operation in the open transaction; ``details`` go into its JSON column."""
        subject = AuditSubject(run_id=None, workflow=row.workflow, workflow_id="")
        self.record(subject, reason=self.reason, schedule=row.name, **details)

    def now(self) -> datetime:
        return self.storage.now()

    @property
    def actor_name(self) -> str:
        """The name of the user who acts, as it is stored with schedules and what they start; empty for code."""
        return "" if self.by.sender is None else self.by.sender.name


def require_workflow(row: Schedule) -> Any:
    """Return the class of the runs of a schedule. Raises ``UnknownWorkflow`` if this process does not have it."""
    return host().find_workflow(row.workflow)
