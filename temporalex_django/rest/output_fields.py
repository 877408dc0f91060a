"""Fields of requests, and of responses that are made from descriptions: the columns of runs, and typed records.

A record is a dataclass that handles return or commands print, so REST has the same fields with the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

from rest_framework import ISO_8601, serializers

from temporalex_django.authoring.backend import EndedAttempt, OpenActivity
from temporalex_django.authoring.run_columns import ColumnType, Place, columns_shown_in
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.names import TABLES, TEMPORAL, check_time, fit_note

if TYPE_CHECKING:
    Base = serializers.Serializer[Any]
else:
    Base = serializers.Serializer  # generic in the stubs only

#: A time in ISO 8601 and UTC, whatever format the project uses in its own views.
time_field = partial(serializers.DateTimeField, format=ISO_8601, default_timezone=UTC)


class Note(serializers.CharField):
    """An optional reason or comment of a person, made fit as everywhere: no text is refused for its characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, allow_blank=True, default="", **options)
        self.validators = []  # DRF refuses characters that ``fit_note`` removes

    def to_internal_value(self, data: Any) -> str:
        return fit_note(super().to_internal_value(data), label=str(self.field_name))


class AwareTimeField(serializers.DateTimeField):
    """Serializer field for a time in a request, in ISO 8601 with an offset from UTC.

    A time without the offset is invalid, because it could mean any. So is one outside of the years 2 to 9998.
    """

    default_error_messages: ClassVar[dict[str, Any]] = {
        "naive": "Write the time with its offset from UTC, such as 2026-11-27T09:00:00+01:00.",
        "year": "Write a time in the years 2 to 9998 in UTC.",
    }

    def enforce_timezone(self, value: datetime) -> datetime:
        if value.utcoffset() is None:
            self.fail("naive")
        try:
            return check_time(value, label="")
        except ValueError:
            self.fail("year")


def _texts_field(**options: Any) -> serializers.ListField:
    # A child belongs to one field, so each field gets a new one.
    return serializers.ListField(child=serializers.CharField(), **options)


#: The field of a column, by type.
_COLUMN_FIELDS: Mapping[ColumnType, Callable[..., Any]] = {
    ColumnType.TEXT: serializers.CharField,
    ColumnType.INTEGER: serializers.IntegerField,
    ColumnType.NUMBER: serializers.FloatField,
    ColumnType.TIME: time_field,
    ColumnType.KEY: serializers.CharField,
    ColumnType.TEXTS: _texts_field,
    ColumnType.ATTRIBUTES: lambda **options: serializers.DictField(child=serializers.JSONField(), **options),
    ColumnType.JSON: serializers.JSONField,
}
#: The field of an attribute of a record, by annotation.
_RECORD_FIELDS: Mapping[Any, Callable[..., Any]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    bool: serializers.BooleanField,
    datetime: time_field,
    Sequence[str]: _texts_field,
    Any: partial(serializers.JSONField, allow_null=True),
}


def run_column_fields() -> dict[str, Any]:
    """Return a serializer field for each column of runs that REST shows, by the name that the column has in REST.

    The fields read a ``RunRepresentation``: the stored value from its ``run``, or the value from its ``description``
    for a column that is redacted. The backend follows from a column.
    """
    column_fields: dict[str, Any] = {
        "backend": serializers.ChoiceField(source="run.backend", choices=[TABLES, TEMPORAL])
    }
    for column in columns_shown_in(Place.REST):
        source = f"run.{column.name}"
        if column.redact is not None:
            source = f"description.{column.output_name}"
        column_fields[column.output_name] = _COLUMN_FIELDS[column.type](source=source, allow_null=column.nullable)
    return column_fields


class RecordOut(Base):
    """Base class of the serializers of records: their fields are derived from a dataclass.

    ``record`` is the dataclass. ``names`` selects some of its fields; without it, all are used. A subclass can declare
    further fields.
    """

    record: ClassVar[type[Any]]
    names: ClassVar[Sequence[str]] = ()

    def get_fields(self) -> dict[str, Any]:
        """Return the fields of the dataclass ``record`` and those that the serializer declares.

        The annotations of the dataclass determine the types of its fields.
        """
        annotations = get_type_hints(self.record)
        record_fields = {name: _record_field(annotations[name]) for name in self.names or annotations}
        return {**record_fields, **super().get_fields()}


def _record_field(annotation: Any) -> Any:
    types = [member for member in get_args(annotation) if member is not type(None)]
    if isinstance(annotation, UnionType):
        return _RECORD_FIELDS[types[0]](allow_null=True)
    return _RECORD_FIELDS[annotation]()


class FailedAttemptOut(RecordOut):
    """An attempt of an activity that failed, timed out or was lost.

    You need the permission to see payloads to see its message and its traceback.
    """

    record = EndedAttempt


class FailureOut(RecordOut):
    """The failure of the last attempt of an activity.

    You need the permission to see payloads to see its texts.
    """

    record = AttemptFailure


class ActivityOut(RecordOut):
    """An activity that has no result yet.

    ``max_attempts`` is 0 if the number of attempts has no limit. ``next_try`` is set only between two attempts.
    """

    record = OpenActivity
    names = ("seq", "activity", "queue", "attempt", "max_attempts", "scheduled_at", "started_at", "due_at")
    state = serializers.CharField()
    next_try = time_field(allow_null=True)
    last_failure = FailureOut(allow_null=True)
