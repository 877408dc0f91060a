"""Failures by cause, and rows that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connections, models
from django.db.models import Case, Count, Exists, F, Max, Min, OuterRef, Q, QuerySet, When
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from temporalex_django.access import runs_or_all
from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL
from temporalex_django.db.run_reader import semi_join
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import (
    ActivityTask,
    Chain,
    EndedTask,
    EnqueuedTask,
    HumanTask,
    Instance,
    Outbox,
    Schedule,
    Status,
)
from temporalex_django.models.fields import SafeDateTimeField, unreadable_columns
from temporalex_django.present.project_view import FailureGroup, UnreadableRow

# --- failure groups ---------------------------------------------------------------------------------------------------
#
# Failures grouped by cause: what failed with one type of error in one function of the code is one problem to repair.
#
# This is the only definition of a group. The filters of runs, bulk jobs, ``doctor``, alerts, the admin and REST take it
# from here.


#: Most groups of each kind, the largest first, and most groups that are looked at to find these.
_MAX_GROUPS, _MAX_KEYS = 20, 50
#: Members of a group are counted up to this number.
MAX_COUNTED = 10_000
#: Failed runs and tasks that are grouped: those of this period, and at most ``MAX_COUNTED`` of them, newest first.
_RECENT_PERIOD = timedelta(days=1)
#: The time of the next attempt of an activity; an attempt that is running has none.
_NEXT_ATTEMPT = Case(When(owner__isnull=True, then=F("due_at")))


def failure_groups(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[FailureGroup]:
    """Return the groups of failures with one class and one fault: of each kind at most twenty, the largest first.

    First come those of ``run_failure_groups``, then background tasks and dead letters. ``runs`` restricts the groups;
    None means all runs. Background tasks belong to no run, so they are there only with None. Five reads.
    """
    groups = run_failure_groups(alias, runs, now=now)
    letters = Outbox.objects.using(alias)
    if runs is None:
        groups += task_failure_groups(EnqueuedTask.objects.using(alias), EndedTask.objects.using(alias), now=now)
    else:
        letters = letters.filter(chain__in=runs.values("chain"))
    return [*groups, *_largest(_dead_letters(letters))]


def task_failure_groups(open_tasks: Any, ended_tasks: Any, *, now: datetime) -> list[FailureGroup]:
    """Return the groups of failing and failed background tasks, at most twenty, the largest first.

    ``open_tasks`` and ``ended_tasks`` are the rows that count. Of the ended ones, those count that failed within a day
    before ``now``. Two reads.
    """
    return _largest([*_failing_tasks(open_tasks), *_failed_tasks(ended_tasks, now)])


def run_failure_groups(alias: str, runs: QuerySet[Instance] | None, *, now: datetime) -> list[FailureGroup]:
    """Return the groups of activities that fail and are retried, of failed runs, and of blocked runs, in this order.

    Runs count that failed within a day before ``now``. One that was reset, or replaced by a new run of its id, does not
    count. The filter ``cause`` of runs takes the cause of a group. Two reads, by indexes that contain only failures.
    """
    visible_runs = runs_or_all(runs, alias=alias)
    tasks: Any = ActivityTask.objects.using(alias).filter(chain__isnull=False)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    groups = [*_failed_and_blocked_runs(alias, visible_runs, now)]
    return [
        *_largest(_failing_activities(tasks)),
        *_largest(group for group in groups if group.kind == "run"),
        *_largest(group for group in groups if group.kind == "blocked"),
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


def _largest(groups: Iterable[FailureGroup]) -> list[FailureGroup]:
    return sorted(groups, key=lambda group: (-group.count, group.workflow, group.cause))[:_MAX_GROUPS]


def _grouped(
    rows: QuerySet[Any], keys: tuple[str, str], *, scans: bool = False, **figures: Any
) -> list[dict[str, Any]]:
    """Return the groups of equal values of two columns. ``is_bounded`` says if there may be more rows than ``count``.

    An index of the columns finds groups behind a large one, unless ``scans`` says that there is none. One read, unless
    there are very many rows.
    """
    rows = rows.order_by().annotate(**{f"of_{name}": expression for name, (_kind, expression) in figures.items()})
    aggregates = {name: kind(f"of_{name}") for name, (kind, _expression) in figures.items()}
    bounded = rows.filter(pk__in=rows.values("pk")[: MAX_COUNTED + 1])
    group_rows = [*bounded.values(*keys).annotate(count=Count("pk"), **aggregates)]
    is_bounded = sum(row["count"] for row in group_rows) > MAX_COUNTED
    if is_bounded and not scans:
        group_rows = []
        for key in _keys(rows, *keys):
            members = rows.filter(**key)
            members = members.filter(pk__in=members.values("pk")[: MAX_COUNTED + 1])
            group_rows += members.values(*keys).annotate(count=Count("pk"), **aggregates)
        return [
            {**row, "is_bounded": row["count"] > MAX_COUNTED, "count": min(row["count"], MAX_COUNTED)}
            for row in group_rows
        ]
    return [{**row, "is_bounded": is_bounded, "count": min(row["count"], MAX_COUNTED)} for row in group_rows]


def _keys(rows: QuerySet[Any], first: str, second: str) -> Iterator[dict[str, Any]]:
    """Yield pairs of values, each by one probe of the index, so that a large group costs no more than a small one."""
    rows = rows.filter(**{f"{second}__isnull": False}).order_by(first, second).values(first, second)
    key = rows.first()
    for _number in range(_MAX_KEYS):
        if key is None:
            return
        yield key
        later = Q(**{first: key[first], f"{second}__gt": key[second]}) | Q(**{f"{first}__gt": key[first]})
        key = rows.filter(later, **{f"{first}__gte": key[first]}).first()


def _failing_activities(tasks: QuerySet[Any]) -> Iterator[FailureGroup]:
    failing = tasks.filter(fault__isnull=False, cause__isnull=False)
    for row in _grouped(
        failing,
        ("fault", "workflow"),
        since=(Min, Coalesce("failing_since", "failed_at")),
        last=(Max, F("failed_at")),
        next_attempt=(Min, _NEXT_ATTEMPT),
        cause=(Max, F("cause")),
        activity=(Max, F("activity")),
        example=(Max, F("workflow_id")),
    ):
        yield FailureGroup(kind="activity", **row)


def _parse(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _failed_and_blocked_runs(alias: str, runs: QuerySet[Instance], now: datetime) -> Iterator[FailureGroup]:
    """Leave out runs that wait for a switch. One read, unless there are very many blocked runs."""
    # Take the newest ids first, from an index of failed runs, and compare times only for those. Run ids sort by time,
    # so the bound costs no scan however many runs have failed over the years.
    stored = Instance.objects.using(alias).order_by()
    newest = runs.filter(ended=Status.FAILED, fault__isnull=False).order_by("-id")[: MAX_COUNTED + 1]
    recent = not_replaced(stored.filter(pk__in=newest.values("pk"), closed_at__gte=now - _RECENT_PERIOD))
    current = runs.filter(blocked__isnull=False, chain__run_id=F("pk"), chain__open_key__isnull=False)
    blocked = current.exclude(blocked__code=WorkflowSwitchedOff.code).order_by()
    first_blocked = stored.filter(pk__in=blocked.values("pk")[: MAX_COUNTED + 1])
    group_rows = _read_run_groups(stored, recent.values("pk").union(first_blocked.values("pk")))
    totals = {kind: sum(row["count"] for row in group_rows if row["is_blocked"] is kind) for kind in (False, True)}
    if totals[True] > MAX_COUNTED:
        group_rows = [row for row in group_rows if not row["is_blocked"]]
        # An index finds the groups behind a large one.
        for key in _keys(blocked, "workflow", "fault"):
            members = stored.filter(pk__in=blocked.filter(**key).values("pk")[: MAX_COUNTED + 1])
            group_rows += _read_run_groups(stored, members.values("pk"))
    for row in group_rows:
        total = row["count"] if row["is_blocked"] else totals[False]
        yield _run_group(row, is_bounded=total > MAX_COUNTED)


def _read_run_groups(stored: QuerySet[Instance], run_ids: QuerySet[Any]) -> list[dict[str, Any]]:
    """Return the figures of each group of failed or blocked runs with these ids. One read."""
    rows: Any = semi_join(stored, run_ids)
    rows = rows.annotate(is_blocked=Case(When(blocked__isnull=False, then=True), default=False))
    return [
        *rows.values("workflow", "fault", "is_blocked").annotate(
            count=Count("pk"),
            closed_since=Min("closed_at"),
            closed_last=Max("closed_at"),
            blocked_since=Min(KT("blocked__since")),
            blocked_last=Max(Coalesce(KT("blocked__last"), KT("blocked__since"))),
            next_attempt=Min("chain__due_at"),
            text=Max("cause"),
            code=Max(KT("blocked__code")),
            waits_for=Max(KT("blocked__waits_for")),
            example=Max("workflow_id"),
        )
    ]


def _run_group(row: Any, *, is_bounded: bool) -> FailureGroup:
    counted = {
        "workflow": row["workflow"],
        "example": row["example"],
        "count": min(row["count"], MAX_COUNTED),
        "is_bounded": is_bounded,
    }
    if not row["is_blocked"]:
        return FailureGroup(
            kind="run",
            fault=row["fault"],
            cause=row["text"],
            since=row["closed_since"],
            last=row["closed_last"],
            **counted,
        )
    # A mark that another program wrote has no cause.
    code = row["code"] or "blocked"
    return FailureGroup(
        kind="blocked",
        fault=row["fault"] or code,
        cause=row["text"] or code,
        code=code,
        waits_for=row["waits_for"],
        since=_parse(row["blocked_since"]),
        last=_parse(row["blocked_last"]),
        next_attempt=row["next_attempt"],
        **counted,
    )


def _failing_tasks(tasks: Any) -> Iterator[FailureGroup]:
    failing = tasks.filter(fault__isnull=False, cause__isnull=False)
    for row in _grouped(
        failing,
        ("fault", "activity"),
        since=(Min, Coalesce("failing_since", "failed_at")),
        last=(Max, F("failed_at")),
        next_attempt=(Min, _NEXT_ATTEMPT),
        cause=(Max, F("cause")),
        example=(Max, F("id")),
    ):
        # The name of the activity of a background task is ``task:<dotted path>``.
        path, cause = row["activity"].partition(":")[2], row["cause"].removeprefix(f"{row['activity']}: ")
        yield FailureGroup(kind="task", workflow=path, **{**row, "cause": cause, "example": str(row["example"])})


def _failed_tasks(tasks: Any, now: datetime) -> Iterator[FailureGroup]:
    failed = tasks.filter(fault__isnull=False, finished_at__gte=now - _RECENT_PERIOD)
    for row in _grouped(
        failed,
        ("task", "fault"),
        scans=True,
        since=(Min, F("finished_at")),
        last=(Max, F("finished_at")),
        cause=(Max, F("cause")),
    ):
        yield FailureGroup(kind="task", workflow=row.pop("task"), example="", **row)


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


# --- unreadable rows --------------------------------------------------------------------------------------------------
#
# Rows that no process can read, for ``doctor``: other programs wrote them, or a damaged copy was restored.


#: Rows of a table that are looked at, the newest first; rows that are reported of each table.
_MAX_ROWS, _MAX_REPORTED = 2_000, 50
#: Tables in which a time makes work due. A row with a time after all others is found however old it is: no worker
#: claims it.
_DUE = (Chain, ActivityTask, Schedule, Outbox, HumanTask)


def unreadable_rows(alias: str) -> Iterator[UnreadableRow]:
    """Yield the rows of this package that cannot be read; of each table the newest rows are looked at.

    No value leaves this function.
    """
    for model in apps.get_app_config("temporalex_django").get_models():
        if model._meta.proxy:  # noqa: SLF001 - Django documents it
            continue
        # Of the rows of one run, such as its events, the first one stands for all with the same columns.
        first: dict[tuple[Any, ...], models.Model] = {}
        for row in _candidates(model, alias):
            if columns := (*unreadable_columns(row),):
                first[columns, getattr(row, "run_id", None) or row.pk] = row
        for (columns, _), row in islice(first.items(), _MAX_REPORTED):
            yield _describe(row, columns, alias)


def _candidates(model: type[models.Model], alias: str) -> Iterator[models.Model]:
    rows: QuerySet[models.Model] = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    seen = set()
    # One by one: two thousand rows may hold gigabytes of payloads.
    for row in rows.order_by("-pk")[:_MAX_ROWS].iterator(chunk_size=100):
        seen.add(row.pk)
        yield row
    if model in _DUE:
        outside = Q()
        for field in model._meta.local_concrete_fields:  # noqa: SLF001 - as above
            if isinstance(field, SafeDateTimeField):
                outside |= Q(**{f"{field.name}__lte": BEFORE_ALL}) | Q(**{f"{field.name}__gte": AFTER_ALL})
        yield from (row for row in rows.filter(outside)[:_MAX_REPORTED] if row.pk not in seen)


def _describe(row: models.Model, columns: Sequence[str], alias: str) -> UnreadableRow:
    key = row._meta.pk  # noqa: SLF001 - Django documents it
    fields = getattr(key, "fields", [key])
    condition = " AND ".join(f"{field.column} = {_literal(getattr(row, field.attname), alias)}" for field in fields)
    runs = Instance.objects.using(alias)
    if isinstance(row, Instance):
        runs = runs.filter(pk=row.pk)
    elif isinstance(row, Chain):
        runs = runs.filter(chain_id=row.pk)
    elif (run := getattr(row, "run_id", None)) is not None:
        runs = runs.filter(pk=run)
    elif (chain := getattr(row, "chain_id", None)) is not None:
        runs = runs.filter(chain_id=chain)
    else:
        runs = runs.none()
    return UnreadableRow(
        table=row._meta.db_table,  # noqa: SLF001 - as above
        columns=columns,
        condition=condition,
        id=runs.order_by("-pk").values_list("workflow_id", flat=True).first() or "",
    )


def _literal(value: Any, alias: str) -> str:
    """Return a key as SQL, in the form in which the database stores it."""
    if isinstance(value, UUID) and not connections[alias].features.has_native_uuid_field:
        value = value.hex
    if isinstance(value, (str, UUID)):
        return "'" + str(value).replace("'", "''") + "'"
    return str(value)
