"""Statements on PostgreSQL: psycopg's binary protocol on Django's own connection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import psycopg
from django.db import connections

from temporalex_django.conf import get_settings
from temporalex_django.runtime.dialect import Columns, Types
from temporalex_django.runtime.pg_arrays import array, register

#: Connections that can send our arrays.
_known: WeakSet[Any] = WeakSet()
#: A statement ran into its ``statement_timeout``, or somebody cancelled it: the session goes on.
QUERY_CANCELED = "57014"
#: lock_not_available, deadlock_detected, serialization_failure: the same work succeeds on another try.
TRANSIENT = frozenset({"55P03", "40P01", "40001", QUERY_CANCELED})
#: admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout: the session is over.
_OVER = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05"})


class PostgresDialect:
    """See ``Dialect``.

    Django's cursor binds on the client, as text; for payloads in bulk that is the bottleneck. This one binds on the server, and is
    wrapped by Django all the same, so that query logs, execute wrappers and error classes are the usual ones.
    """

    vendor = "postgresql"

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        connection = connections[self.alias]
        connection.ensure_connection()
        if connection.connection not in _known:
            _known.add(connection.connection)
            register(connection.connection)
            if connection.connection.prepare_threshold is None and not get_settings().POOLED:
                connection.connection.prepare_threshold = (
                    5  # Django turns it off, for poolers; its own cursors never prepare
                )
        raw: Any = psycopg.Cursor(connection.connection)
        raw.format = psycopg.pq.Format.BINARY
        wrapped = connection.make_debug_cursor(raw) if connection.queries_logged else connection.make_cursor(raw)
        with wrapped as cursor:
            yield cursor

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]:
        del types  # psycopg knows them
        with self.cursor() as cursor:
            cursor.execute(sql.replace("%s", "%b"), parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        with self.cursor() as cursor:
            cursor.execute(sql.replace("%s", "%b"), parameters)
            return int(cursor.rowcount)

    def among(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        return f"= any(%s::{kind}[])", array(list(values), kind)

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        arrays = _arrays(columns, rows, key)
        if arrays:
            with self.cursor() as cursor:
                cursor.execute(_statement(columns, body, key), arrays)

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        arrays = _arrays(columns, rows, key)
        if not arrays:
            return []
        with self.cursor() as cursor:
            cursor.execute(_statement(columns, body, key), arrays)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Statements inside are sent one after the other without waiting for each answer; the end waits, and raises."""
        connection = connections[self.alias]
        connection.ensure_connection()
        with connection.wrap_database_errors, connection.connection.pipeline():
            yield

    def instant(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        if clock is not None:
            return "%s::timestamptz", [clock()]
        return ("clock_timestamp()" if live else "statement_timestamp()"), []

    def skip_locked(self) -> str:
        return " for no key update skip locked"

    def transient(self, exc: BaseException) -> bool:
        return _state(exc) in TRANSIENT

    def interrupted(self, exc: BaseException) -> bool:
        return _state(exc) == QUERY_CANCELED

    def over(self, exc: BaseException) -> bool:
        raw, state = connections[self.alias].connection, _state(exc)
        return raw is None or raw.closed or state is None or state in _OVER or state.startswith("08")


def _state(exc: BaseException) -> str | None:
    cause = exc if isinstance(exc, psycopg.Error) else exc.__cause__
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None


def _arrays(columns: Columns, rows: Iterable[Sequence[Any]], key: str | None) -> list[bytes]:
    by_column = zip(*rows, strict=True)
    arrays = [array(values, kind) for values, (_, kind) in zip(by_column, columns, strict=False)]
    if arrays and key is not None:
        arrays.append(arrays[[name for name, _ in columns].index(key)])
    return arrays


@lru_cache(maxsize=512)
def _statement(columns: Columns, body: str, key: str | None) -> str:
    names = ", ".join(name for name, _ in columns)
    arrays = ", ".join(f"%b::{kind}[]" for _, kind in columns)
    if key is not None:
        body = body.replace("{key}", f"= any(%b::{dict(columns)[key]}[])")
    return f"with v({names}) as (select * from unnest({arrays})) {body}"
