"""Paging: many rows, read in pieces.

No statement holds them all, and no cursor stays open on the server, where a pooler would lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

_SIZE = 500


def iterate_pages(rows: QuerySet[Any, Any], *, by: str, size: int = _SIZE) -> Iterator[Any]:
    """Yield all rows in the order of the column ``by`` (``-id``: descending).

    The column is unique among the rows, and an attribute of each.
    """
    column, lookup = by.lstrip("-"), "lt" if by.startswith("-") else "gt"
    rows, page = rows.order_by(by), list(rows.order_by(by)[:size])
    while page:
        yield from page
        if len(page) < size:
            return
        # By key, not by offset: rows that are deleted meanwhile must not shift the next page.
        page = list(rows.filter(**{f"{column}__{lookup}": getattr(page[-1], column)})[:size])
