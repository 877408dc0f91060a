"""In which order runs are listed, a page after the other: when they were started, closed, or go on by themselves.

A page begins behind a place (the value of the column, and the id), so that it costs the same wherever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from temporalex_django.authoring.listing import NEWEST_FIRST
from temporalex_django.models import Instance

Runs = QuerySet[Instance]
Place = tuple[Any, UUID]

#: So many ids are found in one go where they are the order, a quarter of it in another one. For a hundred PostgreSQL
#: would walk by the order and hope; for all it would read everything.
FETCH_SIZE: Final = 1000
#: Attribute of a row by which it is told where in the order it stands, by the words of ``authoring.listing.ORDERS``.
_COLUMNS: Mapping[str, str] = {"started": "pk", "closed": "closed_at", "due": "goes_on_at"}
#: When runs closed is known by ranges of pages alone: it is looked for near the place first.
_TIME_RANGES: Final = (timedelta(days=1), timedelta(days=30))


def columns(order: str) -> tuple[str, ...]:
    """For ``order_by`` of runs that are ``order_runs``: the last is the id."""
    sign, column = ("-" if order.startswith("-") else ""), _COLUMNS[order.lstrip("-")]
    return (f"{sign}{column}",) if column == "pk" else (f"{sign}{column}", f"{sign}pk")


def order_runs(runs: Runs, order: str) -> Runs:
    """Those that have a place in that order: only closed runs closed at some time, and so on."""
    match order.lstrip("-"):
        case "closed":
            runs = runs.filter(closed_at__isnull=False)
        case "due":
            # by the run alone: with a second column that agrees PostgreSQL would expect next to none
            runs = runs.filter(current_of__due_at__isnull=False).annotate(goes_on_at=F("current_of__due_at"))
    return runs.order_by(*columns(order))


def after_place(runs: Runs, order: str, place: Place) -> Runs:
    """What comes after a place, of runs that are ``order_runs``."""
    column, lookup = columns(order)[0].lstrip("-"), "lt" if order.startswith("-") else "gt"
    value, pk = place
    if column == "pk":
        return runs.filter(**{f"pk__{lookup}": pk})
    condition = Q(**{f"{column}__{lookup}": value}) | Q(**{column: value, f"pk__{lookup}": pk})
    return runs.filter(condition, **{f"{column}__{lookup}e": value})


def fetch_size(order: str, size: int) -> int:
    """How many to ask for in one go where so many are wanted."""
    return max(size, (FETCH_SIZE if columns(order)[0].lstrip("-") == "pk" else FETCH_SIZE // 4) + 1)


def limit_to_range(runs: Runs, order: str, at: datetime | None, *, rows: int) -> Runs:
    """The same as far as its first ``rows`` are asked for; ``at``: where they begin, None: at the beginning.

    At most three statements, where the order is that in which runs closed; none otherwise.
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
        if len(near_runs.filter(condition).order_by().values("pk")[:rows]) >= rows:
            return near_runs
    return runs


def _first_time(alias: str, *, newest: bool) -> datetime:
    """No run closed before the first was started."""
    created = Instance.objects.using(alias).order_by("pk").values_list("created_at", flat=True)
    return (None if newest else created.first()) or timezone.now()


class IndexOrderedQuerySet:
    """What a paginator asks runs for (``filter``, ``order_by``, a slice), of which it gets ids and places alone.

    More are found than a page has: of a limit of fifty PostgreSQL hopes to meet so many soon if it walks by the order,
    and then reads the whole table where there are few of them.
    """

    def __init__(self, runs: Runs, order: str) -> None:
        self.runs, self.order = runs, order

    def order_by(self, *names: str) -> IndexOrderedQuerySet:
        """In another direction, say."""
        return IndexOrderedQuerySet(self.runs.order_by(*names), self.order)

    def filter(self, *conditions: Any, **lookups: Any) -> IndexOrderedQuerySet:
        """Narrower."""
        return IndexOrderedQuerySet(self.runs.filter(*conditions, **lookups), self.order)

    def __getitem__(self, part: slice) -> list[dict[str, Any]]:
        """Rows of ``pk`` and the column of the order. One read."""
        start, stop = part.start or 0, part.stop
        rows = self.runs.values(*(name.lstrip("-") for name in columns(self.order)))
        return [*rows[start : start + fetch_size(self.order, stop - start)]][: stop - start]


def iterate_runs(runs: Runs, order: str = NEWEST_FIRST, *, size: int) -> Iterator[Instance]:
    """All of them, read in pages of that ``size`` as they are asked for."""
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
