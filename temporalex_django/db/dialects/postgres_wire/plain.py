"""Statements on PostgreSQL by psycopg's public interface alone: its cursors, its pipeline and its dumpers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.pq import Format, TransactionStatus

from temporalex_django.db.dialects.postgres_wire.safe_times import load_rows

#: Number of times that a statement is sent before it is prepared, as in psycopg; and the most that are counted.
_PREPARE_AFTER: Final = 5
_MOST_COUNTED: Final = 200


class PlainStatement(psycopg.Cursor[Any]):
    """The cursor of one statement on psycopg's public interface.

    Inside a ``pipeline`` block its answer comes with those of the other statements.
    """

    def __init__(self, wire: PlainWire) -> None:
        super().__init__(wire.connection)
        self.format = Format.BINARY
        self._wire = wire

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Send the statement and wait for its result; in a ``pipeline`` block only submit it."""
        try:
            with self._wire.close_on_interruption():
                # Even without values: psycopg would leave the double percent signs as they are.
                super().execute(query, params or (), prepare=self._wire.count_use(query), **options)
        finally:
            self._wire.send_trailing()
        return self

    def fetchall(self) -> list[Any]:
        with self._wire.close_on_interruption():
            try:
                return super().fetchall()
            except psycopg.DataError:
                return load_rows(self.connection, self.pgresult)


class PlainWire:
    """Sends the statements of one connection through psycopg's public interface, where its internals are not known.

    One thread at a time uses it. ``Wire`` documents its methods.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        self._connection = weakref.ref(connection)  # weak: the connection's entry holds this object
        self._prepares = prepares
        self._depth = 0  # of open ``pipeline`` blocks
        self._seen: dict[str, int] = {}
        self._trailing: list[tuple[str, Sequence[Any]]] = []

    @property
    def connection(self) -> psycopg.Connection[Any]:
        connection = self._connection()
        assert connection is not None, "only its connection uses it"
        return connection

    @staticmethod
    def array(values: Sequence[Any], kind: str) -> Any:
        # psycopg takes the type of a list from its elements, which must be of one type.
        if kind == "float8":
            return [None if value is None else float(value) for value in values]
        return list(values)

    def statement(self) -> PlainStatement:
        return PlainStatement(self)

    def count_use(self, sql: str) -> bool:
        """Count a use of the statement, and return True if psycopg is to prepare it."""
        if not self._prepares:
            return False
        if len(self._seen) > _MOST_COUNTED:
            self._seen.clear()
        count = self._seen[sql] = self._seen.get(sql, 0) + 1
        return count > _PREPARE_AFTER

    @contextmanager
    def pipeline(self, *, sends_early: bool) -> Iterator[None]:
        del sends_early  # psycopg decides when statements go out, and admits other cursors
        with self.close_on_interruption():
            self._depth += 1
            try:
                with self.connection.pipeline():
                    yield
            finally:
                self._depth -= 1
        self.send_trailing()

    @contextmanager
    def close_on_interruption(self) -> Iterator[None]:
        """Close the connection when an interruption leaves the block: the state of the connection is unknown then."""
        try:
            yield
        except BaseException as exc:
            # psycopg may raise an error of its own in place of the interruption, and then it is still waiting.
            busy = self.connection.pgconn.transaction_status == TransactionStatus.ACTIVE and not self._depth
            if busy or not isinstance(exc, Exception):
                self._trailing = []
                self.connection.close()
            raise

    def send_with_next(self, sql: str, parameters: Sequence[Any]) -> Callable[[], bool]:
        """Keep a statement until the next one outside of a transaction, and send it after that. Its outcome is ignored.

        It is a transaction and a round trip of its own. Returns a function that withdraws the statement, and that
        returns False if it was sent already.
        """
        entry = (sql, parameters)
        self._trailing.append(entry)

        def take_back() -> bool:
            was_pending = any(other is entry for other in self._trailing)
            self._trailing = [other for other in self._trailing if other is not entry]
            return was_pending

        return take_back

    def send_trailing(self) -> None:
        """Send the statements that ``send_with_next`` kept, if no transaction is open. Their outcome is ignored."""
        connection = self.connection
        if not self._trailing or connection.closed or not connection.autocommit:
            return
        if connection.pgconn.transaction_status == TransactionStatus.IDLE:
            trailing, self._trailing = self._trailing, []
            for sql, parameters in trailing:
                with suppress(psycopg.Error):
                    psycopg.Cursor(connection).execute(sql, parameters)
