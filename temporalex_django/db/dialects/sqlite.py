"""Statements on SQLite, which has one writer lock in place of row locks."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import NotSupportedError, OperationalError, connections, transaction

from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Answer, Columns, Types

#: By database alias, a lock for the threads of this process. See ``SqliteDialect.atomic``.
_THREAD_LOCKS: dict[str, threading.Lock] = {}
# A thread that does not exist in the child may have held one of them.
os.register_at_fork(after_in_child=_THREAD_LOCKS.clear)


class SqliteDialect:
    """The dialect of SQLite; ``Dialect`` documents its methods.

    Values are stored as Django's backend stores them: hex ids, and naive UTC text for times.
    """

    name = "sqlite"
    turn_size = policy.SQLITE_TURN_SIZE
    writer_lock = True
    hidden_limit = "%s"
    listens = claims_on_insert = chained_writes = arrays = lateral = tunes_tables = False

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @staticmethod
    def placeholder(kind: str) -> str:
        del kind
        return "%s"

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Open a transaction that has the writer lock.

        It waits behind the other threads of this process first, then with short pauses for other processes.

        SQLite itself looks for the lock only every 100 ms after a while, and a worker leaves it free for 3 ms between
        two turns. So a process that had waited for a while hardly ever got it. Many threads that looked every 5 ms were
        no better: the thread that had the lock hardly ever got the interpreter. Of 30 threads that started at once on a
        busy machine, none was done after 20 s.
        """
        connection = connections[self.alias]
        connection.ensure_connection()
        # In the caller's own transaction Django's block would be a savepoint only, so the transaction begins here.
        if not connection.get_autocommit():
            if connection.connection.in_transaction:
                # It may only have read until now. A write without rows takes the lock.
                self.execute("update temporalex_chain set due_at = due_at where 0 = 1")
            else:
                self.execute("begin immediate")
            with transaction.atomic(using=self.alias):
                yield
            return
        raw = connection.connection
        busy_timeout = raw.execute("pragma busy_timeout").fetchone()[0]  # from OPTIONS: timeout or init_command
        until = time.monotonic() + busy_timeout / 1000
        with self._thread_lock(busy_timeout / 1000):
            try:
                raw.execute(f"pragma busy_timeout = {policy.SQLITE_BUSY_MS}")
                block = self._enter_transaction(until)
            finally:
                raw.execute(f"pragma busy_timeout = {busy_timeout}")
            with block:
                yield

    @contextmanager
    def _thread_lock(self, timeout: float) -> Iterator[None]:
        """Wait at most ``timeout`` seconds for other threads. The block runs then in any case, and SQLite may raise."""
        lock = _THREAD_LOCKS.setdefault(self.alias, threading.Lock())
        is_acquired = lock.acquire(timeout=timeout)
        try:
            yield
        finally:
            if is_acquired:
                lock.release()

    def _enter_transaction(self, until: float) -> ExitStack:
        """Open a transaction with the writer lock. Raises SQLite's error if it gets none by ``until`` (monotonic)."""
        connection: Any = connections[self.alias]
        while True:
            with ExitStack() as stack:
                # A transaction that reads first may be unable to write later. The project may have set another mode for
                # its own transactions.
                mode, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
                try:
                    stack.enter_context(transaction.atomic(using=self.alias))
                except OperationalError as exc:
                    if not self.is_transient(exc) or time.monotonic() > until:
                        raise
                    time.sleep(0.001)  # an in-memory database does not wait by itself
                else:
                    return stack.pop_all()
                finally:
                    connection.transaction_mode = mode

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            adapted = [_adapt_parameter(value) for value in parameters]
            cursor.execute(_unconverted_returning(sql, tuple(types)) if " returning " in sql else sql, adapted)
            try:
                rows = cursor.fetchall()
            except ValueError:  # of Django's converter, for a text that is no time; the other rows are lost, too
                cursor.execute(_unconverted(sql, types), adapted)
                rows = cursor.fetchall()
            return _convert_rows(rows, types)

    def submit(self, sql: str, parameters: Sequence[Any], types: Types) -> Answer:
        rows = self.select(sql, parameters, types)
        return lambda: rows

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, [_adapt_parameter(value) for value in parameters])
            return int(cursor.rowcount)

    def in_array(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        del kind
        return "in (select value from json_each(%s))", json.dumps([_adapt_parameter(value) for value in values])

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        adapted = [[_adapt_parameter(value) for value in row] for row in rows]
        if adapted:
            with connections[self.alias].cursor() as cursor:
                cursor.executemany(_executemany_statement(columns, body, key), adapted)

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        adapted = [[_adapt_parameter(value) for value in row] for row in rows]
        if not adapted:
            return []
        with connections[self.alias].cursor() as cursor:
            statement = _unconverted_returning(_json_statement(columns, body, key), tuple(types))
            cursor.execute(statement, [json.dumps(adapted)])
            return _convert_rows(cursor.fetchall(), types)

    def submit_write(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> Answer:
        result_rows = self.write_returning(columns, body, rows, types, key=key)
        return lambda: result_rows

    def pipeline(self) -> AbstractContextManager[None]:
        return nullcontext()

    def send_with_next(self, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], bool]:
        raise NotSupportedError(
            f"SQLite does not support notifications or sending several statements at once: {sql} {parameters}"
        )

    def now_expression(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        del live
        return "%s", [clock() if clock is not None else datetime.now(UTC)]

    def skip_locked(self) -> str:
        return ""

    def set_lock_timeout(self, seconds: float) -> None:
        """Do nothing: SQLite has no row locks, and a transaction that writes has the writer lock already."""

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        del seconds
        return nullcontext()

    def prefer_indexes(self) -> None:
        """Do nothing: SQLite plans each statement anew, so it keeps no plan that ignores an index."""

    def announce_wait(self, number: int) -> None:
        """Do nothing: on SQLite no transaction waits for the rows of another one, since one at a time writes."""

    def is_waited_for(self, number: int) -> bool:
        del number
        return False

    def fixed_snapshot(self) -> str | None:
        return None

    def check_constraints(self, *, statement_timeout: str | None) -> AbstractContextManager[None]:
        """Check nothing, because SQLite could check only whole tables.

        A run that breaks a constraint is blocked at the commit.
        """
        del statement_timeout
        return nullcontext()

    def set_up_session(self, limits: Mapping[str, str]) -> None:
        """Do nothing: SQLite has no time limits for locks and statements that a session could set."""

    def set_up_transaction(self, limits: Mapping[str, str]) -> None:
        """Do nothing: SQLite has no time limits for locks and statements that a transaction could set."""

    def is_transient(self, exc: BaseException) -> bool:
        cause = exc if isinstance(exc, sqlite3.Error) else exc.__cause__
        return isinstance(cause, sqlite3.OperationalError) and "locked" in str(cause)

    def is_interrupted(self, exc: BaseException) -> bool:
        del exc
        return False

    def is_connection_lost(self, exc: BaseException) -> bool:
        del exc
        return False


def _adapt_parameter(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return str(value.astimezone(UTC).replace(tzinfo=None))
    if isinstance(value, bool):
        return int(value)
    return value


def _parse_time(value: Any) -> datetime:
    """Convert a datetime (plain column) or text (expression). A bad one becomes ``BEFORE_ALL`` or ``AFTER_ALL``."""
    try:
        return (value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))).replace(tzinfo=UTC)
    except (TypeError, ValueError):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return BEFORE_ALL if text < str(BEFORE_ALL) else AFTER_ALL


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@lru_cache(maxsize=128)
def _unconverted_returning(sql: str, types: tuple[str, ...]) -> str:
    """Return a statement that writes, so that Django converts no time of what it returns: it cannot be sent again."""
    head, _, names = sql.rpartition(" returning ")
    columns = names.split(", ")
    if len(columns) != len(types):
        return sql
    return f"{head} returning " + ", ".join(
        f"cast({name} as blob)" if kind == "timestamptz" else name for name, kind in zip(columns, types, strict=True)
    )


def _unconverted(sql: str, types: Types) -> str:
    """Return a query in which Django converts no time: it converts plain columns only."""
    names = [f"c{number}" for number in range(len(types))]
    columns = [
        f"cast({name} as blob)" if kind == "timestamptz" else name for name, kind in zip(names, types, strict=True)
    ]
    return f"with unconverted({', '.join(names)}) as ({sql}) select {', '.join(columns)} from unconverted"


_CONVERTERS: dict[str, Callable[[Any], Any]] = {"uuid": UUID, "timestamptz": _parse_time, "bool": bool, "bytea": bytes}


def _convert_rows(rows: Sequence[Sequence[Any]], types: Types) -> list[tuple[Any, ...]]:
    """Convert values as SQLite returns them; ``types`` are PostgreSQL's."""
    converters = [_CONVERTERS.get(kind) for kind in types]
    if not any(converters):
        return [tuple(row) for row in rows]
    return [
        tuple(
            value if value is None or convert is None else convert(value)
            for value, convert in zip(row, converters, strict=True)
        )
        for row in rows
    ]


@lru_cache(maxsize=512)
def _executemany_statement(columns: Columns, body: str, key: str | None) -> str:
    """Return SQL that runs ``body`` for one row, the table ``v``. ``{key}`` tests for its value of ``key``."""
    names = ", ".join(name for name, _ in columns)
    marks = ", ".join("%s" for _ in columns)
    if key is not None:
        body = body.replace("{key}", f"= (select {key} from v)")
    return f"with v({names}) as (values ({marks})) {body}"


@lru_cache(maxsize=512)
def _json_statement(columns: Columns, body: str, key: str | None) -> str:
    """Return SQL that runs ``body`` over a table ``v``, a JSON list. ``{key}`` tests for any value of ``key``."""
    names = ", ".join(name for name, _ in columns)
    parts = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(columns)))
    if key is not None:
        body = body.replace("{key}", f"in (select {key} from v)")
    return f"with v({names}) as (select {parts} from json_each(%s)) {body}"
