"""Statements that PostgreSQL gets together: they are sent at once, and waited for once.

psycopg's pipeline looks after its connection at every statement, in Python: that was two fifths of what a turn of few
runs cost its worker. This gives libpq what psycopg would; types, errors and the wait are psycopg's.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.waiting import Ready, Wait

#: So often a statement is sent before it is prepared, as in psycopg; a connection has so many at most.
_PREPARE_AFTER: Final = 5
_MOST_PREPARED: Final = 200
#: feature_not_supported: a migration has changed what a prepared statement gives. invalid_sql_statement_name: somebody
#: else has deallocated it.
_OUTDATED, _UNKNOWN_STATEMENT = "0A000", "26000"
_PLACEHOLDER: Final = re.compile("%[s%]")

Key = tuple[bytes, tuple[int, ...]]


class PipelineStatement:
    """The cursor of one statement, as far as Django's wrappers and the dialect want one.

    In a ``together`` block the answer comes with that of the others.
    """

    __slots__ = ("_link", "_transformer", "query", "result", "values")

    def __init__(self, link: StatementPipeline) -> None:
        self._link = link
        self.query = b""
        self.result: Any = None
        self._transformer = Transformer(link.connection)
        self.values: Sequence[Any] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Send it and wait, unless it is sent together with others."""
        self.bind(sql, parameters)
        self._link.submit(self)

    def bind(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Say what it is to be, no more."""
        if parameters:
            self.values = self._transformer.dump_sequence(parameters, [PyFormat.BINARY] * len(parameters))
        self.query = _number_placeholders(sql)

    @property
    def _query(self) -> PipelineStatement:
        """Django's log of queries asks a cursor of psycopg for it."""
        return self

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._link.connection

    @property
    def types(self) -> tuple[int, ...]:
        return self._transformer.types or ()

    @property
    def formats(self) -> list[Format]:
        return self._transformer.formats or []

    @property
    def rowcount(self) -> int:
        """-1 while nobody knows."""
        changed = None if self.result is None else self.result.command_tuples
        return -1 if changed is None else int(changed)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows; waits for the answers to everything that was sent, if they are not there."""
        if self.result is None:
            self._link.exchange()
        if self.result is None or self.result.status != ExecStatus.TUPLES_OK:
            raise psycopg.ProgrammingError("the statement gave no rows, or failed")
        self._transformer.set_pgresult(self.result, set_loaders=True, format=Format.BINARY)
        return self._transformer.load_rows(0, self.result.ntuples, tuple)

    def close(self) -> None:
        """Nothing is held."""


class StatementPipeline:
    """What is on its way on one connection, and what that connection has prepared. Of one thread."""

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        self._connection = weakref.ref(connection)  # which has this object
        self._prepares = prepares
        self.depth = 0  # of ``pipeline`` blocks that are open
        self._sends_early = False
        self._submitted: list[PipelineStatement] = []
        self._trailing: list[PipelineStatement] = []  # for the end of the next exchange that leaves no transaction open
        self._idle = False  # whether the one under way began without one, and leaves none
        # by answer: to whom it is, or the name that is prepared by it
        self._sent: list[PipelineStatement | bytes | None] = []
        self._names: dict[Key, bytes] = {}  # the least recently used first
        self._seen: dict[Key, int] = {}
        self._stale: list[bytes] = []
        self._number = 0

    @property
    def connection(self) -> psycopg.Connection[Any]:
        connection = self._connection()
        assert connection is not None, "it is used by its connection alone"
        return connection

    @contextmanager
    def pipeline(self, *, sends_early: bool) -> Iterator[None]:
        """Statements of ``PipelineStatement`` inside are sent together.

        The end waits, and raises what one of them raised.

        Nothing behind a statement that failed is done. A block inside another first waits for what was asked so far.
        ``sends_early``: the server begins while the next ones are made; other cursors of the connection then fail
        inside, or wait for ever, and what was asked before an exception is done: that is for the transaction to take
        back. Else all are sent at the end, and other cursors come first. Whatever interrupts the exchange closes the
        connection: nobody knows where it stands.
        """
        self.exchange()
        outer, self._sends_early = self._sends_early, sends_early
        self.depth += 1
        try:
            yield
        except BaseException:
            self._submitted = []
            with suppress(psycopg.Error):
                self.exchange()
            raise
        finally:
            self.depth -= 1
            self._sends_early = outer
        self.exchange()

    def submit(self, statement: PipelineStatement) -> None:
        self._submitted.append(statement)
        if not self.depth:
            self.exchange()
        elif self._sends_early:
            with self._close_on_error():
                begins = not self._sent
                self._send()
                if begins:
                    self.connection.pgconn.flush()

    def send_with_next(self, statement: PipelineStatement) -> Callable[[], bool]:
        """Send it at the end of the next exchange outside of a transaction, in a transaction of its own.

        It is waited for, but what becomes of it is nobody's business. Gives what takes it back: False when it was sent.
        """
        self._trailing.append(statement)

        def take_back() -> bool:
            was_pending = statement in self._trailing
            self._trailing = [other for other in self._trailing if other is not statement]
            return was_pending

        return take_back

    def exchange(self) -> None:
        """Send what was asked, and give everybody his answer. Raises the first error of the server."""
        if not self._submitted and not self._sent:
            return
        connection, results, marks = self.connection, list[Any](), list[int]()
        own, trailing = self._sent, list[PipelineStatement | bytes | None]()
        try:
            with self._close_on_error():
                self._send()
                connection.pgconn.pipeline_sync()
                own = self._sent
                if self._trailing and self._idle:
                    self._submitted, self._trailing, self._sent = self._trailing, [], trailing
                    self._send(is_trailing=True)
                    connection.pgconn.pipeline_sync()
                connection.wait(_receive_results(connection.pgconn, results, marks, 2 if trailing else 1))
                connection.pgconn.exit_pipeline_mode()
        except psycopg.OperationalError as exc:
            error = _first_error(results[: marks[0]] if marks else results, connection)
            if error is not None:
                raise error from exc  # why the server has closed the connection
            if not marks:
                raise
            # what was waited for is done, only what came behind it is not
        self._sent = []
        error = self._assign_results(own, results[: marks[0]])
        self._assign_results(trailing, results[marks[0] :])
        if error is not None:
            raise error

    def _assign_results(self, sent: list[PipelineStatement | bytes | None], results: list[Any]) -> psycopg.Error | None:
        """Give each its result; the first error of the server.

        That may be one result more: of the commit, as of deferred constraints.
        """
        for statement, result in zip(sent, results, strict=False):
            if isinstance(statement, PipelineStatement):
                statement.result = result
            elif statement is not None and result.status != ExecStatus.COMMAND_OK:
                self._names = {key: name for key, name in self._names.items() if name != statement}
        error = _first_error(results, self.connection)
        self._discard_prepared(error)
        return error

    def _discard_prepared(self, error: psycopg.Error | None) -> None:
        """What is prepared, when that is what was wrong."""
        if error is not None and error.sqlstate in (_OUTDATED, _UNKNOWN_STATEMENT):
            self._stale = [*self._stale, *self._names.values()] if error.sqlstate == _OUTDATED else []
            self._names = {}

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._submitted, self._sent, self._trailing = [], [], []
            self.connection.pgconn.finish()  # a pool, too, takes it for closed
            raise

    def _send(self, *, is_trailing: bool = False) -> None:
        """Give libpq what was asked. Behind the first of a block it may send it whenever it likes.

        ``is_trailing``: nobody will hear that what is prepared was gone, so what changes the session is not prepared.
        """
        connection, statements = self.connection, self._submitted
        if connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        protocol, self._submitted = connection.pgconn, []
        if not is_trailing and not self._sent:
            idle = protocol.transaction_status == TransactionStatus.IDLE
            opens, self._idle = idle and not connection.autocommit, idle and connection.autocommit
            protocol.enter_pipeline_mode()
            before = [_begin_command(connection)] if opens else []
            stale = self._stale if protocol.transaction_status != TransactionStatus.INERROR else []
            for command in [*before, *(b"deallocate " + name for name in stale)]:
                protocol.send_query_params(command, None)
                self._sent.append(None)
            self._stale = self._stale[len(stale) :]
        for statement in statements:
            prepares = self._prepares and (bool(statement.values) or not is_trailing)
            name = self._prepared_name((statement.query, statement.types)) if prepares else None
            if name is None:
                protocol.send_query_params(
                    statement.query, statement.values, statement.types, statement.formats, Format.BINARY
                )
            else:
                protocol.send_query_prepared(name, statement.values, statement.formats, Format.BINARY)
            self._sent.append(statement)

    def _prepared_name(self, key: Key) -> bytes | None:
        """The name of the statement, which is prepared now if it comes often."""
        name = self._names.pop(key, None)
        if name is None:
            seen = self._seen[key] = self._seen.get(key, 0) + 1
            if seen <= _PREPARE_AFTER:
                if len(self._seen) > _MOST_PREPARED:
                    self._seen.clear()
                return None
            del self._seen[key]
            if len(self._names) >= _MOST_PREPARED:
                self._stale.append(self._names.pop(next(iter(self._names))))
            self._number += 1
            name = b"_tx_%d" % self._number
            self.connection.pgconn.send_prepare(name, *key)
            self._sent.append(name)
        self._names[key] = name
        return name


@lru_cache(maxsize=1024)
def _number_placeholders(sql: str) -> bytes:
    """``%s`` as PostgreSQL has it, by number, and ``%%`` as ``%``."""
    number = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal number
        if match[0] == "%%":
            return "%"
        number += 1
        return f"${number}"

    return _PLACEHOLDER.sub(replace, sql).encode()


def _begin_command(connection: psycopg.Connection[Any]) -> bytes:
    """BEGIN, as the options of the connection want it."""
    words = ["BEGIN"]
    if connection.isolation_level is not None:
        words.append(f"ISOLATION LEVEL {psycopg.IsolationLevel(connection.isolation_level).name.replace('_', ' ')}")
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()


def _receive_results(
    protocol: Any, results: list[Any], marks: list[int], ends: int
) -> Generator[Wait, Ready | int, None]:
    """Add the result of each statement, in order, up to so many synchronisations; psycopg waits for the connection."""
    while True:
        ready = yield Wait.RW if protocol.flush() else Wait.R
        if ready and ready & Ready.R:  # None when somebody was interrupted, and waits for the end all the same
            protocol.consume_input()
            while notice := protocol.notifies():  # psycopg keeps it for whoever listens on this connection
                if protocol.notify_handler is not None:
                    protocol.notify_handler(notice)
        while not protocol.is_busy():
            result = protocol.get_result()  # none behind each statement
            if result is None:
                if protocol.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost: the server's answer cannot be read")
                continue
            if result.status == ExecStatus.PIPELINE_SYNC:
                marks.append(len(results))
                if len(marks) == ends:
                    return
            else:
                results.append(result)


def _first_error(results: list[Any], connection: psycopg.Connection[Any]) -> psycopg.Error | None:
    failed = next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
    return None if failed is None else error_from_result(failed, encoding=connection.info.encoding)
