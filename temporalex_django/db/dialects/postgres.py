"""Statements on PostgreSQL, sent with binary values on Django's own connection (psycopg 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections, transaction

from temporalex_django.conf import codec, get_settings
from temporalex_django.core.payloads.codec import JsonCodec
from temporalex_django.db.dialects import libpq
from temporalex_django.db.guards import refuse_query
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Answer, Columns, Types

#: The wires of the connections.
_wires: WeakKeyDictionary[Any, libpq.Wire] = WeakKeyDictionary()
#: Class of the advisory locks by which a transaction announces that it waits for a chain.
_WAIT_LOCK = 0x7E4A1EC
_KEEPALIVES = {"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"}
#: A statement reached its ``statement_timeout``, or somebody cancelled it. The session continues.
QUERY_CANCELED = "57014"
#: lock_not_available, deadlock_detected, serialization_failure: the same work succeeds on another try.
TRANSIENT = frozenset({"55P03", "40P01", "40001", QUERY_CANCELED})
#: admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout: the session is over.
_CONNECTION_LOST = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05"})


class PostgresDialect:
    """The dialect of PostgreSQL; ``Dialect`` documents its methods.

    Django's cursor puts the values into the text of a statement, which is slow for many payloads. So statements are
    sent through a ``Wire`` instead, with their values in binary form. Django wraps these statements all the same, so
    query logs, execute wrappers and error classes are the usual ones.
    """

    name = "postgresql"
    turn_size = policy.POSTGRES_TURN_SIZE
    writer_lock = False
    hidden_limit = "(select %s::int8)"
    listens = claims_on_insert = chained_writes = arrays = lateral = tunes_tables = True

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @staticmethod
    def placeholder(kind: str) -> str:
        return f"%s::{kind}"

    def atomic(self) -> AbstractContextManager[None]:
        """Open a transaction. PostgreSQL has no writer lock, since it locks rows one by one."""
        return transaction.atomic(using=self.alias)

    def _wire(self) -> libpq.Wire:
        """Return what sends statements on this thread's connection, which is opened if necessary."""
        connection = connections[self.alias]
        connection.ensure_connection()
        raw = connection.connection
        raw_wire = _wires.get(raw)
        if raw_wire is None:
            # Where psycopg prepares statements, too, it deallocates all of them after a rollback, also those prepared
            # here.
            prepares = raw.prepare_threshold is None and not get_settings().POOLED
            raw_wire = _wires[raw] = libpq.chosen(raw, prepares=prepares)
        return raw_wire

    def _cursor(self) -> Any:
        connection = connections[self.alias]
        statement: Any = self._wire().statement()
        if connection.queries_logged:
            return connection.make_debug_cursor(statement)
        return connection.make_cursor(statement)

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]:
        return self.submit(sql, parameters, types)()

    def submit(self, sql: str, parameters: Sequence[Any], types: Types) -> Answer:
        del types  # psycopg gets the types from the server
        cursor = self._cursor()
        cursor.execute(sql, parameters)
        answer: Answer = cursor.fetchall
        return answer

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        cursor = self._cursor()
        cursor.execute(sql, parameters)
        return int(cursor.rowcount)

    def in_array(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        return f"= any(%s::{kind}[])", libpq.chosen.array(list(values), kind)

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        arrays = _arrays(columns, rows, key)
        if arrays:
            self.execute(_statement(columns, body, key), arrays)

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        return self.submit_write(columns, body, rows, types, key=key)()

    def submit_write(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> Answer:
        arrays = _arrays(columns, rows, key)
        if arrays:
            return self.submit(_statement(columns, body, key), arrays, types)
        return list

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Send the statements of a block one after the other without waiting for each answer.

        The end of the block waits, and raises the first error.
        """
        connection = connections[self.alias]
        # Wrappers and codecs of the project may use this connection while the statements are made. Then nothing is sent
        # early.
        sends_early = type(codec()) is JsonCodec and all(
            wrapper is refuse_query for wrapper in connection.execute_wrappers
        )
        with connection.wrap_database_errors, self._wire().pipeline(sends_early=sends_early):
            yield

    def send_with_next(self, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], bool]:
        return self._wire().send_with_next(sql, parameters)

    def now_expression(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        if clock is not None:
            return "%s::timestamptz", [clock()]
        # ``clock_timestamp()`` is volatile, so the planner cannot use it as the bound of an index scan.
        return ("clock_timestamp()" if live else "statement_timestamp()"), []

    def skip_locked(self) -> str:
        return " for no key update skip locked"

    def set_lock_timeout(self, seconds: float) -> None:
        self.execute("select set_config('lock_timeout', %s, true)", [_milliseconds(seconds)])

    @contextmanager
    def lock_timeout(self, seconds: float) -> Iterator[None]:
        # Read before it is changed: in the caller's transaction the setting must be restored.
        before = self.select(
            "select current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
            [_milliseconds(seconds)],
            ("text", "text"),
        )[0][0]
        yield
        self.execute("select set_config('lock_timeout', %s, true)", [before])

    def prefer_indexes(self) -> None:
        if not connections[self.alias].savepoint_ids:
            self.execute("set local enable_seqscan = off")

    def announce_wait(self, number: int) -> None:
        self.execute("select pg_advisory_xact_lock(%s::int4, %s::int4)", [_WAIT_LOCK, number])

    def is_waited_for(self, number: int) -> bool:
        rows = self.select(
            # The second row of the join shows that the session waits for a lock right now. An announcement alone is no
            # reason to yield.
            "select exists (select 1 from pg_locks q join pg_locks w on w.pid = q.pid and not w.granted"
            " where q.locktype = 'advisory' and q.granted and q.objsubid = 2"
            " and q.database = (select oid from pg_database where datname = current_database())"
            " and q.classid = %s::int8::oid and q.objid = %s::int8::oid)",
            [_WAIT_LOCK, number],
            ("bool",),
        )
        return bool(rows[0][0])

    def fixed_snapshot(self) -> str | None:
        level = str(self.select("select current_setting('transaction_isolation')", [], ("text",))[0][0])
        if level in ("read committed", "read uncommitted"):
            return None
        return level

    @contextmanager
    def check_constraints(self, *, statement_timeout: str | None) -> Iterator[None]:
        limit = statement_timeout
        if limit is None:
            limit = self.select("select current_setting('statement_timeout')", [], ("text",))[0][0]
        yield
        with connections[self.alias].cursor() as cursor:
            cursor.execute(
                f"set constraints all immediate; set constraints all deferred; set local statement_timeout = '{limit}'"
            )

    def set_up_session(self, limits: Mapping[str, str]) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute("; ".join(f"set {name} = '{value}'" for name, value in {**limits, **_KEEPALIVES}.items()))

    def set_up_transaction(self, limits: Mapping[str, str]) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(
                "select " + ", ".join(["set_config(%s, %s, true)"] * len(limits)),
                [text for limit in limits.items() for text in limit],
            )

    def is_transient(self, exc: BaseException) -> bool:
        return _sqlstate(exc) in TRANSIENT

    def is_interrupted(self, exc: BaseException) -> bool:
        return _sqlstate(exc) == QUERY_CANCELED

    def is_connection_lost(self, exc: BaseException) -> bool:
        raw, state = connections[self.alias].connection, _sqlstate(exc)
        return raw is None or raw.closed or state is None or state in _CONNECTION_LOST or state.startswith("08")


def _milliseconds(seconds: float) -> str:
    return f"{max(1, int(seconds * 1000))}ms"


def _sqlstate(exc: BaseException) -> str | None:
    cause = exc if isinstance(exc, psycopg.Error) else exc.__cause__
    if isinstance(cause, psycopg.Error):
        return cause.sqlstate
    return None


def _arrays(columns: Columns, rows: Iterable[Sequence[Any]], key: str | None) -> list[bytes]:
    """Return each column of ``rows`` as an encoded array, none without rows, and last that of ``key`` once more."""
    by_column = zip(*rows, strict=True)
    arrays = [libpq.chosen.array(values, kind) for values, (_, kind) in zip(by_column, columns, strict=False)]
    # The key column is sent twice: in ``v``, and as the array of the index lookup.
    if arrays and key is not None:
        arrays.append(arrays[[name for name, _ in columns].index(key)])
    return arrays


@lru_cache(maxsize=512)
def _statement(columns: Columns, body: str, key: str | None) -> str:
    """Return SQL that runs ``body`` over arrays, a table ``v``. ``{key}`` becomes a test for values of ``key``."""
    names = ", ".join(name for name, _ in columns)
    arrays = ", ".join(f"%s::{kind}[]" for _, kind in columns)
    if key is not None:
        body = body.replace("{key}", f"= any(%s::{dict(columns)[key]}[])")
    return f"with v({names}) as (select * from unnest({arrays})) {body}"
