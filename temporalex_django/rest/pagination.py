"""Pages by cursor: ids of runs sort by when they were started, so a page costs the same wherever it is."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """``?cursor=`` and ``?limit=``."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200
