"""The problems of schedules that ``temporalex doctor`` reports: overdue ones, failures, missed slots and so on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery, Sum

from temporalex_django.access import runs_or_all
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.engine.schedules import SlotCause, SlotOutcome, SlotReason
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.models import Instance, Schedule, ScheduleSlot
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.live_workers import LiveWorkers
from temporalex_django.operations.schedules.base import visible_schedules
from temporalex_django.operations.schedules.store import schedule_differences
from temporalex_django.present.view_models import ScheduleProblem

#: Time for which a schedule may be due: workers look every second, and leave one without their code to others first.
_OVERDUE_PERIOD = timedelta(minutes=3)
#: Time by which a schedule may be ahead of the clock, since the clocks of machines differ.
_AHEAD_PERIOD = timedelta(minutes=5)
_MISSED_PERIOD = timedelta(days=1)
#: A schedule that leaves out so many slots in a row needs a person; slots are counted up to a bound.
_STALL_COUNT, _MAX_SLOTS = 3, 10_000
_LEFT_OUT = (SlotOutcome.SKIPPED, SlotOutcome.MISSED)
_REASONS = (SlotReason.OVERLAP, SlotReason.BUFFER, SlotReason.WINDOW)
#: Most problems of each kind.
_LIMIT = 20


def reportable_schedules(user: Person | None) -> QuerySet[Schedule]:
    """Return the schedules whose problems a user may read; none without the permission to view schedules."""
    try:
        return visible_schedules(user, alias=storage().alias)
    except ActionNotPermitted:
        return Schedule.objects.none()


def load_schedule_problems(
    alias: str,
    schedules: QuerySet[Schedule] | None,
    live: LiveWorkers,
    now: datetime,
    runs: QuerySet[Instance] | None = None,
) -> list[ScheduleProblem]:
    """Return the problems of schedules at the time ``now``, at most 20 of each kind, the likeliest cause first.

    ``schedules`` restricts them. None means all, and also what differs from the code. ``runs`` restricts the runs that
    a problem names. About eight reads.
    """
    rows = Schedule.objects.using(alias) if schedules is None else schedules.using(alias)
    rows = rows.order_by("name")
    # A paused schedule or one that is gone starts no runs, so its class may be gone as well.
    active_rows = rows.filter(gone_since=None, paused_at=None, next_at__isnull=False)
    problems = [
        *_overdue(rows, now),
        *_ahead(rows, now),
        *(_problem("error", row, detail=row.error.rstrip(".")) for row in rows.exclude(error="")[:_LIMIT]),
        *_without_code(active_rows, live),
        # If the newest slot was missed, the kind ``missed`` covers it.
        *load_stalls(alias, active_rows, runs, outcomes=(SlotOutcome.SKIPPED,)),
        *_missed(alias, rows, now),
        *(
            _problem("failures", row, count=row.failures, since=row.paused_at)
            for row in rows.filter(paused_by_failures=True, paused_at__isnull=False, gone_since=None)[:_LIMIT]
        ),
        *(
            _problem("gone", row, since=row.gone_since, detail=row.module)
            for row in rows.filter(gone_since__isnull=False)[:_LIMIT]
        ),
    ]
    if schedules is None:
        problems += [
            ScheduleProblem(kind="differs", schedule=difference.name, detail=difference.text.rstrip("."))
            for difference in schedule_differences(alias)[:_LIMIT]
        ]
    return problems


def _problem(
    kind: str, row: Schedule, *, count: int = 1, since: datetime | None = None, detail: str = ""
) -> ScheduleProblem:
    return ScheduleProblem(kind=kind, schedule=row.name, workflow=row.workflow, count=count, since=since, detail=detail)  # type: ignore[arg-type] # one of the kinds


def _overdue(rows: QuerySet[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    """Yield one problem for all schedules that no worker fires, since one cause makes them all overdue."""
    late_rows = rows.filter(next_at__lt=now - _OVERDUE_PERIOD).order_by("next_at")
    if first := late_rows.first():
        yield _problem("overdue", first, count=late_rows.count(), since=first.next_at)


def _ahead(rows: QuerySet[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    for row in rows.filter(position__gt=now + _AHEAD_PERIOD, paused_at=None)[:_LIMIT]:
        yield _problem("ahead", row, since=row.position)


def _without_code(rows: QuerySet[Schedule], live: LiveWorkers) -> Iterator[ScheduleProblem]:
    """Yield a problem for each workflow class that this process lacks, or whose runs no live worker can take."""
    groups = rows.order_by("workflow").values("workflow").annotate(count=Count("pk"), example=Min("name"))
    for group in groups[:_LIMIT]:
        about = {"schedule": group["example"], "workflow": group["workflow"], "count": group["count"]}
        startable = workflows.find_or_none(group["workflow"])
        if startable is None:
            yield ScheduleProblem(kind="class", **about)
            continue
        try:
            workflow = startable.choose(None, {})
        # Code of the project chooses the version, and needs options for it that a schedule does not have.
        except Exception:  # noqa: BLE001, S112 - the slots of such a schedule fail, which lists the error
            continue
        # Without any worker, that is reported for all runs.
        missing = live.missing_worker(workflow=workflow.name, version=workflow.version, queue=workflow.task_queue)
        if missing is not None and live.workflow_versions:
            yield ScheduleProblem(kind="unpolled", detail=missing, **about)


def _missed(alias: str, rows: QuerySet[Schedule], now: datetime) -> Iterator[ScheduleProblem]:
    slots = ScheduleSlot.objects.using(alias).filter(
        Q(outcome=SlotOutcome.MISSED), decided_at__gte=now - _MISSED_PERIOD, schedule__in=rows.order_by().values("pk")
    )
    groups = slots.order_by().values("schedule__name", "schedule__workflow").annotate(missed=Sum("count"))
    for group in groups.order_by("-missed", "schedule__name")[:_LIMIT]:
        yield ScheduleProblem(
            kind="missed",
            schedule=group["schedule__name"],
            workflow=group["schedule__workflow"],
            count=group["missed"],
        )


def is_stalled(slots: Iterable[ScheduleSlot]) -> bool:
    """Return True if a schedule left out its last slots, at least three in a row.

    ``slots`` are its last ones, newest first.
    """
    by_time = (slot for slot in slots if slot.cause == SlotCause.TIME)
    left_out = takewhile(lambda slot: slot.outcome in _LEFT_OUT and slot.reason in _REASONS, by_time)
    return sum(slot.count for slot in left_out) >= _STALL_COUNT


def load_stalls(
    alias: str,
    schedules: QuerySet[Schedule],
    runs: QuerySet[Instance] | None = None,
    *,
    outcomes: Sequence[SlotOutcome] = _LEFT_OUT,
) -> list[ScheduleProblem]:
    """Return a problem for each of the active schedules that left out its last slots, at least three in a row.

    Slots that somebody wanted to leave out, by a pause, do not count. The newest slot has one of the ``outcomes``. A
    run in the way is named if it is in ``runs``; None means all. One read, and three more for each problem, at most 20.
    """
    newest = ScheduleSlot.objects.filter(schedule=OuterRef("pk"), cause=SlotCause.TIME).order_by("-at")
    rows: Any = schedules.using(alias).filter(gone_since=None, paused_at=None, next_at__isnull=False).order_by("name")
    for number in range(_STALL_COUNT):
        slot = {name: Subquery(newest.values(name)[number : number + 1]) for name in ("outcome", "reason", "count")}
        rows = rows.alias(**{f"{name}_{number}": value for name, value in slot.items()})
    first, second, third = (
        Q(**{f"outcome_{number}__in": _LEFT_OUT, f"reason_{number}__in": _REASONS}) for number in range(_STALL_COUNT)
    )
    # One row may stand for several slots.
    rows = rows.filter(first, outcome_0__in=outcomes).filter(
        Q(count_0__gte=3) | (second & (Q(count_0=2) | Q(count_1__gte=2) | third))
    )
    return [problem for row in rows[:_LIMIT] if (problem := _stall(alias, row, runs)) is not None]


def _stall(alias: str, row: Schedule, runs: QuerySet[Instance] | None) -> ScheduleProblem | None:
    slots = ScheduleSlot.objects.using(alias).filter(schedule=row, cause=SlotCause.TIME)
    left_out = slots.filter(outcome__in=_LEFT_OUT, reason__in=_REASONS)
    last_other = slots.exclude(pk__in=left_out.values("pk")).order_by("-at").values_list("at", flat=True).first()
    if last_other is not None:
        left_out = left_out.filter(at__gt=last_other)
    figures = left_out.order_by()[:_MAX_SLOTS].aggregate(count=Sum("count"), since=Min("at"))
    if (figures["count"] or 0) < _STALL_COUNT:
        return None
    in_the_way = ScheduleSlot.objects.using(alias).filter(schedule=row, running=True).order_by("at").first()
    run = (
        None
        if in_the_way is None
        else runs_or_all(runs, alias=alias).filter(chain=in_the_way.chain_id).order_by("-id").first()
    )
    return ScheduleProblem(
        kind="stalled",
        schedule=row.name,
        workflow=row.workflow,
        count=figures["count"],
        since=figures["since"],
        run="" if run is None else run.workflow_id,
        is_blocked=run is not None and bool(run.blocked),
    )
