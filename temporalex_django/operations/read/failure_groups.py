"""Failures grouped by cause: what failed with one type of error in one function of the code is one problem to repair.

This is the only definition of a group. The filters of runs, bulk jobs, ``doctor``, alerts, the admin and REST take it
from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, F, Max, Min, OuterRef, Q, QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from temporalex_django.access import runs_or_all
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import ActivityTask, EndedTask, EnqueuedTask, Instance, Outbox, Status
from temporalex_django.present.project_view import FailureGroup

#: Most groups of each kind, the largest first, and most groups that are looked at to find these.
_MAX_GROUPS, _MAX_KEYS = 20, 50
#: Members of a group are counted up to this number.
MAX_COUNTED = 10_000
#: Failed runs and tasks that are grouped: those of this period, and at most ``MAX_COUNTED`` of them, newest first.
_RECENT_PERIOD = timedelta(days=1)


def failure_groups(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[FailureGroup]:
    """Return the groups of failures with one class and one fault: of each kind at most twenty, the largest first.

    The kinds are, in this order: activities that fail and are retried, runs and background tasks that failed within a
    day before ``now``, blocked runs, and dead letters. A failed run that was reset, or replaced by a new run of its id,
    does not count. ``runs`` restricts the groups; None means all runs. Background tasks belong to no run, so they are
    there only with None. The filter ``cause`` of runs takes the cause of a group.

    One read for each kind if nothing has failed, and three more for each group. Indexes that contain only failures
    answer them.
    """
    visible_runs = runs_or_all(runs, alias=alias)
    tasks: Any = ActivityTask.objects.using(alias).filter(chain__isnull=False)
    groups = [
        *_largest(_failing_activities(tasks if runs is None else tasks.filter(run__in=runs.order_by().values("pk")))),
        *_largest(_failed_runs(alias, visible_runs, now)),
        *_largest(_blocked_runs(visible_runs)),
    ]
    if runs is None:
        groups += _largest(_failed_tasks(alias, now))
    letters = Outbox.objects.using(alias)
    return [
        *groups,
        *_largest(_dead_letters(letters if runs is None else letters.filter(chain__in=runs.values("chain")))),
    ]


def faults_of(cause: str, *, alias: str) -> list[str]:
    """Return the keys of the groups to which a cause belongs: that of the newest failures with this text, and the text.

    Two reads, by indexes of causes. Runs that failed at other lines of one function have the same key.
    """
    newest_run = Instance.objects.using(alias).filter(cause=cause, fault__isnull=False).order_by("-id")
    newest_task = ActivityTask.objects.using(alias).filter(cause=cause, fault__isnull=False).order_by("-id")
    faults = [*newest_run.values_list("fault", flat=True)[:1], *newest_task.values_list("fault", flat=True)[:1]]
    return [*{cause: None, **dict.fromkeys(map(str, faults))}]


def with_faults(rows: QuerySet[Any], cause: str, faults: Sequence[str]) -> QuerySet[Any]:
    """Return those ``rows`` (runs or activities) that belong to the group of a cause; ``faults`` are its keys."""
    return rows.filter(Q(fault__in=faults) | Q(cause=cause))


def not_replaced(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Return the runs that were neither reset nor replaced: no newer run has their business id."""
    newer = Instance.objects.using(runs.db).filter(
        workflow_id=OuterRef("workflow_id"), workflow=OuterRef("workflow"), pk__gt=OuterRef("pk")
    )
    return runs.filter(chain__run_id=F("pk")).exclude(Exists(newer))


def _largest(groups: Iterator[FailureGroup]) -> list[FailureGroup]:
    return sorted(groups, key=lambda group: (-group.count, group.workflow, group.cause))[:_MAX_GROUPS]


def _keys(rows: QuerySet[Any], first: str, second: str) -> Iterator[dict[str, Any]]:
    """Yield the pairs of values of two columns that occur in ``rows``, by an index of these columns.

    Each pair takes one probe of the index, so a group of many rows costs no more than a small one.
    """
    rows = rows.order_by(first, second).values(first, second)
    key = rows.first()
    for _number in range(_MAX_KEYS):
        if key is None:
            return
        yield key
        later = Q(**{first: key[first], f"{second}__gt": key[second]}) | Q(**{f"{first}__gt": key[first]})
        key = rows.filter(later, **{f"{first}__gte": key[first]}).first()


def _failing_activities(tasks: QuerySet[Any]) -> Iterator[FailureGroup]:
    for key in _keys(tasks.filter(fault__isnull=False, cause__isnull=False), "fault", "workflow"):
        members = tasks.filter(**key)
        newest = members.order_by("-failed_at").values("activity", "cause", "workflow_id").first()
        # A member may have ended since the last read.
        if newest is not None:
            yield FailureGroup(
                kind="activity",
                **key,
                **_figures(members, since=Coalesce("failing_since", "failed_at"), last="failed_at", due="due_at"),
                cause=newest["cause"],
                activity=newest["activity"],
                example=newest["workflow_id"],
            )


def _blocked_runs(runs: QuerySet[Instance]) -> Iterator[FailureGroup]:
    """Yield the groups of blocked runs, except those that wait for a switch."""
    blocked: Any = runs.filter(blocked__isnull=False, chain__run_id=F("pk"), chain__open_key__isnull=False)
    blocked = blocked.exclude(blocked__code=WorkflowSwitchedOff.code)
    keys: list[dict[str, Any]] = [*_keys(blocked.filter(fault__isnull=False), "workflow", "fault")]
    # A mark that another program wrote has no key.
    unkeyed = blocked.filter(fault__isnull=True).order_by().values_list("workflow", flat=True).distinct()
    keys += [{"workflow": workflow, "fault": None} for workflow in unkeyed[:_MAX_GROUPS]]
    for key in keys:
        members = blocked.filter(workflow=key["workflow"])
        members = members.filter(fault__isnull=True) if key["fault"] is None else members.filter(fault=key["fault"])
        row = members.order_by("-id").values("workflow_id", "cause", "blocked").first()
        if row is None:
            continue
        figures = _figures(members, since=KT("blocked__since"), last=KT("blocked__last"), due="chain__due_at")
        code = str((row["blocked"] or {}).get("code") or "blocked")
        yield FailureGroup(
            kind="blocked",
            workflow=key["workflow"],
            fault=key["fault"] or code,
            cause=row["cause"] or code,
            code=code,
            waits_for=(row["blocked"] or {}).get("waits_for"),
            example=row["workflow_id"],
            **figures | {name: _parse(figures[name]) for name in ("since", "last")},
        )


def _figures(members: QuerySet[Any], *, since: Any, last: Any, due: str) -> dict[str, Any]:
    """Return the fields of a group that say how many members it has, since when, and when the next attempt is.

    The members are counted up to a bound.
    """
    counted = members.order_by().annotate(first_seen=since, last_seen=Coalesce(last, since), next_due=F(due))
    figures = counted.values("pk", "first_seen", "last_seen", "next_due")[: MAX_COUNTED + 1].aggregate(
        count=Count("pk"), since=Min("first_seen"), last=Max("last_seen"), next_attempt=Min("next_due")
    )
    return {**figures, "count": min(figures["count"], MAX_COUNTED), "is_bounded": figures["count"] > MAX_COUNTED}


def _parse(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _failed_runs(alias: str, runs: QuerySet[Instance], now: datetime) -> Iterator[FailureGroup]:
    # Take the newest ids first, from an index of failed runs, and compare times only for those. Run ids sort by time,
    # so the bound costs no scan however many runs have failed over the years.
    newest = runs.filter(ended=Status.FAILED, fault__isnull=False).order_by("-id")[: MAX_COUNTED + 1]
    recent = Instance.objects.using(alias).filter(pk__in=newest.values("pk"), closed_at__gte=now - _RECENT_PERIOD)
    yield from _recent_groups("run", not_replaced(recent), "workflow", "closed_at", "workflow_id")


def _failed_tasks(alias: str, now: datetime) -> Iterator[FailureGroup]:
    """Yield the groups of background tasks: those that fail and are retried, and those that failed for good."""
    enqueued: Any = EnqueuedTask.objects.using(alias).filter(fault__isnull=False, cause__isnull=False)
    for key in _keys(enqueued, "fault", "activity"):
        members = enqueued.filter(**key)
        newest = members.order_by("-failed_at").values("run_id", "cause").first()
        if newest is not None:
            yield FailureGroup(
                kind="task",
                workflow=key["activity"].partition(":")[2],
                fault=key["fault"],
                cause=newest["cause"].removeprefix(f"{key['activity']}: "),
                example=str(newest["run_id"]),
                activity=key["activity"],
                **_figures(members, since=Coalesce("failing_since", "failed_at"), last="failed_at", due="due_at"),
            )
    failed = EndedTask.objects.using(alias).filter(fault__isnull=False, finished_at__gte=now - _RECENT_PERIOD)
    newest_failed = failed.order_by("-finished_at")[: MAX_COUNTED + 1]
    recent = EndedTask.objects.using(alias).filter(pk__in=newest_failed.values("pk"))
    yield from _recent_groups("task", recent, "task", "finished_at", "id")


def _recent_groups(kind: Any, rows: QuerySet[Any], name: str, moment: str, identity: str) -> Iterator[FailureGroup]:
    """Yield the groups of rows that ended in the last day. ``name`` is the column of the class or function."""
    grouped: Any = rows.order_by().values(name, "fault")
    grouped = grouped.annotate(count=Count("pk"), since=Min(moment), last=Max(moment))
    found_groups = [*grouped.order_by("-count", name, "fault")[:_MAX_GROUPS]]
    is_bounded = sum(row["count"] for row in found_groups) > MAX_COUNTED
    for row in found_groups:
        members = rows.filter(**{name: row[name], "fault": row["fault"]})
        newest = members.order_by(f"-{moment}").values("cause", identity).first()
        if newest is not None:
            yield FailureGroup(
                kind=kind,
                workflow=row[name],
                fault=row["fault"],
                cause=newest["cause"],
                count=min(row["count"], MAX_COUNTED),
                is_bounded=is_bounded,
                since=row["since"],
                last=row["last"],
                example=str(newest[identity]),
            )


def _dead_letters(letters: Any) -> Iterator[FailureGroup]:
    dead = letters.refused().order_by("id")[: MAX_COUNTED + 1].values("id", "destination", "failed", "created_at")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows = [*dead]
    for row in rows:
        groups.setdefault((row["destination"], str(row["failed"].get("code"))), []).append(row)
    for (destination, code), members in groups.items():
        failed_times = [moment for row in members if (moment := _parse(row["failed"].get("at"))) is not None]
        yield FailureGroup(
            kind="dead_letter",
            workflow=destination,
            fault=f"{destination}: {code}",
            cause=f"{destination}: {code}",
            code=code,
            count=min(len(members), MAX_COUNTED),
            is_bounded=len(rows) > MAX_COUNTED,
            since=members[0]["created_at"],
            last=max(failed_times, default=members[0]["created_at"]),
            example=str(members[0]["id"]),
        )
