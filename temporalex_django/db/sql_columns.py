"""Column sets of the tables, and the statements made from them.

Only the models declare columns. A statement names the columns that it uses through ``SqlTable.pick_columns``, which
knows their types and how their values are stored. A column that the table does not have is an error when the module is
imported. Statements are built once, as constants of the modules that send them.

The codec encodes payloads (bytes), JSON columns are stored as text, and everything else as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from django.db import models

from temporalex_django.authoring.run_columns import RUN_COLUMNS, Origin
from temporalex_django.conf import codec
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.engine.contracts.dialect import Columns, Placeholder
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import (
    ActivityTask,
    Chain,
    DoneOnce,
    EndedTask,
    FailedAttempt,
    HistoryEvent,
    Instance,
    Limit,
    LostWorker,
    Message,
    Outbox,
    Permit,
    Schedule,
    ScheduleSlot,
    SearchAttribute,
    SwitchedOff,
    Worker,
)

_json = msgspec.json.Encoder().encode
_json_decode = msgspec.json.Decoder().decode
#: PostgreSQL types of fields. The first class that fits counts, so subclasses come first.
_SQL_TYPES: tuple[tuple[type[models.Field[Any, Any]], str], ...] = (
    (models.UUIDField, "uuid"),
    (models.BigIntegerField, "int8"),
    (models.IntegerField, "int4"),
    (models.FloatField, "float8"),
    (models.BooleanField, "bool"),
    (models.DateTimeField, "timestamptz"),
    (models.DurationField, "interval"),
    (models.DecimalField, "numeric"),
    (models.JSONField, "jsonb"),
    (models.BinaryField, "bytea"),
    (models.CharField, "text"),
    (models.TextField, "text"),
)
#: Payloads that may be NULL. In all others None is a value, which is encoded.
_OPTIONAL_PAYLOADS = frozenset({"carried_messages", "snapshot", "heartbeat", "failure"})


def _sql_type(field: Any) -> str:
    while field.is_relation:
        field = field.target_field
    return next(kind for cls, kind in _SQL_TYPES if isinstance(field, cls))


def json_value(text: str | None) -> Any:
    """Return the value of a JSON column that a statement has read as text; None for NULL."""
    if text is None:
        return None
    return _json_decode(text)


def json_text(value: Any) -> str | None:
    """Return a value as JSON text for a JSON column; None stays None, and is stored as NULL."""
    if value is None:
        return None
    return _json(value).decode()


class SqlTable:
    """The table of one model: its name, its columns and their types."""

    def __init__(self, model: type[models.Model]) -> None:
        options = model._meta  # noqa: SLF001 - Django documents it
        self.name = options.db_table
        self._model = model
        stored = [field for field in options.local_concrete_fields if field.column and not field.generated]
        self.kinds = {field.column: _sql_type(field) for field in stored}

    def pick_columns(self, *columns: str, **extra: str) -> ColumnSet:
        """Return a set of the columns with these names.

        ``extra`` has the names and types of further values, which statements get as parameters in addition to the
        columns.
        """
        return ColumnSet(self, columns, columns, extra)

    def pick_fields(self, cls: type[Any], **differing: str | None) -> ColumnSet:
        """Return a set of the columns with the names of the fields of the dataclass ``cls``.

        ``differing`` gives the column of a field that has another name, or None for a field that has no column.
        """
        column_names = {field.name: differing.get(field.name, field.name) for field in fields(cls)}
        columns = {field: column for field, column in column_names.items() if column is not None}
        return ColumnSet(self, tuple(columns.values()), tuple(columns), {})

    def insert(self, values: Mapping[str, str], source: str = "") -> str:
        """Return an ``insert`` statement; ``values`` maps columns to SQL expressions, ``source`` is SQL at its end."""
        self._require_columns(values)
        return f"insert into {self.name} ({', '.join(values)}) select {', '.join(values.values())} {source}".rstrip()

    def update(self, values: Mapping[str, str], source: str) -> str:
        """Return an ``update`` statement; ``values`` maps columns to SQL expressions, ``source`` is SQL at its end."""
        self._require_columns(values)
        return f"update {self.name} set {', '.join(f'{name} = {value}' for name, value in values.items())} {source}"

    def read_json(self, column: str, text: str | None) -> Any:
        """Return the value of a JSON column from its text; see ``SafeJSONField.read``."""
        return self._model._meta.get_field(column).read(text)  # type: ignore[union-attr] # noqa: SLF001 - as above

    def _require_columns(self, columns: Iterable[str]) -> None:
        if unknown := [name for name in columns if name not in self.kinds]:
            raise LookupError(f"{self.name} has no column {', '.join(unknown)}")


class ColumnSet:
    """Some columns of a table in a fixed order, with the statements and conversions for them.

    ``columns`` are their names. ``fields`` are the names of the attributes in which an object has these values.
    ``extra`` has the names and types of values that statements receive beside the columns of the table.
    """

    def __init__(
        self, table: SqlTable, columns: Sequence[str], fields: Sequence[str], extra: Mapping[str, str]
    ) -> None:
        table._require_columns(columns)  # noqa: SLF001 - these two classes belong together
        self.table = table
        self.fields = tuple(fields)
        self.column_names = tuple(columns)
        self.columns: Columns = (*((name, table.kinds[name]) for name in columns), *extra.items())
        self.types = tuple("text" if kind == "jsonb" else kind for _, kind in self.columns)
        self.names = self.with_alias("")
        kinds = [kind for _, kind in self.columns]
        self._payloads = [
            (i, name in _OPTIONAL_PAYLOADS) for i, (name, _) in enumerate(self.columns) if kinds[i] == "bytea"
        ]
        self._texts = [i for i, kind in enumerate(kinds) if kind == "jsonb"]
        self._values = attrgetter(*self.fields)

    def with_alias(self, alias: str) -> str:
        """Return the columns for a ``select`` from the table under this alias ("": none). JSON is cast to text."""
        before = ""
        if alias:
            before = f"{alias}."
        listed = ((f"{before}{name}", self.table.kinds[name]) for name in self.column_names)
        return ", ".join(f"cast({name} as text)" if kind == "jsonb" else name for name, kind in listed)

    def select(self, rest: str) -> str:
        """Return a ``select`` of the columns from the table; ``rest`` is the SQL that follows, such as a ``where``."""
        return f"select {self.names} from {self.table.name} {rest}"

    @property
    def insert(self) -> str:
        """SQL that inserts many rows with these columns, for ``Dialect.write``.

        That method provides the rows as a table ``v``.
        """
        return self.table.insert({name: name for name in self.column_names}, "from v")

    def insert_parameters(self, placeholder: Placeholder, source: str, **instead: str) -> str:
        """Return a statement that inserts one row from parameters, in the order of the columns.

        ``placeholder`` is that of the dialect. ``instead`` has SQL expressions for the columns that get no parameter of
        their own; ``source`` is the SQL at the end.
        """
        values = {name: instead.get(name) or placeholder(self.table.kinds[name]) for name in self.column_names}
        return self.table.insert(values, source)

    def update(self, *by: str, only: str = "", **also: str) -> str:
        """Return SQL that updates these columns of many rows, for ``Dialect.write``.

        That method provides the new values as a table ``v``. A row gets the values of the row of ``v`` that has the
        same values in the columns ``by``; the first of these is the key. ``only`` is a further condition, and ``also``
        has SQL expressions for further columns.
        """
        own = self.table.name
        sets = {name: f"v.{name}" for name in self.column_names if name not in by}
        same = " and ".join(f"{own}.{name} = v.{name}" for name in by)
        return self.table.update({**sets, **also}, f"from v where {same} and {own}.{by[0]} {{key}}{only}")

    def encode_row(self, values: Sequence[Any]) -> Sequence[Any]:
        """Encode a row for storage. A payload that is ``bytes`` is encoded already and stays as it is."""
        return self.encode_rows([values])[0]

    def encode_rows(self, rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Encode many rows for storage; rows that are lists are changed in place.

        The codec is looked up in the settings only once.
        """
        if not self._payloads and not self._texts:
            return list(rows)
        encode = codec().encode
        encoded_rows: list[Sequence[Any]] = []
        for values in rows:
            if type(values) is list:
                row = values
            else:
                row = list(values)
            for i, absent in self._payloads:
                value = row[i]
                if type(value) is not bytes and not (absent and value is None):
                    row[i] = encode(value)
            for i in self._texts:
                if row[i] is not None:
                    row[i] = json_text(row[i])
            encoded_rows.append(row)
        return encoded_rows

    def values_of(self, source: Any) -> tuple[Any, ...]:
        """Return the values of an object's attributes for these columns, in their order."""
        values: tuple[Any, ...] = self._values(source)
        return values

    def decode_row(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the values of a row by name of the field, with payloads decoded. Raises the errors of the codec."""
        values, decode = list(row), codec().decode
        for i, _ in self._payloads:
            if values[i] is not None:
                values[i] = decode(values[i])
        return dict(zip(self.fields, values, strict=True))

    def row_fields(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return the values of a row by name of the field, with payloads still encoded."""
        return dict(zip(self.fields, row, strict=True))


CHAINS = SqlTable(Chain)
RUNS = SqlTable(Instance)
EVENTS = SqlTable(HistoryEvent)
MESSAGES = SqlTable(Message)
TASKS = SqlTable(ActivityTask)
WORKERS = SqlTable(Worker)
ENDED_TASKS = SqlTable(EndedTask)
SEARCH_ATTRIBUTES = SqlTable(SearchAttribute)
OUTBOX = SqlTable(Outbox)
LIMITS = SqlTable(Limit)
PERMITS = SqlTable(Permit)
DONE_ONCE = SqlTable(DoneOnce)
SWITCHES = SqlTable(SwitchedOff)
FAILED_ATTEMPTS = SqlTable(FailedAttempt)
LOST_WORKERS = SqlTable(LostWorker)
SCHEDULES = SqlTable(Schedule)
SLOTS = SqlTable(ScheduleSlot)

#: The columns of a new chain, and of a new run.
NEW_CHAIN = CHAINS.pick_columns("id", "run_id", "queue", "due_at", "deadline", "open_key")
NEW_RUN = RUNS.pick_columns(*(column.name for column in RUN_COLUMNS if column.origin is not Origin.TURN))
#: The message with the result of an activity.
RESULT = MESSAGES.pick_columns("chain_id", "run_id", "queue", "kind", "name", "body", "headers", "created_at")
RESULT_INSERT = RESULT.insert
#: ``(id, attempt, owner)`` identifies one attempt of one worker.
FENCE = ("id", "attempt", "owner")
_FENCED_BY = "id, attempt, coalesce(owner, -1)"
#: Condition: the activity is still at the attempt of ``v``. The hashed list is compared before ``{key}``. A kept plan
#: that reads the whole table would otherwise compare each of its rows with each element of the array.
FENCED = f"id {{key}} and (({_FENCED_BY}) in (select {_FENCED_BY} from v)) is true"
#: The columns of the failure of an activity's last attempt.
FAILURE = ("failure", "failed_at", "failed_attempt", "cause", "fault")
#: The values of ``cause`` and ``fault``. The activity comes from the row, the rest from ``v``.
CAUSE = {name: f"{TASKS.name}.activity || ': ' || v.{name}" for name in ("cause", "fault")}


def sender_columns(sender: Sender | None) -> tuple[str | None, str | None]:
    """Return the pair of values for ``sender_key`` and ``sender_name``; both are NULL if code sent the message."""
    if sender is None:
        return None, None
    return sender.key, sender.name


def sender_from_columns(key: str | None, name: str | None) -> Sender | None:
    """Return the sender that ``sender_columns`` stored."""
    if key is None:
        return None
    return Sender(key, name or "")


def failure_row(failure: AttemptFailure | None) -> tuple[Any, ...]:
    """Return the values of a failure for the columns ``FAILURE``. The failure itself is a payload to encode."""
    if failure is None:
        return (None, None, None, None, None)
    return (failure.payload(), failure.at, failure.attempt, *failure.group)


def result_row(
    chain: UUID, run: UUID, queue: str, kind: str, body: Any, headers: Headers | None, now: datetime
) -> Sequence[Any]:
    """Return the values of a message with the result of an activity, for the columns ``RESULT``.

    ``run`` is the run that waits for it, ``queue`` the queue of that run, and ``kind`` the kind of the event, such as
    ``ActivityCompleted``. ``body`` holds the attributes of the event: plain, or bytes that are encoded already.
    ``headers`` are the headers of the activity.
    """
    return RESULT.encode_row((chain, run, queue, "activity", kind, body, headers, now))


def new_run_row(start: RunStart, chain: UUID, run: UUID, extra: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values of the row of a new run, for the columns ``NEW_RUN``.

    ``start`` has the options of the start. ``chain`` and ``run`` are the ids. ``extra`` has values by column that the
    start itself lacks.
    """
    values = dict(zip(_START_COLUMNS, _start_values(start), strict=True))
    values.update(extra, id=run, chain_id=chain)
    return NEW_RUN.encode_row([values.get(name) for name in NEW_RUN.column_names])


#: Columns of a new run that a start has, with the names of its fields.
_START_COLUMNS = {column.name: column.engine_name for column in RUN_COLUMNS if column.origin is Origin.START}
_start_values = attrgetter(*_START_COLUMNS.values())
