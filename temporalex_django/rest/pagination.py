"""Pages by cursor: a page costs the same wherever it is. Ids of runs sort by when they were started."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from temporalex_django.actions.ordering import columns, limit_to_range
from temporalex_django.models import HumanTask, Instance

#: Of what is counted within a run: events, and the like.
ROWS_A_PAGE = 200
MOST_ROWS_A_PAGE = 1000
#: A page ends earlier when it would be larger; one item is always there.
BYTES_A_PAGE = 4_000_000


def fitting(sizes: Sequence[int]) -> int:
    """How many of the first items, of so many bytes each, make a page."""
    return max(1, sum(total <= BYTES_A_PAGE for total in accumulate(sizes)))


class NewestFirst(CursorPagination):
    """``?cursor=`` and ``?limit=``. A cursor that is not ours is 400."""

    ordering = "-id"
    #: Of runs, in which case what it pages through are ids and places (see ``actions.ordering.IndexOrderedQuerySet``).
    order: str | None = None
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200

    def decode_cursor(self, request: Request) -> Any:
        try:
            cursor = super().decode_cursor(request)
            if cursor is not None and cursor.position is not None:
                self._place(str(cursor.position))
        except (NotFound, ValueError):
            raise ValidationError({"cursor": "this is no cursor that a page gave"}) from None
        return cursor

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        return (self.ordering,) if self.order is None else columns(self.order)

    def _place(self, position: str) -> UUID | datetime:
        """Raises ``ValueError``."""
        by_id = self.order is None or columns(self.order)[0].lstrip("-") == "pk"
        return UUID(position) if by_id else _aware(position)

    def near(self, runs: QuerySet[Instance], request: Request) -> QuerySet[Instance]:
        """The same runs, as far as a page of them needs (see ``ordering.limit_to_range``)."""
        assert self.order is not None
        cursor = self.decode_cursor(request)
        order, at = self.order, None
        if cursor is not None and cursor.reverse:
            order = order[1:] if order.startswith("-") else f"-{order}"
        if cursor is not None and cursor.position is not None:
            at = self._place(str(cursor.position))
        size = (self.get_page_size(request) or self.page_size) + 1
        offset = 0 if cursor is None else cursor.offset
        return limit_to_range(runs, order, at if isinstance(at, datetime) else None, rows=size + offset)

    def keep(self, rows: Mapping[UUID, Instance]) -> list[Instance]:
        """The rows of the page in its order; those that are gone since it was found are left out."""
        self.page = [one for one in self.page or [] if one["pk"] in rows]
        return [rows[one["pk"]] for one in self.page]

    def cut(self, items: Sequence[Any]) -> Sequence[Any]:
        """As many of the rendered items of the page as fit; the links to its neighbours take the others along."""
        page: list[Any] = self.page or []
        sizes = [len(json.dumps(item, default=str)) for item in items]
        backwards = self.cursor is not None and self.cursor.reverse
        count = fitting(sizes[::-1] if backwards else sizes)
        if count >= len(items):
            return items
        if backwards:  # the page reads up to the cursor: what it leaves out comes before it
            left = page[-count - 1]
            self.page, self.has_previous = page[-count:], True
            self.previous_position = self._get_position_from_instance(left, self.ordering)
            return items[-count:]
        self.page, self.has_next = page[:count], True
        self.next_position = self._get_position_from_instance(page[count], self.ordering)
        return items[:count]


class FirstDue:
    """Pages of human tasks, those first that are due first, and those at last that are never.

    ``?cursor=`` says behind which one a page begins, so that it costs the same wherever it is.
    """

    def __init__(self, cursor: str | None, *, limit: int) -> None:
        """Raises ``ValidationError`` for a cursor that is not ours."""
        self.limit = limit
        self.place = None if cursor is None else _place(cursor)

    def page(self, tasks: QuerySet[HumanTask]) -> tuple[list[HumanTask], str | None]:
        """The next ones, and the cursor of the page behind them. One read."""
        found = [*(tasks if self.place is None else tasks.filter(_behind(*self.place)))[: self.limit + 1]]
        more = len(found) > self.limit
        return found[: self.limit], _cursor(found[self.limit - 1]) if more else None


def _behind(due: datetime | None, opened: datetime, key: UUID) -> Q:
    later = Q(opened_at__gt=opened) | Q(opened_at=opened, pk__gt=key)
    if due is None:
        return Q(due_at=None) & later
    return Q(due_at__gt=due) | Q(due_at=None) | (Q(due_at=due) & later)


def _cursor(task: HumanTask) -> str:
    due = None if task.due_at is None else task.due_at.isoformat()
    return urlsafe_b64encode(json.dumps([due, task.opened_at.isoformat(), str(task.pk)]).encode()).decode()


def _place(cursor: str) -> tuple[datetime | None, datetime, UUID]:
    try:
        due, opened, key = json.loads(urlsafe_b64decode(cursor.encode()))
        return None if due is None else _aware(due), _aware(opened), UUID(key)
    except (ValueError, TypeError, AttributeError):
        raise ValidationError({"cursor": "this is no cursor that a page gave"}) from None


def _aware(said: str) -> datetime:
    found = datetime.fromisoformat(said)
    if found.tzinfo is None:
        raise ValueError(said)
    return found
