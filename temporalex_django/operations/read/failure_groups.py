"""Failures grouped by cause: runs that failed with one error at one line are one problem to repair."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import Coalesce

from temporalex_django.access import runs_or_all
from temporalex_django.models import ActivityTask, Instance, Status
from temporalex_django.present.project_view import FailureGroup

#: Most groups of each kind, the largest first.
_MAX_GROUPS = 20
#: Failed runs that are grouped: those of this period, and at most this number of them, newest first.
_RECENT_PERIOD, _MAX_RUNS = timedelta(days=1), 1000


def failure_groups(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[FailureGroup]:
    """Return groups of failures with one class and one cause, the largest first.

    First come the activities that fail and are retried, then the runs that failed within a day before ``now``. ``runs``
    restricts both; None means all runs. At most ``_MAX_GROUPS`` groups of each kind. The filter ``cause`` of runs takes
    the cause of a group. Three reads, by indexes that contain only failures.
    """
    tasks: Any = ActivityTask.objects.using(alias).filter(cause__isnull=False, chain__isnull=False)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    failing_tasks = tasks.order_by().values("workflow", "activity", "cause")
    failing_tasks = failing_tasks.annotate(
        count=Count("pk"), since=Min(Coalesce("failing_since", "failed_at")), example=Max("workflow_id")
    )
    visible_runs = runs_or_all(runs, alias=alias)
    # Take the newest ids first, from an index of failed runs, and compare times only for those. Run ids sort by time,
    # so the bound costs no scan however many runs have failed over the years.
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
