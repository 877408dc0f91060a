"""Fields of responses that are made from descriptions: the table of columns of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any

from rest_framework import ISO_8601, serializers

from temporalex_django.authoring.run_columns import ColumnType, Place, columns_shown_in

#: A time in ISO 8601 and UTC, whatever format the project uses in its own views.
time_field = partial(serializers.DateTimeField, format=ISO_8601, default_timezone=UTC)
#: The field of a column, by type.
_COLUMN_FIELDS: Mapping[ColumnType, Callable[..., Any]] = {
    ColumnType.TEXT: serializers.CharField,
    ColumnType.INTEGER: serializers.IntegerField,
    ColumnType.NUMBER: serializers.FloatField,
    ColumnType.TIME: time_field,
    ColumnType.KEY: serializers.CharField,
    # A child belongs to one field, so each field gets a new one.
    ColumnType.TEXTS: lambda **options: serializers.ListField(child=serializers.CharField(), **options),
    ColumnType.ATTRIBUTES: lambda **options: serializers.DictField(child=serializers.JSONField(), **options),
    ColumnType.JSON: serializers.JSONField,
}


def run_column_fields() -> dict[str, Any]:
    """Return a field for each column of runs that REST shows, as it is stored in the attribute ``run``."""
    return {
        column.output_name: _COLUMN_FIELDS[column.type](source=f"run.{column.name}", allow_null=column.nullable)
        for column in columns_shown_in(Place.REST)
    }
