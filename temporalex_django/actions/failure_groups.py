"""Failures by what caused them: five runs that failed at one line are one thing to repair."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import Coalesce

from temporalex_django.models import ActivityTask, Instance, Status
from temporalex_django.present.diagnosis import FailureGroup

#: Groups of each kind at most, the largest first.
_MAX_GROUPS = 20
#: Failed runs that are grouped: those of this time, and so many of them at most, the newest first.
_RECENT_PERIOD, _MAX_RUNS = timedelta(days=1), 1000


def failure_groups(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[FailureGroup]:
    """Activities that fail and are tried again, then runs that failed within a day, by class and cause.

    ``runs`` narrows them; None: of all. Three reads, by indexes that hold nothing but failures. The filter ``cause`` of
    runs takes the cause of a group.
    """
    tasks: Any = ActivityTask.objects.using(alias).filter(cause__isnull=False, chain__isnull=False)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    failing_tasks = tasks.order_by().values("workflow", "activity", "cause")
    failing_tasks = failing_tasks.annotate(
        count=Count("pk"), since=Min(Coalesce("failing_since", "failed_at")), example=Max("workflow_id")
    )
    visible_runs = Instance.objects.using(alias) if runs is None else runs
    newest_ids = (
        visible_runs.filter(ended=Status.FAILED, cause__isnull=False).order_by("-id").values_list("pk", flat=True)
    )
    recent_runs = Instance.objects.using(alias).filter(
        pk__in=[*newest_ids[:_MAX_RUNS]], closed_at__gte=now - _RECENT_PERIOD
    )
    failed_runs: Any = recent_runs.order_by().values("workflow", "cause")
    failed_runs = failed_runs.annotate(count=Count("pk"), since=Min("closed_at"), example=Max("workflow_id"))
    order = ("-count", "workflow", "cause")
    rows: list[Any] = [*failing_tasks.order_by(*order)[:_MAX_GROUPS], *failed_runs.order_by(*order)[:_MAX_GROUPS]]
    return [FailureGroup(**row) for row in rows]
