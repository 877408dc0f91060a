"""Lists of runs: filters, orders and annotations."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    FilteredRelation,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.functions import Cast, Coalesce, RowNumber, StrIndex
from django.utils import timezone

from temporalex_django.access import is_unfiltered
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.run_filters import NEWEST_FIRST, WAIT_PREFIXES, SearchCondition, parse_conditions
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.db.run_reader import semi_join
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import (
    ActivityTask,
    Chain,
    FailedAttempt,
    Instance,
    Message,
    OperatorAction,
    SearchAttribute,
    SwitchedOff,
)
from temporalex_django.models.runs import AWAITED_KINDS, UNSUCCESSFUL_STATUSES
from temporalex_django.operations.fleet.stats import LiveWorkers, live_workers
from temporalex_django.operations.read.failure_groups import faults_of, not_replaced, run_failure_groups, with_faults
from temporalex_django.present.view_models import LATE_PERIOD

# --- run filters ------------------------------------------------------------------------------------------------------
#
# The queries of the filters of runs: one for each row of ``authoring.run_filters.RUN_FILTERS``.
#
# Each function takes a queryset of runs and returns a restricted one. None of them reads anything, except that
# ``stuck_runs`` reads the workers, and ``with_cause`` the keys of a group. Columns of runs that turns rewrite have no
# index, so open runs are distinguished by reading their rows, or by an index of chains or activities. Everything else
# is found by an index, or by the position of a run's id among the others.


Runs = QuerySet[Instance]

_MANY_ATTEMPTS = 5
#: A run's id comes from the clock of the process that starts it, and ``created_at`` from the clock of the database. The
#: two never differ by more than this.
_CLOCK_TOLERANCE = timedelta(days=1)
_MAX_MILLISECONDS = 1 << 48
#: Code points that cannot occur in text.
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000


def with_status(runs: Runs, statuses: Collection[str]) -> Runs:
    """Return the runs that have one of these statuses.

    Statuses of runs that ended without a result have an index.
    """
    sorted_statuses = sorted(statuses)
    if UNSUCCESSFUL_STATUSES.issuperset(sorted_statuses):
        if len(sorted_statuses) == 1:
            return runs.filter(ended=sorted_statuses[0])
        return runs.filter(ended__in=sorted_statuses)
    matching_runs = (
        runs.filter(status=sorted_statuses[0]) if len(sorted_statuses) == 1 else runs.filter(status__in=sorted_statuses)
    )
    alias = runs.db
    # These statuses have no index, because turns rewrite them. Every such run also has a row that an index finds.
    if sorted_statuses == ["running"]:
        return semi_join(
            matching_runs, _stopped_run_ids(alias).union(_run_ids_with_activities(alias), _run_ids_with_children(alias))
        )
    if sorted_statuses == ["pending"]:
        return semi_join(matching_runs, _stopped_run_ids(alias).union(_due_run_ids(alias)))
    return matching_runs


def stuck_runs(runs: Runs, *, live: LiveWorkers | None = None) -> Runs:
    """Return the runs that need the attention of a person.

    A run is stuck if:

    - it is blocked;
    - it has an activity that fails again and again, or that no live worker takes;
    - it has a failed message;
    - it is due and no worker takes it.

    Work that waits for a switch does not count. One read, of the workers, unless ``live`` has them.
    """
    due_before, alias = timezone.now() - LATE_PERIOD, runs.db
    waiting_tasks = ActivityTask.objects.using(alias).filter(owner=None, atomic=False, chain__isnull=False)
    untaken_tasks = waiting_tasks.filter(
        Q(due_at__lt=due_before) & (live_workers(alias=alias) if live is None else live).unpolled_tasks()
        | Q(waits_for__isnull=False)
    )
    untaken_tasks = (
        untaken_tasks.exclude(queue__in=_switched_off_names("queue", alias))
        .exclude(activity__in=_switched_off_names("activity", alias))
        .exclude(queue__in=_switched_off_names("hold", alias).filter(key="", until__gt=timezone.now()))
    )
    due_chains = Chain.objects.using(alias).filter(due_at__lt=due_before, closed=False, paused=False)
    blocked_runs = Instance.objects.using(alias).filter(blocked__isnull=False)
    return semi_join(
        runs,
        blocked_runs.exclude(blocked__code=WorkflowSwitchedOff.code)
        .order_by()
        .values("pk")
        .union(
            ActivityTask.objects.using(alias).filter(attempt__gt=_MANY_ATTEMPTS).order_by().values("run_id"),
            untaken_tasks.order_by().values("run_id"),
            Message.objects.using(alias).failed().order_by().values("chain__run_id"),
            due_chains.exclude(queue__in=_switched_off_names("queue", alias)).order_by().values("run_id"),
        ),
    )


def with_cause(runs: Runs, cause: str) -> Runs:
    """Return the runs that failed or are blocked with this cause, or have an activity that fails with it.

    These are the runs of the failure groups to which the cause belongs. A run that was reset or replaced is in none.
    Two reads find the groups, and indexes find the runs.
    """
    alias = runs.db
    faults = faults_of(cause, alias=alias)
    failed_runs = not_replaced(with_faults(Instance.objects.using(alias), cause, faults))
    tasks = with_faults(ActivityTask.objects.using(alias), cause, faults)
    return semi_join(runs, failed_runs.order_by().values("pk").union(tasks.order_by().values("run_id")))


def _switched_off_names(kind: str, alias: str) -> QuerySet[Any]:
    """Return a subquery of names; ``kind`` is "queue", "activity", "workflow" or "hold"."""
    return SwitchedOff.objects.using(alias).filter(kind=kind).order_by().values("name")


def waiting_for(runs: Runs, kind: str) -> Runs:
    """Return the open runs that wait for something of this kind, by an index that keeps the order of the runs.

    ``kind`` is one of ``authoring.run_filters.WAIT_KINDS``, such as "signal" or "activity".
    """
    # Activities have rows. Runs that only call activities are the fastest ones, so their turns mark nothing.
    if kind in AWAITED_KINDS:
        chains = Chain.objects.using(runs.db).filter(**{f"awaits_{kind}": True})
        run_ids = chains.order_by().values("run_id")
    else:
        run_ids = _run_ids_with_activities(runs.db)
    # A run with a mark, or with an activity, may wait for something else now. PostgreSQL estimates that LIKE matches
    # hardly any run. It would then sort a page of many rows instead of reading it in order.
    waiting_text = Cast("waiting_for", TextField())
    positions = [StrIndex(waiting_text, Value(f'"{word}')) for word in WAIT_PREFIXES[kind]]
    runs = runs.alias(said_at=sum(positions[1:], start=positions[0])).filter(said_at__gt=0)
    # Not ``semi_join``: many runs may wait, and PostgreSQL would put all of them into an array first.
    return runs.filter(pk__in=run_ids).exclude(status__in=CLOSED_STATUSES)


def _due_run_ids(alias: str) -> QuerySet[Any]:
    """Return a subquery of runs that continue by themselves, now or later; an index finds them."""
    return Chain.objects.using(alias).filter(due_at__isnull=False).order_by().values("run_id")


def _run_ids_with_activities(alias: str) -> QuerySet[Any]:
    return ActivityTask.objects.using(alias).order_by().values("run_id")


def _run_ids_with_children(alias: str) -> QuerySet[Any]:
    """Return a subquery of the parents of open runs, by an index of child runs."""
    children = Instance.objects.using(alias).filter(parent_run__isnull=False, closed_at__isnull=True)
    return children.order_by().values("parent_run_id")


def _stopped_run_ids(alias: str) -> QuerySet[Any]:
    """Return a subquery by indexes. Combine it with due runs: a stopped run is never due."""
    run_ids = Instance.objects.using(alias).order_by().values("pk")
    return run_ids.filter(blocked__isnull=False).union(run_ids.filter(paused__isnull=False)).order_by()


#: Lookup of each filter by a time.
TIME_LOOKUPS: Final[Mapping[str, str]] = {
    "created_after": "created_at__gte",
    "created_before": "created_at__lt",
    "closed_after": "closed_at__gte",
    "closed_before": "closed_at__lt",
}
#: Bounds of the ids of runs that follow from a filter by a time. Ids sort by the time of the start, so no other runs
#: are read. A run that was closed before a time was started before it, too.
_ID_BOUNDS: Final[Mapping[str, tuple[str, timedelta]]] = {
    "created_after": ("pk__gte", -_CLOCK_TOLERANCE),
    "created_before": ("pk__lt", _CLOCK_TOLERANCE),
    "closed_before": ("pk__lt", _CLOCK_TOLERANCE),
}


def with_time(runs: Runs, moment: datetime, *, name: str) -> Runs:
    """Return the runs that were created or closed after or before ``moment``, by the filter ``name``.

    ``name`` is a key of ``TIME_LOOKUPS``, such as ``created_after``.

    *After* includes the time itself, *before* does not.
    """
    lookups: dict[str, Any] = {TIME_LOOKUPS[name]: moment}
    if name in _ID_BOUNDS:
        lookup, margin = _ID_BOUNDS[name]
        lookups[lookup] = _first_id(moment, margin)
    return runs.filter(**lookups)


def with_tag(runs: Runs, tag: str) -> Runs:
    """Return the runs whose ``tags`` contain that tag."""
    if "\0" in tag:
        # No database keeps a NUL character, so no tag contains one.
        return runs.none()
    # Only PostgreSQL has an index for this condition; the rest of the function matches the stored text.
    if connections[runs.db].features.supports_json_field_contains:
        return runs.filter(tags__contains=[tag])
    tags_text, condition = Cast("tags", TextField()), Q()
    # A tag is the first of the list, or follows the end of another one. Checking what comes before it is necessary: the
    # end of a tag that contains a quote looks like a tag of its own. The spaces and, in SQLite, the encoding of letters
    # outside of ASCII depend on the writer of the row, so all forms are tried.
    for encoded_tag in dict.fromkeys((json.dumps(tag, ensure_ascii=False), json.dumps(tag))):
        for opening in ("[", '", ', '",'):
            # A position instead of LIKE, which ignores case in SQLite.
            position_alias = f"tag_at_{len(condition)}"
            runs = runs.alias(**{position_alias: StrIndex(tags_text, Value(opening + encoded_tag))})
            condition |= Q(**{position_alias: 1}) if opening == "[" else Q(**{f"{position_alias}__gt": 0})
    return runs.filter(condition, tags__isnull=False)


def current_runs(runs: Runs) -> Runs:
    """Return the current run of each chain.

    This is not a join. For a join on two columns, PostgreSQL expects hardly any matching run. It would then sort a
    page of many rows instead of reading it in order.
    """
    chains = Chain.objects.using(runs.db).filter(pk=OuterRef("chain_id"), run_id=OuterRef("pk"))
    return runs.filter(Coalesce(Exists(chains), Value(value=False)))


def with_attributes(runs: Runs, conditions: Sequence[SearchCondition]) -> Runs:
    """Return the runs for which all of the conditions on search attributes hold.

    Each attribute of a run is a row of another table, which is found by an index. It is joined once, with all of its
    conditions.
    """
    # Not one pass that groups the rows by run and counts those that match: it would read all rows that match any of the
    # conditions, even if one of them matches next to none. With joins, the rarest value comes first.
    comparisons: dict[str, list[SearchCondition]] = {}
    for condition in conditions:
        # An attribute with several values has a row for each, and a join would return the run once per row.
        if condition.several:
            rows = Q(workflow=condition.workflow, name=condition.name) & _condition_on(condition, alias=runs.db)
            runs = runs.filter(Exists(SearchAttribute.objects.using(runs.db).filter(rows, run=OuterRef("pk"))))
        else:
            comparisons.setdefault(condition.name, []).append(condition)
    for number, (name, of_name) in enumerate(comparisons.items()):
        row = f"searched_{number}"
        attribute_condition = Q(searched__workflow=of_name[0].workflow, searched__name=name)
        runs = runs.alias(**{row: FilteredRelation("searched", condition=attribute_condition)})
        runs = runs.filter(*(_condition_on(condition, row=f"{row}__", alias=runs.db) for condition in of_name))
    return runs


def _condition_on(condition: SearchCondition, *, row: str = "", alias: str) -> Q:
    """Compare the columns of an attribute row, whose prefix ``row`` is empty in a query about attributes."""
    value = Decimal(condition.value) if condition.column == "number" else condition.value
    return _comparison(f"{row}{condition.column}", condition.operator, value, alias=alias)


def _comparison(column: str, operator: str, value: Any, *, alias: str) -> Q:
    """Compare by a lookup such as ``gte``, by "prefix", or for equality if ``operator`` is empty."""
    if operator != "prefix":
        return Q(**{f"{column}__{operator}" if operator else column: value})
    if not connections[alias].features.has_case_insensitive_like:
        return Q(**{f"{column}__startswith": value})
    # The other database is SQLite, which compares text by code points: a prefix is a range there.
    lower_bound, upper_bound = Q(**{f"{column}__gte": value}), _upper_bound(value)
    if upper_bound:
        return lower_bound & Q(**{f"{column}__lt": upper_bound})
    return lower_bound


def _upper_bound(prefix: str) -> str:
    """Return the first text that sorts after all texts with this prefix, or "" if there is none."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    if not stem:
        return ""
    next_code_point = ord(stem[-1]) + 1
    return stem[:-1] + chr(_AFTER_SURROGATES if next_code_point == _SURROGATES else next_code_point)


def with_id_prefix(runs: Runs, prefix: str) -> Runs:
    """Return the runs whose business id starts with the prefix; case matters, and an index finds them."""
    return runs.filter(_comparison("workflow_id", "prefix", prefix, alias=runs.db))


def with_version(runs: Runs, version: int) -> Runs:
    """Return the runs of that version of their class.

    The condition hides from PostgreSQL how many runs match. Most runs may have the version, but none of those that a
    tenant sees. If PostgreSQL knew the number, it would read all runs in order and expect to find a match soon.
    """
    return runs.alias(of_version=Coalesce("version", 0)).filter(of_version=version)


#: Runs of causes that a search finds.
_MAX_FOUND = 1000
_CONDITION = re.compile(r"(\w+)\s*(>=|<=|=|>|<)\s*(.*)", re.DOTALL)
_OPERATOR_NAMES = {"=": "", ">": "__gt", ">=": "__gte", "<": "__lt", "<=": "__lte"}
_MIN_CAUSE_LENGTH = 4


def search_runs(runs: Runs, term: str, *, workflow: str = "") -> Runs:
    """Return the runs that a person means by the text of a search box.

    The text is a run id, the beginning of a business id, the object that the run was started for (``app.model:key``),
    or a part of the cause of a failure of today. With a ``workflow``, it may be a condition on a search attribute, such
    as ``total>=1000``. Raises ``ValueError`` for a condition that the class does not allow. At most four reads.
    """
    alias, match = runs.db, _CONDITION.fullmatch(term)
    if match is not None and workflow in workflows.registry:
        key, operator, value = match.groups()
        try:
            conditions = parse_conditions(
                workflows.find(workflow), {f"{key}{_OPERATOR_NAMES[operator]}": value}, texts=True
            )
        except TypeError as exc:
            raise ValueError(str(exc)) from None
        return with_attributes(runs, conditions)
    condition = _comparison("workflow_id", "prefix", term, alias=alias)
    with suppress(ValueError):
        condition |= Q(pk=UUID(term))
    model, colon, object_id = term.partition(":")
    if colon and model.count(".") == 1:
        app_label, _dot, name = model.partition(".")
        condition |= Q(subject_type__app_label=app_label, subject_type__model=name.lower(), subject_id=object_id)
    if len(term) >= _MIN_CAUSE_LENGTH and (ids := _ids_by_cause(runs, term)):
        condition |= Q(pk__in=ids)
    return runs.filter(condition)


def _ids_by_cause(runs: Runs, term: str) -> list[UUID]:
    """Return the runs of the groups of failures whose cause contains the text."""
    groups = run_failure_groups(runs.db, None if is_unfiltered(runs) else runs, now=timezone.now())
    causes = {group.cause for group in groups if term.casefold() in group.cause.casefold()}
    if not causes:
        return []
    faults = {group.fault for group in groups if group.cause in causes}
    failed_runs = not_replaced(Instance.objects.using(runs.db).filter(fault__in=faults))
    tasks = ActivityTask.objects.using(runs.db).filter(fault__in=faults, run_id__isnull=False)
    return [
        *failed_runs.order_by().values_list("pk", flat=True)[:_MAX_FOUND],
        *tasks.order_by().values_list("run_id", flat=True)[:_MAX_FOUND],
    ]


#: Queries by the names of ``authoring.run_filters.RUN_FILTERS``.
FILTERS: Mapping[str, Callable[[Runs, Any], Runs]] = {
    "id": lambda runs, value: runs.filter(workflow_id=value),
    "status": with_status,
    "workflow": lambda runs, value: runs.filter(workflow=value),
    "version": with_version,
    "queue": lambda runs, value: runs.filter(queue=value),
    "id_prefix": with_id_prefix,
    "blocked": lambda runs, value: runs.filter(blocked__isnull=not value),
    "paused": lambda runs, value: runs.filter(paused__isnull=not value),
    "stuck": lambda runs, value: (
        stuck_runs(runs) if value else runs.exclude(pk__in=stuck_runs(_all_runs(runs)).values("pk"))
    ),
    "cause": with_cause,
    "waits": waiting_for,
    "tag": with_tag,
    "attributes": with_attributes,
    "subject": lambda runs, value: runs.for_subject(value),  # type: ignore[attr-defined] # of the model's queryset class
    **{name: partial(with_time, name=name) for name in TIME_LOOKUPS},
}


def apply_filters(runs: Runs, filters: Mapping[str, Any]) -> Runs:
    """Return the runs for which all filters hold.

    ``filters`` has validated values by the name of the filter, as ``authoring.run_filters.check_filters``
    returns them.
    """
    for name, value in filters.items():
        runs = FILTERS[name](runs, value)
    return runs


def _all_runs(runs: Runs) -> Runs:
    return Instance.objects.using(runs.db).order_by()


def _first_id(moment: datetime, margin: timedelta) -> UUID:
    """Return a valid id for any year that sorts before all runs that start ``margin`` after ``moment`` or later."""
    milliseconds = int((moment.timestamp() + margin.total_seconds()) * 1000)
    return UUID(int=min(max(milliseconds, 0), _MAX_MILLISECONDS - 1) << 80)


# --- run ordering -----------------------------------------------------------------------------------------------------
#
# Pagination of runs in the order in which they were started, were closed, or continue by themselves.
#
# A page starts after a place (the value of the column, and the id), so every page costs the same.


Place = tuple[Any, UUID]

#: Ids to fetch at once where ids are the order; in other orders a quarter of this. For a limit of a hundred, PostgreSQL
#: would read in the order and expect to meet matches soon. Without a limit it would read everything.
FETCH_SIZE: Final = 1000
#: Column that is the place of a row, by the names of ``authoring.run_filters.ORDER_PLACES``.
_COLUMNS: Mapping[str, str] = {"started": "pk", "closed": "closed_at", "due": "goes_on_at"}
#: Ranges of time that are searched first for closed runs. In PostgreSQL, the index on ``closed_at`` (BRIN) knows only
#: ranges of pages.
_TIME_RANGES: Final = (timedelta(days=1), timedelta(days=30))


def columns(order: str) -> tuple[str, ...]:
    """Return the column names for ``order_by`` on runs, for an order such as ``-started``; the last one is the id.

    The runs must come from ``order_runs``, which adds the column for the order "due".
    """
    sign, column = ("-" if order.startswith("-") else ""), _COLUMNS[order.lstrip("-")]
    if column == "pk":
        return (f"{sign}{column}",)
    return (f"{sign}{column}", f"{sign}pk")


def order_runs(runs: Runs, order: str) -> Runs:
    """Sort runs by an order such as ``-started``, and leave out runs that have no value for it.

    For example, open runs have no time at which they were closed. The orders are "started", "closed" and "due"; a
    leading minus reverses them.
    """
    match order.lstrip("-"):
        case "closed":
            runs = runs.filter(closed_at__isnull=False)
        case "due":
            # Join by the run alone. With a second column that must agree, PostgreSQL estimates next to no rows.
            runs = runs.filter(current_of__due_at__isnull=False).annotate(goes_on_at=F("current_of__due_at"))
    return runs.order_by(*columns(order))


def after_place(runs: Runs, order: str, place: Place) -> Runs:
    """Return the runs that come after ``place`` in ``order``: those of the next pages of a list.

    ``place`` is the last row of the page before: a pair of the value by which the runs are sorted, and the run id.
    ``runs`` must be sorted by ``order_runs``.
    """
    column, lookup = columns(order)[0].lstrip("-"), "lt" if order.startswith("-") else "gt"
    value, pk = place
    if column == "pk":
        return runs.filter(**{f"pk__{lookup}": pk})
    condition = Q(**{f"{column}__{lookup}": value}) | Q(**{column: value, f"pk__{lookup}": pk})
    # The second condition follows from the first, but only this simple one can bound the scan of an index.
    return runs.filter(condition, **{f"{column}__{lookup}e": value})


def fetch_size(order: str, size: int) -> int:
    """Return how many rows to request from the database so that it reads ``size`` rows by an index.

    With a smaller limit, PostgreSQL may choose to read the whole table in order; see ``FETCH_SIZE``.
    """
    return max(size, (FETCH_SIZE if columns(order)[0].lstrip("-") == "pk" else FETCH_SIZE // 4) + 1)


def limit_to_range(runs: Runs, order: str, at: datetime | None, *, rows: int) -> Runs:
    """Restrict the runs to a range of time that contains their first ``rows`` rows.

    ``at`` is the time at which the last row of the page before was closed; None for the first page. At most three
    statements where the order is the time of closing, and none otherwise.
    """
    if order.lstrip("-") != "closed":
        return runs
    newest_first, condition = order.startswith("-"), Q()
    if at is not None:
        condition = Q(closed_at__lt=at) if newest_first else Q(closed_at__gt=at)
    start: datetime = at or _first_time(runs.db, newest=newest_first)
    for time_range in _TIME_RANGES:
        near_runs = (
            runs.filter(closed_at__gte=start - time_range)
            if newest_first
            else runs.filter(closed_at__lte=start + time_range)
        )
        # Enough rows in the range: those further away cannot come before them.
        if len(near_runs.filter(condition).order_by().values("pk")[:rows]) >= rows:
            return near_runs
    return runs


def _first_time(alias: str, *, newest: bool) -> datetime:
    """Return the time from which to read a list by closing: now, or the first start, before which no run closed."""
    created = Instance.objects.using(alias).order_by("pk").values_list("created_at", flat=True)
    return (None if newest else created.first()) or timezone.now()


class IndexOrderedQuerySet:
    """A wrapper of a queryset of runs for a paginator; its rows contain only the id and the column of the order.

    It supports ``filter``, ``order_by`` and a slice. It fetches more rows than a page has. For a limit of fifty,
    PostgreSQL would read the runs in order, expecting to meet fifty matches soon. It then reads the whole table if few
    match.
    """

    def __init__(self, runs: Runs, order: str) -> None:
        self.runs, self.order = runs, order

    def order_by(self, *names: str) -> IndexOrderedQuerySet:
        """Return a copy that is sorted by other columns, as ``QuerySet.order_by`` does."""
        return IndexOrderedQuerySet(self.runs.order_by(*names), self.order)

    def filter(self, *conditions: Any, **lookups: Any) -> IndexOrderedQuerySet:
        """Return a copy restricted to the rows that match, as ``QuerySet.filter`` does."""
        return IndexOrderedQuerySet(self.runs.filter(*conditions, **lookups), self.order)

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        """Return the rows of a slice as dicts with ``pk`` and the column by which the runs are sorted. One read."""
        start, stop = part.start or 0, part.stop
        rows = self.runs.values(*(name.lstrip("-") for name in columns(self.order)))
        return [*rows[start : start + fetch_size(self.order, stop - start)]][: stop - start]


def iterate_runs(runs: Runs, order: str = NEWEST_FIRST, *, size: int) -> Iterator[Instance]:
    """Iterate over ``runs`` in an order such as ``-started``, reading pages of ``size`` rows on demand."""
    runs, place = order_runs(runs, order), None
    column = columns(order)[0].lstrip("-")
    while True:
        queryset = runs if place is None else after_place(runs, order, place)
        queryset = limit_to_range(queryset, order, place[0] if place is not None else None, rows=size)
        page = [*queryset[:size]]
        yield from page
        if len(page) < size:
            return
        place = getattr(page[-1], column), page[-1].pk


# --- run annotations --------------------------------------------------------------------------------------------------
#
# Annotations of runs with facts of other tables, so that a page of runs needs few statements.


#: Statuses of closed runs for which more can be said than the time.
STATUSES_WITH_REASON = ("failed", "cancelled", "terminated", "timed_out")


def leading_tasks(runs: Sequence[UUID], *, alias: str, limit: int) -> QuerySet[ActivityTask]:
    """Return the first ``limit`` activity tasks of each run: failed ones first, then in the order of their commands.

    Each row has the number of all activity tasks of its run as ``count``. One query.
    """
    order = [F("failed_at").asc(nulls_last=True), F("seq").asc()]
    rows = ActivityTask.objects.using(alias).filter(run_id__in=runs)
    rows = rows.annotate(
        place=Window(RowNumber(), partition_by=F("run_id"), order_by=order),
        count=Window(Count("*"), partition_by=F("run_id")),
    )
    return rows.filter(place__lte=limit).order_by("run_id", "place")


def annotate_ends(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with how they ended, so that ``RunStateLoader`` needs no further read for it.

    ``ended_with`` has the attributes of the event that closed the run, ``ended_by`` the person who ended it, and
    ``ended_why`` their reason. It also adds the annotation of ``annotate_switches``.
    """
    actions = OperatorAction.objects.filter(run_id=OuterRef("pk"), action__in=("cancel", "terminate"), denied=False)
    last_actions = actions.order_by("-id")
    # The closing attributes of a completed run can be large. Read them only for classes that summarize a result.
    class_names = [cls.name for cls in workflows.concrete_classes() if cls.summary]
    has_reason = Q(status__in=STATUSES_WITH_REASON) | Q(status="completed", workflow__in=class_names)
    return annotate_switches(runs).annotate(
        ended_with=Case(When(has_reason, then=F("closing")), default=None),
        ended_by=Subquery(last_actions.values("actor_name")[:1]),
        ended_why=Subquery(last_actions.values("reason")[:1]),
    )


def annotate_switches(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``anything_off``: True if any switch is off, so that switches have to be read."""
    return runs.annotate(anything_off=Exists(SwitchedOff.objects.all()))


def annotate_messages(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with facts about the messages of their chains.

    ``failed_count`` is the number of failed messages, and ``unread_since`` the time of the oldest unread message.
    """
    unread_messages = Message.objects.filter(chain_id=OuterRef("chain_id"), settled=False, fresh=True).order_by("id")
    return annotate_failed_messages(runs).annotate(unread_since=Subquery(unread_messages.values("created_at")[:1]))


def annotate_failed_messages(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``failed_count``, the number of failed messages of their chains."""
    failed_messages = Message.objects.failed().filter(chain_id=OuterRef("chain_id")).order_by().values("chain_id")
    return runs.annotate(failed_count=Coalesce(Subquery(failed_messages.annotate(n=Count("pk")).values("n")), 0))


def annotate_attempts(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``attempt_count``, the number of the kept attempts of their activities that failed."""
    attempts = FailedAttempt.objects.filter(run=OuterRef("pk")).order_by().values("run")
    return runs.annotate(attempt_count=Coalesce(Subquery(attempts.annotate(n=Count("pk")).values("n")), 0))
