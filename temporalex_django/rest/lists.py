"""Lists over HTTP: filters and pages."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import Q, QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from temporalex_django.core.names import check_time
from temporalex_django.forms.run_filters import RunFilter, select_runs
from temporalex_django.models import HumanTask, Instance
from temporalex_django.operations.read.run_filters import columns, limit_to_range

# --- pagination -------------------------------------------------------------------------------------------------------
#
# Pages that begin at a cursor, so that each page costs the same, wherever it is.
#
# Run ids sort by the time of their start, so an id can be a cursor.


#: Sizes of pages of things that are numbered within a run, such as events.
DEFAULT_PAGE_ROWS = 200
MAX_PAGE_ROWS = 1000
#: A page ends earlier when it would be larger, but has at least one item.
MAX_PAGE_BYTES = 4_000_000


def count_fitting(sizes: Sequence[int]) -> int:
    """Return how many of the first items fit on a page of ``MAX_PAGE_BYTES``, at least 1.

    ``sizes`` are the sizes of the items in bytes.
    """
    return max(1, sum(total <= MAX_PAGE_BYTES for total in accumulate(sizes)))


class NewestFirstPagination(CursorPagination):
    """Pages of rows by ``?cursor=`` and ``?limit=``, newest first unless ``order`` says otherwise.

    A cursor that is not from a link of a page gets status 400.
    """

    ordering = "-id"
    #: Order of runs, or None for other rows. Runs are paged by ids and places (see ``IndexOrderedQuerySet``).
    order: str | None = None
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200

    def decode_cursor(self, request: Request) -> Any:
        try:
            cursor = super().decode_cursor(request)
            if cursor is not None and cursor.position is not None:
                self._parse_position(str(cursor.position))
        except (NotFound, ValueError):
            raise ValidationError(
                {"cursor": "This is not a valid cursor. Use `next` or `previous` of a page."}
            ) from None
        return cursor

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        if self.order is None:
            return (self.ordering,)
        return columns(self.order)

    def _parse_position(self, position: str) -> UUID | datetime | str:
        """Return the run id, or the time, at which a page begins. Raises ``ValueError`` for another text."""
        is_by_id = self.order is None or columns(self.order)[0].lstrip("-") == "pk"
        if is_by_id:
            return UUID(position)
        return _parse_aware_datetime(position)

    def limit_to_page(self, runs: QuerySet[Instance], request: Request) -> QuerySet[Instance]:
        """Restrict the runs to a range of time that contains the requested page, which makes the query cheaper.

        This matters for runs in the order of their closing; other runs are returned as they are.
        """
        assert self.order is not None
        cursor = self.decode_cursor(request)
        order, position = self.order, None
        if cursor is not None and cursor.reverse:
            # A previous page is read backwards from the cursor.
            order = order[1:] if order.startswith("-") else f"-{order}"
        if cursor is not None and cursor.position is not None:
            position = self._parse_position(str(cursor.position))
        # DRF reads one row more than the page has, to know if another page follows.
        size = (self.get_page_size(request) or self.page_size) + 1
        offset = 0 if cursor is None else cursor.offset
        return limit_to_range(runs, order, position if isinstance(position, datetime) else None, rows=size + offset)

    def order_rows(self, rows: Mapping[UUID, Instance]) -> list[Instance]:
        """Return the rows of the requested page in the order of the page; ``rows`` has them by run id.

        Runs that were deleted after the page was found are left out.
        """
        # The page and its rows are two statements: a run may be deleted between them, and the links are made of
        # ``self.page``.
        self.page = [position for position in self.page or [] if position["pk"] in rows]
        return [rows[position["pk"]] for position in self.page]

    def fit_page(self, rendered: Sequence[Any]) -> Sequence[Any]:
        """Return the rendered items that fit on a page of ``MAX_PAGE_BYTES`` bytes, and leave out the others.

        The link to the next page, or to the previous one, is set so that it begins with the items that are left out.
        """
        page: list[Any] = self.page or []
        sizes = [len(json.dumps(rendered_row, default=str)) for rendered_row in rendered]
        is_reverse = self.cursor is not None and self.cursor.reverse
        count = count_fitting(sizes[::-1] if is_reverse else sizes)
        if count >= len(rendered):
            return rendered
        if is_reverse:  # the page reads up to the cursor: what it leaves out comes before it
            # DRF makes the link from these attributes: move the border to the first item that is left out.
            next_row = page[-count - 1]
            self.page, self.has_previous = page[-count:], True
            self.previous_position = self._get_position_from_instance(next_row, self.ordering)
            return rendered[-count:]
        self.page, self.has_next = page[:count], True
        self.next_position = self._get_position_from_instance(page[count], self.ordering)
        return rendered[:count]


class ByNamePagination(NewestFirstPagination):
    """Pages of rows that are sorted by their unique ``name``, such as schedules, by ``?cursor=`` and ``?limit=``."""

    ordering = "name"

    def _parse_position(self, position: str) -> str:
        # Databases refuse some characters in parameters.
        if not position.isprintable():
            raise ValueError(position)
        return position


class LatestSlotPagination(NewestFirstPagination):
    """Pages of the slots (times to fire) of one schedule by ``?cursor=`` and ``?limit=``, the latest first."""

    ordering = "-at"

    def _parse_position(self, position: str) -> datetime:
        return _parse_aware_datetime(position)


class DueFirstPages:
    """Pages of human tasks by ``?cursor=``: earliest due time first, and tasks without a due time last.

    The cursor contains the position of the last task of the page before.
    """

    def __init__(self, cursor: str | None, *, limit: int) -> None:
        """Decode the cursor, which is None for the first page; ``limit`` is the number of tasks of a page.

        Raises ``ValidationError`` for a cursor that no page returned.
        """
        self.limit = limit
        self.position = None if cursor is None else _decode_cursor(cursor)

    def page(self, tasks: QuerySet[HumanTask]) -> tuple[list[HumanTask], str | None]:
        """Return ``(tasks, cursor of the next page or None)``: at most ``limit`` tasks from the cursor on. One read."""
        tasks_read = [
            *(tasks if self.position is None else tasks.filter(_after_position(*self.position)))[: self.limit + 1]
        ]
        has_next = len(tasks_read) > self.limit
        return tasks_read[: self.limit], _encode_cursor(tasks_read[self.limit - 1]) if has_next else None


def _after_position(due_at: datetime | None, opened_at: datetime, task_id: UUID) -> Q:
    """Return the condition for later tasks in a list by due time; those never due (None) come last."""
    is_later = Q(opened_at__gt=opened_at) | Q(opened_at=opened_at, pk__gt=task_id)
    if due_at is None:
        return Q(due_at=None) & is_later
    # Tasks without a due time come last, and no comparison with NULL is true in SQL: name them explicitly.
    return Q(due_at__gt=due_at) | Q(due_at=None) | (Q(due_at=due_at) & is_later)


def _encode_cursor(task: HumanTask) -> str:
    due_at = None if task.due_at is None else task.due_at.isoformat()
    return urlsafe_b64encode(json.dumps([due_at, task.opened_at.isoformat(), str(task.pk)]).encode()).decode()


def _decode_cursor(cursor: str) -> tuple[datetime | None, datetime, UUID]:
    try:
        due_at, opened_at, task_id = json.loads(urlsafe_b64decode(cursor.encode()))
        return (
            None if due_at is None else _parse_aware_datetime(due_at),
            _parse_aware_datetime(opened_at),
            UUID(task_id),
        )
    except (ValueError, TypeError, AttributeError):
        raise ValidationError({"cursor": "This is not a valid cursor. Use `next` or `previous` of a page."}) from None


def _parse_aware_datetime(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    # A naive time would be compared in the zone of the project, and skip or repeat tasks.
    if moment.tzinfo is None:
        raise ValueError(text)
    return check_time(moment, label="cursor")


def filter_runs(
    filterset_class: type[RunFilter], parameters: Mapping[str, str], runs: QuerySet[Instance]
) -> QuerySet[Instance]:
    """Return the ``runs`` that match the filters in the query string of a client.

    Raises ``ValidationError`` of DRF for an unknown filter, and for a value that a filter does not take.
    """
    try:
        return select_runs(filterset_class, parameters, runs)
    except DjangoValidationError as exc:
        raise ValidationError(exc.message_dict) from None
