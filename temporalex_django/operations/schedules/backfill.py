"""Backfill a schedule: start the slots of a past range that have no run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import ClassVar

from temporalex_django.authoring.schedules.slots import TimeTable, instants_of, load_zone
from temporalex_django.authoring.schedules.specs import check_year, parse_time
from temporalex_django.engine.schedules import Backfill, SlotOutcome
from temporalex_django.errors import ActionNotPossible, ScheduleInvalid
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.schedules.base import ScheduleAction, require_run_access, require_workflow
from temporalex_django.operations.schedules.store import backfill_column, table_of

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
