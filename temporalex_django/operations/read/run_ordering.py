"""Pagination of runs in the order in which they were started, were closed, or continue by themselves.

A page starts after a place (the value of the column, and the id), so every page costs the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from temporalex_django.authoring.run_filters import NEWEST_FIRST
from temporalex_django.models import Instance

Runs = QuerySet[Instance]
Place = tuple[Any, UUID]

#: Ids to fetch at once where ids are the order; in other orders a quarter of this. For a limit of a hundred, PostgreSQL
#: would read in the order and expect to meet matches soon. Without a limit it would read everything.
FETCH_SIZE: Final = 1000
#: Column that is the place of a row, by the names of ``authoring.run_tables.run_filters.ORDER_PLACES``.
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
    """Return the time from which on a list of runs that is sorted by the time of closing has to be read.

    With ``newest`` (the newest runs first) this is now. Else it is when the first run was started, because no run
    closed before that.
    """
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
