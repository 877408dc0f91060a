"""Rows that no process can read, for ``doctor``: other programs wrote them, or a damaged copy was restored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connections, models
from django.db.models import Q, QuerySet

from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL
from temporalex_django.models import ActivityTask, Chain, HumanTask, Instance, Outbox, Schedule
from temporalex_django.models.fields import SafeDateTimeField, unreadable_columns
from temporalex_django.present.project_view import UnreadableRow

#: Rows of a table that are looked at, the newest first; rows that are reported of each table.
_MAX_ROWS, _MAX_REPORTED = 2_000, 50
#: Tables in which a time makes work due. A row with a time after all others is found however old it is: no worker
#: claims it.
_DUE = (Chain, ActivityTask, Schedule, Outbox, HumanTask)


def unreadable_rows(alias: str) -> Iterator[UnreadableRow]:
    """Yield the rows of this package that cannot be read; of each table the newest rows are looked at.

    No value leaves this function.
    """
    for model in apps.get_app_config("temporalex_django").get_models():
        if model._meta.proxy:  # noqa: SLF001 - Django documents it
            continue
        # Of the rows of one run, such as its events, the first one stands for all with the same columns.
        first: dict[tuple[Any, ...], models.Model] = {}
        for row in _candidates(model, alias):
            if columns := (*unreadable_columns(row),):
                first[columns, getattr(row, "run_id", None) or row.pk] = row
        for (columns, _), row in islice(first.items(), _MAX_REPORTED):
            yield _describe(row, columns, alias)


def _candidates(model: type[models.Model], alias: str) -> Iterator[models.Model]:
    rows: QuerySet[models.Model] = model._default_manager.using(alias)  # noqa: SLF001 - Django documents it
    seen = set()
    # One by one: two thousand rows may hold gigabytes of payloads.
    for row in rows.order_by("-pk")[:_MAX_ROWS].iterator(chunk_size=100):
        seen.add(row.pk)
        yield row
    if model in _DUE:
        outside = Q()
        for field in model._meta.local_concrete_fields:  # noqa: SLF001 - as above
            if isinstance(field, SafeDateTimeField):
                outside |= Q(**{f"{field.name}__lte": BEFORE_ALL}) | Q(**{f"{field.name}__gte": AFTER_ALL})
        yield from (row for row in rows.filter(outside)[:_MAX_REPORTED] if row.pk not in seen)


def _describe(row: models.Model, columns: Sequence[str], alias: str) -> UnreadableRow:
    key = row._meta.pk  # noqa: SLF001 - Django documents it
    fields = getattr(key, "fields", [key])
    condition = " AND ".join(f"{field.column} = {_literal(getattr(row, field.attname), alias)}" for field in fields)
    runs = Instance.objects.using(alias)
    if isinstance(row, Instance):
        runs = runs.filter(pk=row.pk)
    elif isinstance(row, Chain):
        runs = runs.filter(chain_id=row.pk)
    elif (run := getattr(row, "run_id", None)) is not None:
        runs = runs.filter(pk=run)
    elif (chain := getattr(row, "chain_id", None)) is not None:
        runs = runs.filter(chain_id=chain)
    else:
        runs = runs.none()
    return UnreadableRow(
        table=row._meta.db_table,  # noqa: SLF001 - as above
        columns=columns,
        condition=condition,
        id=runs.order_by("-pk").values_list("workflow_id", flat=True).first() or "",
    )


def _literal(value: Any, alias: str) -> str:
    """Return a key as SQL, in the form in which the database stores it."""
    if isinstance(value, UUID) and not connections[alias].features.has_native_uuid_field:
        value = value.hex
    if isinstance(value, (str, UUID)):
        return "'" + str(value).replace("'", "''") + "'"
    return str(value)
