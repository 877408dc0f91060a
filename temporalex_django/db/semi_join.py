"""Rows of a few that another statement gives, looked up one by one.

PostgreSQL makes a join of ``id in (select …)``, and reads the whole table for it once it takes the few for many. An
array it looks up by the index, in the order of the index, and no further than a page is long.
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import BooleanField, F, Func, Model, QuerySet, Subquery

from temporalex_django.db.dialects.base import find_dialect

M = TypeVar("M", bound=Model)


class _ArraySubquery(Subquery):
    template = "array(%(subquery)s)"


class _EqualsAny(Func):
    template = "%(expressions)s)"
    arg_joiner = " = any("
    output_field = BooleanField()


def semi_join(rows: QuerySet[M], ids: QuerySet[Any, Any], *, column: str = "pk") -> QuerySet[M]:
    """Those of which ``column`` is one of ``ids``, a queryset of one column; nothing is read."""
    dialect = find_dialect(rows.db)
    if dialect is None or not dialect.arrays:
        return rows.filter(**{f"{column}__in": ids})
    return rows.filter(_EqualsAny(F(column), _ArraySubquery(ids.order_by())))
