"""What the rows of the tables hold, and the statements that are made of it.

The models declare the columns, and nothing else does: a statement names those that it is about through
``SqlTable.pick``, which knows their types and how their values are stored. Columns that a table does not have are an
error when the module is imported. Statements are made once, as constants of the modules that send them.

Stored are payloads (bytes) by the codec, JSON columns as text, everything else as it is.
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

from temporalex_django.conf import codec
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.db.dialects.base import Columns, Mark
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import (
    ActivityTask,
    Chain,
    EndedTask,
    HistoryEvent,
    Instance,
    Limit,
    Message,
    SearchAttribute,
    Worker,
)

_json = msgspec.json.Encoder().encode
#: PostgreSQL types, the nearest kind of field first.
_KINDS: tuple[tuple[type[models.Field[Any, Any]], str], ...] = (
    (models.UUIDField, "uuid"),
    (models.BigIntegerField, "int8"),
    (models.IntegerField, "int4"),
    (models.FloatField, "float8"),
    (models.BooleanField, "bool"),
    (models.DateTimeField, "timestamptz"),
    (models.DecimalField, "numeric"),
    (models.JSONField, "jsonb"),
    (models.BinaryField, "bytea"),
    (models.CharField, "text"),
    (models.TextField, "text"),
)
#: Payloads of which there may be none; in all others None is a value.
_ABSENT = frozenset({"carried_messages", "snapshot", "heartbeat", "failure"})


def _kind(field: Any) -> str:
    while field.is_relation:
        field = field.target_field
    return next(kind for cls, kind in _KINDS if isinstance(field, cls))


def text_of(value: Any) -> str | None:
    """What a JSON column stores."""
    return None if value is None else _json(value).decode()


class SqlTable:
    """The columns of one model."""

    def __init__(self, model: type[models.Model]) -> None:
        options = model._meta  # noqa: SLF001 - Django documents it
        self.name = options.db_table
        stored = [field for field in options.local_concrete_fields if field.column and not field.generated]
        self.kinds = {field.column: _kind(field) for field in stored}

    def pick(self, *columns: str, **beside: str) -> Pick:
        """Some of its columns; ``beside`` are values with their types that stand beside them in what is written."""
        return Pick(self, columns, columns, beside)

    def pick_for(self, cls: type[Any], **differing: str | None) -> Pick:
        """The columns that the fields of a dataclass name.

        ``differing``: the columns of fields that are called otherwise; None: it has none.
        """
        named = {field.name: differing.get(field.name, field.name) for field in fields(cls)}
        found = {field: column for field, column in named.items() if column is not None}
        return Pick(self, tuple(found.values()), tuple(found), {})

    def insert(self, values: Mapping[str, str], source: str = "") -> str:
        """A statement that inserts what these expressions give, by column."""
        self._require(values)
        return f"insert into {self.name} ({', '.join(values)}) select {', '.join(values.values())} {source}".rstrip()

    def update(self, values: Mapping[str, str], source: str) -> str:
        """A statement that sets these columns to what the expressions give."""
        self._require(values)
        return f"update {self.name} set {', '.join(f'{name} = {value}' for name, value in values.items())} {source}"

    def _require(self, columns: Iterable[str]) -> None:
        if unknown := [name for name in columns if name not in self.kinds]:
            raise LookupError(f"{self.name} has no column {', '.join(unknown)}")


class Pick:
    """Columns of a table in an order, with everything that is made of them. ``fields``: what an object calls them."""

    def __init__(
        self, table: SqlTable, columns: Sequence[str], fields: Sequence[str], beside: Mapping[str, str]
    ) -> None:
        table._require(columns)  # noqa: SLF001 - two halves of one thing
        self.table = table
        self.fields = tuple(fields)
        self.picked = tuple(columns)
        self.columns: Columns = (*((name, table.kinds[name]) for name in columns), *beside.items())
        self.types = tuple("text" if kind == "jsonb" else kind for _, kind in self.columns)
        self.names = self.of("")
        kinds = [kind for _, kind in self.columns]
        self._payloads = [(i, name in _ABSENT) for i, (name, _) in enumerate(self.columns) if kinds[i] == "bytea"]
        self._texts = [i for i, kind in enumerate(kinds) if kind == "jsonb"]
        self._values = attrgetter(*self.fields)

    def of(self, alias: str) -> str:
        """The list for a ``select``; JSON comes as text."""
        before = f"{alias}." if alias else ""
        listed = ((f"{before}{name}", self.table.kinds[name]) for name in self.picked)
        return ", ".join(f"cast({name} as text)" if kind == "jsonb" else name for name, kind in listed)

    def select(self, rest: str) -> str:
        return f"select {self.names} from {self.table.name} {rest}"

    @property
    def insert(self) -> str:
        """The body of a statement that inserts ``v``."""
        return self.table.insert({name: name for name in self.picked}, "from v")

    def insert_marked(self, mark: Mark, source: str, **instead: str) -> str:
        """A statement that inserts parameters; ``instead`` are expressions for columns that have none."""
        values = {name: instead.get(name) or mark(self.table.kinds[name]) for name in self.picked}
        return self.table.insert(values, source)

    def update(self, *by: str, only: str = "", **also: str) -> str:
        """The body of a statement that sets them from ``v`` where rows agree in ``by``; the first of it is the key."""
        own = self.table.name
        sets = {name: f"v.{name}" for name in self.picked if name not in by}
        same = " and ".join(f"{own}.{name} = v.{name}" for name in by)
        return self.table.update({**sets, **also}, f"from v where {same} and {own}.{by[0]} {{key}}{only}")

    def stored(self, values: Sequence[Any]) -> Sequence[Any]:
        """A row of these as it is stored. Bytes are payloads that are encoded already."""
        return self.rows([values])[0]

    def rows(self, plain: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        """Many of them, lists in place: the settings are asked once for the codec."""
        if not self._payloads and not self._texts:
            return list(plain)
        encode = codec().encode
        found: list[Sequence[Any]] = []
        for values in plain:
            row = values if type(values) is list else list(values)
            for i, absent in self._payloads:
                value = row[i]
                if type(value) is not bytes and not (absent and value is None):
                    row[i] = encode(value)
            for i in self._texts:
                if row[i] is not None:
                    row[i] = text_of(row[i])
            found.append(row)
        return found

    def values_of(self, of: Any) -> tuple[Any, ...]:
        """What an object has of these, in their order."""
        found: tuple[Any, ...] = self._values(of)
        return found

    def read(self, row: Sequence[Any]) -> dict[str, Any]:
        """What a row holds, by field, with its payloads decoded. Raises what the codec raises."""
        values, decode = list(row), codec().decode
        for i, _ in self._payloads:
            if values[i] is not None:
                values[i] = decode(values[i])
        return dict(zip(self.fields, values, strict=True))

    def raw(self, row: Sequence[Any]) -> dict[str, Any]:
        """What a row holds, by field, as it is stored."""
        return dict(zip(self.fields, row, strict=True))


CHAINS = SqlTable(Chain)
RUNS = SqlTable(Instance)
EVENTS = SqlTable(HistoryEvent)
MESSAGES = SqlTable(Message)
TASKS = SqlTable(ActivityTask)
WORKERS = SqlTable(Worker)
ENDED_TASKS = SqlTable(EndedTask)
SEARCHED = SqlTable(SearchAttribute)
LIMITS = SqlTable(Limit)

#: A chain that begins, and a run.
NEW_CHAIN = CHAINS.pick("id", "run_id", "queue", "due_at", "deadline", "open_key")
NEW_RUN = RUNS.pick(
    *("id", "chain_id", "workflow_id", "workflow", "version", "queue", "args", "seed", "snapshot"),
    *("parent", "parent_chain_id", "parent_run_id", "parent_seq", "parent_close", "expires_at", "run_timeout"),
    *("subject_type_id", "subject_id", "tags", "metadata", "search_attributes", "created_at"),
)
#: The end of an activity, for whoever waits for it.
ENDED = MESSAGES.pick("chain_id", "run_id", "queue", "kind", "name", "body", "created_at")
ENDED_INSERT = ENDED.insert
#: ``(id, attempt, owner)`` names one attempt of one worker.
FENCE = ("id", "attempt", "owner")
_FENCED_BY = "id, attempt, coalesce(owner, -1)"
#: Rows of activities that are attempts of ``v`` still. Looked up in a hashed list before ``{key}`` is judged: where a
#: plan that was kept reads the whole table, that compares each of its rows with each of the array.
FENCED = f"id {{key}} and (({_FENCED_BY}) in (select {_FENCED_BY} from v)) is true"
#: Why the last attempt of an activity failed.
FAILURE = ("failure", "failed_at", "failed_attempt", "cause")
#: The statement that stores it knows the activity.
CAUSE = f"{TASKS.name}.activity || ': ' || v.cause"


def failure_row(failure: AttemptFailure | None) -> tuple[Any, ...]:
    """What ``FAILURE`` holds; the words as a payload that is yet to be encoded."""
    if failure is None:
        return (None, None, None, None)
    return (failure.payload(), failure.at, failure.attempt, failure.cause)


def ended(chain: UUID, run: UUID, queue: str, kind: str, body: Any, now: datetime) -> Sequence[Any]:
    """A row of ``ENDED``; ``body`` may be encoded already."""
    return ENDED.stored((chain, run, queue, "activity", kind, body, now))


def new_run(start: RunStart, chain: UUID, run: UUID, more: Mapping[str, Any]) -> Sequence[Any]:
    """A row of ``NEW_RUN`` for a start of any kind; ``more`` is what the start itself does not say."""
    values = dict(zip(_OF_START, _said(start), strict=True))
    values.update(more, id=run, chain_id=chain)
    return NEW_RUN.stored([values.get(name) for name in NEW_RUN.picked])


#: Columns of a new run, and what a start of any kind calls them.
_CALLED = {"parent_chain_id": "parent_chain", "parent_run_id": "parent_run"}
_FIELDS = {field.name for field in fields(RunStart)}
_OF_START = {name: said for name in NEW_RUN.picked if (said := _CALLED.get(name, name)) in _FIELDS}
_said = attrgetter(*_OF_START.values())
