"""Operations on schedules: pause, trigger, backfill and delete, their base, and the schedules that exist for a user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, ClassVar, TypeVar

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.schedules.slots import TimeTable, instants_of, load_zone
from temporalex_django.authoring.schedules.specs import check_year, parse_time
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.conf import get_settings
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.db.storage import FIRED_COLUMNS
from temporalex_django.engine.schedules import (
    Backfill,
    ScheduleFirer,
    SlotFailure,
    SlotOutcome,
    SlotRecord,
    require_pause,
)
from temporalex_django.errors import (
    ActionNotPossible,
    ScheduleInvalid,
    ScheduleNotFound,
)
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.background_tasks import RetryTask
from temporalex_django.operations.base import CODE, Action, Actor
from temporalex_django.operations.runs.control import Cancel, Terminate
from temporalex_django.operations.runs.start import require_start_permission
from temporalex_django.operations.schedules.store import (
    Prepared,
    SlotInterrupted,
    backfill_column,
    load_stores,
    save_stores,
    state_columns,
    state_of,
    table_of,
)

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
    terminates the run before, to do that too. For a task (``workflow`` None), they must be allowed to operate tasks.
    """
    if workflow is None:
        operation = Operation(action=RetryTask.name, permission=f"{APP}.{RetryTask.permission}")
        access.require_access(by.user, operation, alias=alias)
        return
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
    """Return the class of the runs of a schedule, or None if it enqueues a task.

    Raises ``UnknownWorkflow`` if this process does not have the class.
    """
    return None if row.task else host().find_workflow(row.workflow)


# --- pause ------------------------------------------------------------------------------------------------------------
#
# Pause a schedule, and end its pause.


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
            require_pause(row.name, is_paused=row.paused_at is not None, expected=False)
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
            require_pause(row.name, is_paused=row.paused_at is not None, expected=True)
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


# --- delete -----------------------------------------------------------------------------------------------------------
#
# Delete a schedule.


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


# --- trigger ----------------------------------------------------------------------------------------------------------
#
# Trigger a schedule: fire it now.


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


# --- backfill ---------------------------------------------------------------------------------------------------------
#
# Backfill a schedule: start the slots of a past range that have no run.


#: Most slots of one backfill, and the limits of its rate.
BACKFILL_LIMIT = 10_000
_RATES = (1, 6_000)
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPreview:
    """The number of slots (times to fire) that a backfill would cover, before it is started.

    ``slots`` is the number of slots in the range, and ``started`` the number of those that have started already or wait
    to be started. ``first`` and ``last`` are the times of the first and the last slot, or None.
    """

    slots: int
    started: int
    first: datetime | None
    last: datetime | None

    @property
    def to_start(self) -> int:
        return self.slots - self.started


def preview_backfill(row: Schedule, start: datetime, end: datetime, *, alias: str) -> BackfillPreview:
    """Return which slots a backfill of the schedule from ``start`` to ``end`` (both aware, inclusive) would start.

    Slots that have started already are left out by a backfill. Only the past can be backfilled, so slots that have not
    been due yet are not counted. Raises ``ScheduleInvalid`` for an empty range, and for more than 10,000 slots.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise ScheduleInvalid("backfill: give both times a time zone")
    for moment, label in ((start, "start"), (end, "end")):
        check_year(moment, label)
    until = min(end, row.position)
    if start > until:
        raise ScheduleInvalid(
            f"backfill: no slot from {start.isoformat()} to {end.isoformat()} is in the past, and a backfill starts only past slots"
        )
    instants = [*islice(_instants(table_of(row), start, until), BACKFILL_LIMIT + 1)]
    if len(instants) > BACKFILL_LIMIT:
        raise ScheduleInvalid(
            f"backfill: the range has more than {BACKFILL_LIMIT:,} slots: choose a shorter one, and continue after it"
        )
    slots = ScheduleSlot.objects.using(alias).filter(schedule_id=row.pk, at__gte=start, at__lte=until)
    decided = {*slots.filter(outcome__in=[SlotOutcome.STARTED, SlotOutcome.WAITING]).values_list("at", flat=True)}
    return BackfillPreview(
        slots=len(instants),
        started=len(decided.intersection(instants)),
        first=instants[0] if instants else None,
        last=instants[-1] if instants else None,
    )


def range_time(row: Schedule, text: str, label: str) -> datetime:
    """Parse the start or end of a backfill from an ISO string, and return it in UTC.

    A time without a UTC offset is a wall-clock time in the zone of the schedule ``row``. ``label`` names the time in
    errors. Raises ``ScheduleInvalid``.
    """
    moment = parse_time(text, label)
    check_year(moment, label)
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    return instants_of(moment, load_zone(row.tz), gap="shift", fold="first")[0]


def _instants(table: TimeTable, start: datetime, until: datetime) -> list[datetime]:
    slots = islice(table.slots(start - _TICK, until=until), BACKFILL_LIMIT + 1)
    return [slot.instant for slot in slots]


class BackfillSchedule(ScheduleAction[BackfillPreview]):
    """Operation that starts the slots of a past range that have no run; returns a preview of what will be started.

    ``start`` and ``end`` are aware and inclusive. Workers start the runs, at most ``per_minute`` a minute. Unless the
    overlap policy is ``ALLOW_ALL``, each run starts after the one before it has ended. While the schedule is paused,
    the backfill waits. Under four eyes, the user who backfills may not decide in these runs.

    Locks and writes one row. Raises ``ScheduleInvalid`` for a bad range or rate, and ``ActionNotPossible`` for a range
    without slots, or while another backfill is under way.
    """

    name: ClassVar[str] = "backfill_schedule"

    def __init__(
        self,
        schedule_name: str,
        *,
        start: datetime,
        end: datetime,
        per_minute: int = 60,
        reason: str = "",
        by: Actor = CODE,
    ) -> None:
        super().__init__(schedule_name, reason=reason, by=by)
        self.start, self.end, self.per_minute = start, end, per_minute

    def perform(self) -> BackfillPreview:
        lowest, highest = _RATES
        if type(self.per_minute) is not int or not lowest <= self.per_minute <= highest:
            raise ScheduleInvalid(f"backfill: per_minute must be a whole number from {lowest} to {highest:,}")
        with self.storage.transaction():
            row, now = self.lock(), self.now()
            if self.by.user is not None:
                require_run_access(self.by, require_workflow(row), row.overlap, alias=self.storage.alias)
            if row.backfill is not None:
                raise ActionNotPossible(f"a backfill of {row.name} is already in progress: wait until it has finished")
            preview = preview_backfill(row, self.start, self.end, alias=self.storage.alias)
            if not preview.to_start or preview.last is None:
                raise ActionNotPossible(f"every slot of {row.name} in this range has been started: nothing to do")
            backfill = Backfill(
                after=self.start - _TICK,
                until=preview.last,
                pause=60 / self.per_minute,
                next_at=now,
                total=preview.to_start,
                actor=self.actor_name,
                actor_key="" if self.by.sender is None else self.by.sender.key,
            )
            self.save(row, backfill=backfill_column(backfill))
            self.record_schedule(row, start=self.start.isoformat(), end=self.end.isoformat(), slots=preview.to_start)
        return preview


class StopBackfill(ScheduleAction[Schedule]):
    """Operation that stops the backfill of a schedule and returns the schedule's row.

    Slots that already wait for an earlier run to end are still started. Raises ``ActionNotPossible`` if no backfill is
    under way.
    """

    name: ClassVar[str] = "stop_backfill"

    def perform(self) -> Schedule:
        with self.storage.transaction():
            row = self.lock()
            if row.backfill is None:
                raise ActionNotPossible(f"no backfill of {row.name} is in progress")
            self.save(row, backfill=None)
            self.record_schedule(row)
        return row
