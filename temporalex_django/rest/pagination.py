"""Pages by cursor: ids of runs sort by when they were started, so a page costs the same wherever it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

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
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200

    def decode_cursor(self, request: Request) -> Any:
        try:
            cursor = super().decode_cursor(request)
            if cursor is not None and cursor.position is not None:
                UUID(str(cursor.position))
        except (NotFound, ValueError):
            raise ValidationError({"cursor": "this is no cursor that a page gave"}) from None
        return cursor

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
