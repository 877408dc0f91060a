"""Semi-joins: the rows of a few ids that another statement selects, looked up one by one.

PostgreSQL turns ``id in (select …)`` into a join. It then reads the whole table if it expects many ids instead of few.
For an array it uses the index, in the order of the index, and stops at the end of the page.
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
    """Return the rows whose ``column`` is among ``ids``, a queryset of one column.

    Nothing is read yet.
    """
    dialect = find_dialect(rows.db)
    if dialect is None or not dialect.arrays:
        return rows.filter(**{f"{column}__in": ids})
    return rows.filter(_EqualsAny(F(column), _ArraySubquery(ids.order_by())))
