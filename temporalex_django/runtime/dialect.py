"""How the statements of a turn reach a database: two dialects, one set of statements.

The SQL itself is written once, in the modules beside this one. A statement for many rows reads them from a common table
expression ``v``: on PostgreSQL one ``unnest`` of binary arrays, on SQLite one ``executemany``. So a turn needs the same number of
statements whether it advances one run or two hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from django.db import connections

#: Column name and its PostgreSQL type.
Columns = tuple[tuple[str, str], ...]
#: PostgreSQL types of the columns that a statement gives back.
Types = Sequence[str]


class Dialect(Protocol):
    """Statements on Django's own connection of one alias: they take part in whatever transaction is open on it."""

    alias: str
    vendor: str

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run it; the number of rows that it changed."""

    def among(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        """The right side of ``column …`` for membership, and its parameter: always one, a bound array."""

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        """Run ``with v(columns) as (rows) body``. With ``key``, ``{key}`` in the body is replaced by a membership test.

        (A join with ``v`` alone can be planned as a scan of the whole table; the bound array makes it an index scan.)
        """

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        """The same for a body that returns rows. ``columns`` may not hold bytes."""

    def together(self) -> AbstractContextManager[None]:
        """Statements inside need not wait for each other's answers; they give no rows."""

    def instant(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        """An expression for now, and its parameters: the storage's clock if it has one of its own, else the database's.

        ``live``: the time of evaluation rather than of the statement's start (which alone lets an index be used).
        """

    def skip_locked(self) -> str: ...

    def transient(self, exc: BaseException) -> bool:
        """Whether the same work may succeed on another try."""

    def interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled, by its ``statement_timeout`` or by somebody."""

    def over(self, exc: BaseException) -> bool:
        """Whether an ``OperationalError`` means that the session has ended."""


def dialect_for(alias: str) -> Dialect:
    """The dialect of the database behind ``alias``. Raises ``NotConfigured`` for one that is not supported."""
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        from temporalex_django.runtime.postgres import PostgresDialect  # noqa: PLC0415 - psycopg is an extra

        return PostgresDialect(alias)
    if vendor == "sqlite":
        from temporalex_django.runtime.sqlite import SqliteDialect  # noqa: PLC0415 - only where it is used

        return SqliteDialect(alias)
    from temporalex_django.errors import NotConfigured  # noqa: PLC0415

    raise NotConfigured(f"temporalex_django runs on PostgreSQL and SQLite; the database {alias!r} is {vendor}")
