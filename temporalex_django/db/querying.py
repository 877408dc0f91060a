"""Queries over many rows: reading in pages, and a semi-join that uses indexes.

No statement returns all rows, and no cursor stays open on the server, where a pooler would lose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from django.db.models import BooleanField, F, Func, Model, QuerySet, Subquery

from temporalex_django.db.dialects.base import find_dialect

_SIZE = 500


def iterate_pages(rows: QuerySet[Any, Any], *, by: str, size: int = _SIZE) -> Iterator[Any]:
    """Yield all rows in the order of the column ``by`` (``-id``: descending), ``size`` rows a statement.

    The column must be unique among the rows, and an attribute of each object.
    """
    column, lookup = by.lstrip("-"), "lt" if by.startswith("-") else "gt"
    rows, page = rows.order_by(by), list(rows.order_by(by)[:size])
    while page:
        yield from page
        if len(page) < size:
            return
        # By key, not by offset: rows that are deleted meanwhile must not shift the next page.
        page = list(rows.filter(**{f"{column}__{lookup}": getattr(page[-1], column)})[:size])


M = TypeVar("M", bound=Model)


class _ArraySubquery(Subquery):
    """A subquery whose rows become one array."""

    template = "array(%(subquery)s)"


class _EqualsAny(Func):
    """The SQL expression that tests if a value is among the elements of an array."""

    template = "%(expressions)s)"
    arg_joiner = " = any("
    output_field = BooleanField()


def semi_join(rows: QuerySet[M], ids: QuerySet[Any, Any], *, column: str = "pk") -> QuerySet[M]:
    """Return the queryset of those ``rows`` whose ``column`` is among ``ids``, a queryset of one column.

    Nothing is read yet. On PostgreSQL the ids become an array, so that the database looks them up by an index.
    """
    dialect = find_dialect(rows.db)
    if dialect is None or not dialect.arrays:
        return rows.filter(**{f"{column}__in": ids})
    return rows.filter(_EqualsAny(F(column), _ArraySubquery(ids.order_by())))
