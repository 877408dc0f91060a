"""Fields and decoding that several tables share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, get_origin

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Col

from temporalex_django.conf import codec
from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL, is_readable_time
from temporalex_django.core.payloads.codec import convert
from temporalex_django.errors import KeyMissing, PayloadError

Texts = list[str]


class SafeDateTimeField(models.DateTimeField):  # type: ignore[type-arg] # it is generic in the stubs only
    """A column of times, of which any stored value can be read.

    A driver raises for a time that Python cannot show, such as ``infinity``, and then no row of the statement arrives.
    So the database itself replaces such a value when it is read: by ``BEFORE_ALL`` or ``AFTER_ALL``. In migrations it
    is a plain ``DateTimeField``.
    """

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Return the SQL by which the column is read; Django calls it for columns and their aggregates."""
        if "SELECT" in sql:  # a subquery, which reads the column through this method already
            return sql, params
        column_type = compiler.connection.data_types[self.get_internal_type()]
        template, bounds = _READABLE_TIME[column_type]
        return template.format(sql, *bounds), (*params,) * template.count("{0}")


_TIME_WITH_ZONE = (
    "case when {0} < timestamptz '{1}' then timestamptz '{1}' when {0} > timestamptz '{2}' then timestamptz '{2}'"
    " else {0} end"
)
# SQLite takes any value. The text of a time has a date and a time that its own functions return unchanged, and then
# at most a fraction and the zone UTC. Texts are compared as they are stored, so what is no time is before or after all.
_TIME_AS_TEXT = (
    "case when {0} is null or ({0} between '{1}' and '{2}' and typeof({0}) = 'text'"
    " and strftime('%%Y-%%m-%%d %%H:%%M:%%S', substr({0}, 1, 19)) = replace(substr({0}, 1, 19), 'T', ' ')"
    " and (length({0}) = 19 or substr({0}, 20) in ('Z', '+00:00') or (substr({0}, 20) glob '.[0-9]*'"
    " and rtrim(substr({0}, 21), '0123456789') in ('', 'Z', '+00:00')))) then {0}"
    " when {0} < '{2}' then '{1}' else '{2}' end"
)
#: The SQL that reads a time, with its two bounds, by the type of the column.
_READABLE_TIME = {
    "timestamp with time zone": (_TIME_WITH_ZONE, (BEFORE_ALL, AFTER_ALL)),
    "datetime": (_TIME_AS_TEXT, (BEFORE_ALL.replace(tzinfo=None), AFTER_ALL.replace(tzinfo=None))),
}


class UnreadableDict(dict[str, Any]):
    """The object in place of a JSON column that cannot be read."""


class UnreadableList(list[Any]):
    """The list in place of a JSON column that cannot be read."""


class SafeJSONField(models.JSONField):
    """A column of JSON data of a fixed shape, of which any stored value can be read.

    ``like`` is the type of the data, for ``convert`` of the codec. For data of another shape the column has the value
    ``instead``, which is an empty list or dict if it is not given, as an ``UnreadableList`` or an ``UnreadableDict``.
    In migrations it is a plain ``JSONField``.
    """

    def __init__(self, *args: Any, like: Any = dict[str, Any], instead: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.like = like
        self.instead = instead
        if instead is None:
            self.instead = [] if get_origin(like) is list else {}

    def deconstruct(self) -> Any:
        name, _path, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs

    def clone(self) -> Any:
        copied = super().clone()
        copied.like, copied.instead = self.like, self.instead
        return copied

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        # Other expressions are values inside the data, which have any type.
        if not isinstance(expression, Col):
            return super().from_db_value(value, expression, connection)
        return self.read(value)

    def read(self, text: str | None) -> Any:
        """Return the value of the column from its text, as a statement has read it. Never raises."""
        if text is None and self.null:
            return None
        try:
            value = json.loads(text, cls=self.decoder) if text is not None else None
            convert(value, self.like)
        except (TypeError, ValueError, PayloadError):
            return (UnreadableDict if isinstance(self.instead, dict) else UnreadableList)(self.instead)
        return value

    def get_db_prep_value(self, value: Any, *args: Any, **options: Any) -> Any:
        # A row that was read and is saved as a whole would lose what is stored.
        if isinstance(value, (UnreadableDict, UnreadableList)):
            raise PayloadError(f"the column {self.column} cannot be read: correct it before the row is saved")
        return super().get_db_prep_value(value, *args, **options)


class UnreadablePayload:
    """The object that ``decode_payload()`` returns in place of a value, for bytes that the codec cannot read.

    So a page can show the rest of the run. ``error`` says why.
    """

    def __init__(self, error: str) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable payload: {self.error}>"


def decode_payload(data: bytes | memoryview | None) -> Any:
    """Decode payload bytes for display. Never raises.

    Returns None for NULL, and an ``UnreadablePayload`` for bytes that cannot be read.
    """
    if data is None:
        return None
    try:
        return codec().decode(bytes(data))
    # A missing key or a codec that is configured wrongly concerns this process only. The row itself is fine, and
    # another process may read it.
    except (PayloadError, KeyMissing, ImproperlyConfigured, ValueError) as exc:
        return UnreadablePayload(str(exc))


def unconstrained_key(to: str, **options: Any) -> Any:
    """Return a foreign key to the model ``to`` that has no constraint in the database.

    With a constraint each referencing INSERT would lock the referenced row (KEY SHARE). That lock blocks turns and
    halves event throughput (see decision 39).
    """
    options.setdefault("related_name", "+")
    options.setdefault("db_index", False)
    return models.ForeignKey(to, on_delete=models.DO_NOTHING, db_constraint=False, **options)


def unreadable_columns(row: models.Model, *, payloads: bool = True) -> Iterator[str]:
    """Yield the names of the columns of a row that cannot be read.

    They are times, JSON data, payloads (unless ``payloads`` is False) and texts that are not among the choices of their
    column. A payload whose key this process lacks can be read by another one.
    """
    for field in row._meta.local_concrete_fields:  # noqa: SLF001 - Django documents it
        value = row.__dict__.get(field.attname)
        if value is None or field.primary_key or (not payloads and isinstance(field, models.BinaryField)):
            continue
        if not _is_readable(field, value):
            yield str(field.column)


def _is_readable(field: Any, value: Any) -> bool:
    if isinstance(value, datetime):
        return is_readable_time(value)
    if isinstance(value, (UnreadableDict, UnreadableList)):
        return False
    if isinstance(field, models.BinaryField):
        try:
            codec().decode(bytes(value))
        except (KeyMissing, ImproperlyConfigured):
            return True
        except Exception:  # noqa: BLE001 - whatever a codec raises
            return False
    return not field.choices or value == "" or value in dict(field.flatchoices)
