"""The overview of a project: seven numbers, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import QuerySet, Subquery
from django.utils import timezone

from temporalex_django.access import is_unfiltered, policy, runs_or_all, schedules_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.db.run_reader import BoundedCount, semi_join
from temporalex_django.models import Chain, Instance, Schedule, Status
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.deploy import deploy_diagnosis, unfit_release
from temporalex_django.operations.fleet.stats import LiveWorkers
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.read.project_state import MAX_COUNTED_RUNS, load_project_and_workers, open_runs
from temporalex_django.operations.schedules.describe import troubled_schedules
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE
from temporalex_django.present.diagnosis import diagnose
from temporalex_django.present.project_view import ProjectView
from temporalex_django.present.view_models import Diagnosis

#: Runs and tasks are counted up to this number.
MAX_COUNT: Final = 1_000
#: Failed runs that are counted, the newest ones.
_MAX_FAILED = MAX_COUNT + 1
_MAX_PROBLEMS = 20
_PERIOD, _BAR = timedelta(hours=24), timedelta(minutes=30)
#: Permissions that the findings need besides that to see runs, by the beginning of their codes.
_PERMISSIONS = {
    "few_workers": f"{APP}.view_worker",
    "clock": f"{APP}.view_worker",
    "off": f"{APP}.view_switchedoff",
    "schedule_": VIEW_SCHEDULE.permission,
    "failed_task": f"{APP}.view_enqueuedtask",
    "dead_letters": f"{APP}.view_outbox",
    "outbox_late": f"{APP}.view_outbox",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The overview of a project at the time ``at``, with the runs, workers and schedules that its reader sees.

    - ``open``: the number of open runs, counted up to 10,000. ``stuck``, ``failed`` and the numbers of human tasks are
      counted up to 1,000.
    - ``failed``: the number of runs that failed in the last 24 hours; ``failed_bars`` has 48 numbers, one for each half
      of an hour, the oldest first.
    - ``open_tasks`` and ``overdue_tasks``: the numbers of human tasks that wait for a decision, and of those that are
      past their due time.
    - ``longest_wait``: for how many seconds the oldest run or activity has waited for a worker.
    - ``workers`` and ``lost_workers``: the numbers of workers that are alive and take work, and of those that were
      declared dead in the last 24 hours.
    - ``schedules``: the number of schedules that do not run as planned, counted up to 1,000.
    - ``problems``: the worst findings, at most twenty; ``more_problems`` is the number of the others.
    - ``is_empty``: True if the reader sees no run at all.

    Numbers that the reader may not see are None.
    """

    at: datetime
    open: int
    stuck: int
    failed: int
    failed_bars: Sequence[int]
    open_tasks: int
    overdue_tasks: int
    longest_wait: float
    workers: int | None
    lost_workers: int | None
    schedules: int | None
    problems: Sequence[Diagnosis] = field(default=())
    more_problems: int = 0
    is_empty: bool = False


def load_overview(user: Person, runs: QuerySet[Instance] | None) -> Overview:
    """Return the overview for a user, with ``runs``; None means all runs. About twenty reads, and no lock."""
    alias, permits = storage().alias, policy().permits
    sees_schedules = policy().allows(user, VIEW_SCHEDULE)
    schedules = schedules_for(user, alias=alias) if sees_schedules else Schedule.objects.none()
    # The open runs are counted below, together with those that need attention.
    project, live = load_project_and_workers(alias, runs, schedules, classes=len(workflows.registry), open_count=0)
    now = project.at or timezone.now()
    # The list *In trouble* has the same rows.
    troubled = troubled_schedules(schedules.using(alias), now, alias=alias, problems=project.schedule_problems)
    counts = _count(alias, runs, live, troubled, now=now)
    project = replace(project, open_count=counts.open)
    findings = [finding for finding in diagnose(project, now=now) if _is_shown(finding, user)]
    sees_workers = permits(user, f"{APP}.view_worker")
    if sees_workers and counts.unfit_release is not None:
        findings.append(deploy_diagnosis(counts.unfit_release, since=counts.unfit_since))
    # The sort is stable: causes still come before their effects.
    findings.sort(key=lambda finding: finding.severity != "error")
    failed_at = _failure_times(alias, runs, now=now)
    all_runs = runs_or_all(runs, alias=alias)
    return Overview(
        at=now,
        open=project.open_count,
        stuck=counts.stuck,
        failed=len(failed_at),
        failed_bars=_bars(failed_at, now=now),
        open_tasks=project.open_tasks,
        overdue_tasks=project.late_tasks,
        longest_wait=_longest_wait(project, now),
        workers=len(project.active_workers) if sees_workers else None,
        lost_workers=len(project.lost_workers) if sees_workers else None,
        schedules=counts.schedules if sees_schedules else None,
        problems=findings[:_MAX_PROBLEMS],
        more_problems=max(0, len(findings) - _MAX_PROBLEMS),
        is_empty=not project.open_count and not failed_at and not all_runs.order_by().exists(),
    )


def scope_of(user: Person, runs: QuerySet[Instance] | None) -> tuple[Any, ...]:
    """Return a value that is equal for users who see the same overview. ``runs`` are those that the user sees."""
    sees_schedules = policy().allows(user, VIEW_SCHEDULE)
    schedules = schedules_for(user, alias=storage().alias) if sees_schedules else None
    sees_all = runs is None and (schedules is None or is_unfiltered(schedules))
    permissions = sorted({permission for permission in (*_PERMISSIONS.values(), f"{APP}.view_worker") if permission})
    return (
        None if sees_all else getattr(user, "pk", None),
        sees_schedules,
        *(policy().permits(user, name) for name in permissions),
    )


def _is_shown(finding: Diagnosis, user: Person) -> bool:
    if finding.severity == "note":
        return False
    permissions = [permission for code, permission in _PERMISSIONS.items() if finding.code.startswith(code)]
    return all(permission is None or policy().permits(user, permission) for permission in permissions)


@dataclass(frozen=True, slots=True)
class _Counts:
    """The numbers of open runs, of those that need attention, and of schedules in trouble, each up to a bound.

    ``unfit_release`` is the name of the newest release, or None if it matches the open runs, and
    ``unfit_since`` is the time of its check.
    """

    schedules: int
    open: int = 0
    stuck: int = 0
    unfit_release: str | None = None
    unfit_since: datetime | None = None


def _count(
    alias: str, runs: QuerySet[Instance] | None, live: LiveWorkers, troubled: QuerySet[Schedule], *, now: datetime
) -> _Counts:
    """Count runs and the schedules that are in trouble, and read the name of a release that does not match. One read.

    Two reads in a project without any run.
    """
    current = open_runs(alias, runs)
    stuck = run_filters.stuck_runs(current.order_by(), live=live)
    # An open chain has one current run, and an index has the open chains.
    chains = Chain.objects.using(alias).filter(open_key__isnull=False)
    # Any row serves, since each value is a subquery.
    rows: Any = Instance.objects.using(alias).order_by()
    counts = rows.values_list(
        BoundedCount(troubled, MAX_COUNT + 1),
        BoundedCount(chains if runs is None else current, MAX_COUNTED_RUNS),
        BoundedCount(stuck, MAX_COUNT + 1),
        Subquery(unfit_release(alias, now).values("release")),
        Subquery(unfit_release(alias, now).values("at")),
    )
    for row in counts[:1]:
        return _Counts(*row)
    return _Counts(troubled.order_by()[: MAX_COUNT + 1].count())


def _failure_times(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[datetime]:
    """Return when runs failed in the last 24 hours, of the newest failed ones. One read."""
    failed_runs = runs_or_all(runs, alias=alias).filter(ended=Status.FAILED).order_by("-id")
    # The newest ids come from an index of failed runs; times are compared only for those.
    rows = Instance.objects.using(alias).filter(closed_at__gte=now - _PERIOD).order_by()
    times = semi_join(rows, failed_runs.values("pk")[:_MAX_FAILED]).values_list("closed_at", flat=True)
    return [closed_at for closed_at in times if closed_at is not None]


def _bars(times: Sequence[datetime], *, now: datetime) -> list[int]:
    counts = Counter(int((now - at) / _BAR) for at in times)
    return [counts[number] for number in reversed(range(_PERIOD // _BAR))]


def _longest_wait(project: ProjectView, now: datetime) -> float:
    waits = [due.oldest for due in project.due_runs] + [task.since for task in project.unclaimed_activities]
    return max((now - min(waits)).total_seconds(), 0.0) if waits else 0.0
