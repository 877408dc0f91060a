"""Many rows, read in pieces.

No statement holds them all, and no cursor stays open on the server (behind a pooler it would be lost).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

_SIZE = 500


def in_pages(rows: QuerySet[Any, Any], *, by: str, size: int = _SIZE) -> Iterator[Any]:
    """All rows in the order of the column ``by`` (``-id``: descending).

    It is unique among them and an attribute of each.
    """
    column, beyond = by.lstrip("-"), "lt" if by.startswith("-") else "gt"
    rows, piece = rows.order_by(by), list(rows.order_by(by)[:size])
    while piece:
        yield from piece
        if len(piece) < size:
            return
        piece = list(rows.filter(**{f"{column}__{beyond}": getattr(piece[-1], column)})[:size])
