"""The problems of schedules that ``temporalex doctor`` reports: overdue ones, failures, missed slots and so on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q, QuerySet, Sum

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.engine.schedules.records import SlotOutcome
from temporalex_django.errors import ActionNotPermitted
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.live_workers import LiveWorkers
from temporalex_django.operations.schedules.base import visible_schedules
from temporalex_django.operations.schedules.sync import schedule_differences
from temporalex_django.present.view_models import ScheduleProblem

#: Time for which a schedule may be due: workers look every second, and leave one without their code to others first.
_OVERDUE_PERIOD = timedelta(minutes=3)
#: Time by which a schedule may be ahead of the clock, since the clocks of machines differ.
_AHEAD_PERIOD = timedelta(minutes=5)
_MISSED_PERIOD = timedelta(days=1)
#: Most problems of each kind.
_LIMIT = 20


def reportable_schedules(user: Person | None) -> QuerySet[Schedule]:
    """Return the schedules whose problems a user may read; none without the permission to view schedules."""
    try:
        return visible_schedules(user, alias=storage().alias)
    except ActionNotPermitted:
        return Schedule.objects.none()


def load_schedule_problems(
    alias: str, schedules: QuerySet[Schedule] | None, live: LiveWorkers, now: datetime
) -> list[ScheduleProblem]:
    """Return the problems of schedules at the time ``now``, at most 20 of each kind, the likeliest cause first.

    ``schedules`` restricts them. None means all, and also what differs from the code. About eight reads.
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
