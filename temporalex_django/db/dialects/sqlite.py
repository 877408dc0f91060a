"""Statements on SQLite: its one writer lock stands for every row lock."""

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

from temporalex_django.db.dialects.base import Answer, Columns, Types

#: Milliseconds that SQLite waits for the writer lock at a time, with looks after 0, 1 and 3: no longer than workers
#: pause.
_BUSY_TIMEOUT = 3

#: A line a database alias for the threads of this process: see ``SqliteDialect.atomic``.
_THREAD_LOCKS: dict[str, threading.Lock] = {}
os.register_at_fork(after_in_child=_THREAD_LOCKS.clear)  # a thread that is not there in the child may have held one


class SqliteDialect:
    """See ``Dialect``. Values are stored as Django's backend stores them: hex ids, naive UTC text for times."""

    name = "sqlite"
    turn_size = 100  # where so many take no longer than a moment: see ``workers.turn_runner``
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
        """Stand in line for the writer lock: behind other threads of this process first, then with short waits.

        SQLite itself looks every 100 ms in the end, and a worker leaves 3 between two turns: who had waited for a while
        hardly ever got it. Where many threads looked every 5 ms, the one that had the lock hardly ever got the
        interpreter (30 threads that start at once on a busy machine: none was done after 20 s).
        """
        connection = connections[self.alias]
        connection.ensure_connection()
        if not connection.get_autocommit():  # the caller's own transaction: a savepoint alone would be all of it
            if not connection.connection.in_transaction:
                self.execute("begin immediate")
            with transaction.atomic(using=self.alias):
                self._take_writer_lock()
                yield
            return
        raw = connection.connection
        busy_timeout = raw.execute("pragma busy_timeout").fetchone()[0]  # of OPTIONS: timeout, or init_command
        until = time.monotonic() + busy_timeout / 1000
        with self._thread_lock(busy_timeout / 1000):
            try:
                raw.execute(f"pragma busy_timeout = {_BUSY_TIMEOUT}")
                block = self._enter_transaction(until)
            finally:
                raw.execute(f"pragma busy_timeout = {busy_timeout}")
            with block:
                yield

    @contextmanager
    def _thread_lock(self, timeout: float) -> Iterator[None]:
        """The first place among this process's threads, or none after so many seconds: SQLite says then what is so."""
        lock = _THREAD_LOCKS.setdefault(self.alias, threading.Lock())
        is_acquired = lock.acquire(timeout=timeout)
        try:
            yield
        finally:
            if is_acquired:
                lock.release()

    def _enter_transaction(self, until: float) -> ExitStack:
        """A transaction that has the lock. Raises what SQLite says of one that it did not get in time."""
        while True:
            with ExitStack() as stack:
                try:
                    stack.enter_context(transaction.atomic(using=self.alias))
                    self._take_writer_lock()
                except OperationalError as exc:
                    if not self.is_transient(exc) or time.monotonic() > until:
                        raise
                    stack.pop_all().__exit__(type(exc), exc, exc.__traceback__)
                    time.sleep(0.001)  # a database in memory does not wait by itself
                else:
                    return stack.pop_all()

    def _take_writer_lock(self) -> None:
        # Without transaction_mode=IMMEDIATE a transaction that reads first cannot always go on to write.
        self.execute("update temporalex_chain set due_at = due_at where 0 = 1")

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, [_adapt_parameter(value) for value in parameters])
            return _convert_rows(cursor.fetchall(), types)

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
            cursor.execute(_json_statement(columns, body, key), [json.dumps(adapted)])
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
            f"nobody listens here, and nothing is sent behind another statement: {sql} {parameters}"
        )

    def now_expression(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        del live
        return "%s", [clock() if clock is not None else datetime.now(UTC)]

    def skip_locked(self) -> str:
        return ""

    def set_lock_timeout(self, seconds: float) -> None:
        """Whoever writes has the one lock."""

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        del seconds
        return nullcontext()

    def prefer_indexes(self) -> None:
        """Plans are made anew for each statement."""

    def announce_wait(self, number: int) -> None:
        """There is no other writer."""

    def is_waited_for(self, number: int) -> bool:
        del number
        return False

    def fixed_snapshot(self) -> str | None:
        return None

    def check_constraints(self, *, statement_timeout: str | None) -> AbstractContextManager[None]:
        """It could only be asked about whole tables: a run that breaks a constraint is blocked at the commit."""
        del statement_timeout
        return nullcontext()

    def set_up_session(self, limits: Mapping[str, str]) -> None:
        """It has no such limits."""

    def set_up_transaction(self, limits: Mapping[str, str]) -> None:
        """It has no such limits."""

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


def _parse_time(value: str | datetime) -> datetime:
    """Plain columns come back as naive datetimes (Django's converter), expressions as text."""
    return (value if isinstance(value, datetime) else datetime.fromisoformat(value)).replace(tzinfo=UTC)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {"uuid": UUID, "timestamptz": _parse_time, "bool": bool, "bytea": bytes}


def _convert_rows(rows: Sequence[Sequence[Any]], types: Types) -> list[tuple[Any, ...]]:
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
    names = ", ".join(name for name, _ in columns)
    marks = ", ".join("%s" for _ in columns)
    if key is not None:
        body = body.replace("{key}", f"= (select {key} from v)")
    return f"with v({names}) as (values ({marks})) {body}"


@lru_cache(maxsize=512)
def _json_statement(columns: Columns, body: str, key: str | None) -> str:
    names = ", ".join(name for name, _ in columns)
    parts = ", ".join(f"json_extract(value, '$[{i}]')" for i in range(len(columns)))
    if key is not None:
        body = body.replace("{key}", f"in (select {key} from v)")
    return f"with v({names}) as (select {parts} from json_each(%s)) {body}"
