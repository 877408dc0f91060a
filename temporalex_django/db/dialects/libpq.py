"""The wire to PostgreSQL: statements sent through libpq, arrays as parameters, and times that always load."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Protocol
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.adapt import Buffer, Dumper, Loader, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.types.datetime import TimestamptzBinaryLoader
from psycopg.waiting import Ready, Wait

from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL

# --- libpq ------------------------------------------------------------------------------------------------------------
#
# Pipelines on PostgreSQL: statements that are sent together, with one wait for all answers.
#
# psycopg's own pipeline checks its connection at every statement, in Python. That was two fifths of the cost of a turn
# with few runs. This module gives the statements to libpq itself; types, errors and the wait are psycopg's.


#: Number of times that a statement is sent before it is prepared, as in psycopg; and the most that a connection keeps.
_PREPARE_AFTER: Final = 5
_MOST_PREPARED: Final = 200
#: feature_not_supported: a migration has changed the result of a prepared statement. invalid_sql_statement_name:
#: another program has deallocated it.
_OUTDATED, _UNKNOWN_STATEMENT = "0A000", "26000"
_PLACEHOLDER: Final = re.compile("%[s%]")

Key = tuple[bytes, tuple[int, ...]]


class LibpqStatement:
    """The cursor of one statement, with the parts that Django's wrappers and the dialect need.

    In a ``pipeline`` block its answer comes with those of the others.
    """

    __slots__ = ("_transformer", "_wire", "query", "result", "values")

    def __init__(self, wire: LibpqWire) -> None:
        self._wire = wire
        self.query = b""
        self.result: Any = None
        self._transformer = Transformer(wire.connection)
        self.values: Sequence[Any] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Send the statement and wait for its result; in a ``pipeline`` block only submit it."""
        self.bind(sql, parameters)
        self._wire.submit(self)

    def bind(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Set the SQL of the statement and encode its values. Nothing is sent."""
        if parameters:
            self.values = self._transformer.dump_sequence(parameters, [PyFormat.BINARY] * len(parameters))
        self.query = _number_placeholders(sql)

    @property
    def _query(self) -> LibpqStatement:
        """Return this statement, in place of the ``_query`` of a psycopg cursor, which Django's query log reads."""
        return self

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._wire.connection

    @property
    def types(self) -> tuple[int, ...]:
        return self._transformer.types or ()

    @property
    def formats(self) -> list[Format]:
        return self._transformer.formats or []

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed, or -1 while that is not known."""
        changed = None
        if self.result is not None:
            changed = self.result.command_tuples
        if changed is None:
            return -1
        return int(changed)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows.

        If they are not there yet, it waits for the answers to all statements that were submitted.
        """
        if self.result is None:
            self._wire.exchange()
        if self.result is None or self.result.status != ExecStatus.TUPLES_OK:
            raise psycopg.ProgrammingError("the statement returned no rows, or failed")
        self._transformer.set_pgresult(self.result, set_loaders=True, format=Format.BINARY)
        try:
            return self._transformer.load_rows(0, self.result.ntuples, tuple)
        except psycopg.DataError:
            return load_rows(self.connection, self.result)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class LibpqWire:
    """Sends the statements of one connection through libpq itself, which is faster than psycopg's pipeline.

    It keeps the statements that wait to be sent, and the prepared ones. One thread at a time uses it. ``Wire``
    documents its methods.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        register(connection)
        self._connection = weakref.ref(connection)  # weak: the connection's entry holds this object
        self._prepares = prepares
        self.depth = 0  # of open ``pipeline`` blocks
        self._sends_early = False
        self._submitted: list[LibpqStatement] = []
        # Sent at the end of the next exchange that leaves no transaction open.
        self._trailing: list[LibpqStatement] = []
        # True if the exchange under way began without a transaction and leaves none.
        self._idle = False
        # By answer: the statement that it belongs to, the name that it prepares, or None if it is not needed.
        self._sent: list[LibpqStatement | bytes | None] = []
        self._names: dict[Key, bytes] = {}  # least recently used first
        self._seen: dict[Key, int] = {}
        self._stale: list[bytes] = []
        self._number = 0

    @property
    def connection(self) -> psycopg.Connection[Any]:
        connection = self._connection()
        assert connection is not None, "only its connection uses it"
        return connection

    @contextmanager
    def pipeline(self, *, sends_early: bool) -> Iterator[None]:
        """Send the ``LibpqStatement``s that are executed inside the block together.

        The end of the block waits, and raises the first error. No statement after a failed one is executed. A block
        inside another one first waits for what was submitted so far.

        With ``sends_early`` the server starts while the next statements are made. Then other cursors of the connection
        fail inside the block, or wait for ever. After an exception, statements submitted before it may have been
        executed, so the transaction has to roll them back. Without ``sends_early`` all are sent at the end, and other
        cursors come first. An interruption of the exchange closes the connection, because its state is unknown.
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

    def submit(self, statement: LibpqStatement) -> None:
        """Add a statement to those to send. Outside of a ``pipeline`` block this also waits for its answer."""
        self._submitted.append(statement)
        if not self.depth:
            self.exchange()
        elif self._sends_early:
            with self._close_on_error():
                begins = not self._sent
                self._send()
                # The first statement goes out at once, so that the server works while the next ones are made.
                if begins:
                    self.connection.pgconn.flush()

    def statement(self) -> LibpqStatement:
        return LibpqStatement(self)

    @staticmethod
    def array(values: Sequence[Any], kind: str) -> bytes:
        return encode_array(values, kind)

    def send_with_next(self, sql: str, parameters: Sequence[Any]) -> Callable[[], bool]:
        """Send a statement, as a transaction of its own, after the next ones that are sent outside of a transaction.

        It is sent together with them. Its answer is awaited with theirs, but its outcome is ignored. Returns a function
        that withdraws the statement, and that returns False if it was sent already.
        """
        statement = LibpqStatement(self)
        statement.bind(sql, parameters)
        self._trailing.append(statement)

        def take_back() -> bool:
            was_pending = statement in self._trailing
            self._trailing = [other for other in self._trailing if other is not statement]
            return was_pending

        return take_back

    def exchange(self) -> None:
        """Send the submitted statements, wait for all answers, and give each statement its own.

        Raises the first error of the server.
        """
        if not self._submitted and not self._sent:
            return
        connection, results, marks = self.connection, list[Any](), list[int]()
        own, trailing = self._sent, list[LibpqStatement | bytes | None]()
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
                raise error from exc  # the reason why the server closed the connection
            if not marks:
                raise
            # The first synchronisation has arrived: our statements are done, and only the trailing ones are not.
        self._sent = []
        error = self._assign_results(own, results[: marks[0]])
        self._assign_results(trailing, results[marks[0] :])
        if error is not None:
            raise error

    def _assign_results(self, sent: list[LibpqStatement | bytes | None], results: list[Any]) -> psycopg.Error | None:
        """Give each statement its result, and return the first error of the server.

        In ``sent``, bytes name a prepared statement, and None is a command whose result has no use. ``results`` may
        have one more: that of the commit, for example with an error of deferred constraints.
        """
        for statement, result in zip(sent, results, strict=False):
            if isinstance(statement, LibpqStatement):
                statement.result = result
            elif statement is not None and result.status != ExecStatus.COMMAND_OK:
                self._names = {key: name for key, name in self._names.items() if name != statement}
        error = _first_error(results, self.connection)
        self._discard_prepared(error)
        return error

    def _discard_prepared(self, error: psycopg.Error | None) -> None:
        """Forget all prepared statements if ``error`` says that one is outdated or unknown to the server."""
        if error is not None and error.sqlstate in (_OUTDATED, _UNKNOWN_STATEMENT):
            self._stale = [*self._stale, *self._names.values()] if error.sqlstate == _OUTDATED else []
            self._names = {}

    @contextmanager
    def _close_on_error(self) -> Iterator[None]:
        """Close the connection if the block raises: it is unknown then which answers are still to come."""
        try:
            yield
        except BaseException:
            self._submitted, self._sent, self._trailing = [], [], []
            self.connection.pgconn.finish()  # a pool also takes it for closed then
            raise

    def _send(self, *, is_trailing: bool = False) -> None:
        """Give libpq the submitted statements, which it may send at any time after the first of a block.

        Trailing ones come last, and their outcome is ignored. They are not prepared, since nothing would report that a
        prepared statement is gone.
        """
        connection, statements = self.connection, self._submitted
        if connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        protocol, self._submitted = connection.pgconn, []
        if not is_trailing and not self._sent:
            idle = protocol.transaction_status == TransactionStatus.IDLE
            opens, self._idle = idle and not connection.autocommit, idle and connection.autocommit
            protocol.enter_pipeline_mode()
            before = []
            if opens:
                before = [_begin_command(connection)]
            stale = []
            if protocol.transaction_status != TransactionStatus.INERROR:
                stale = self._stale
            for command in [*before, *(b"deallocate " + name for name in stale)]:
                protocol.send_query_params(command, None)
                self._sent.append(None)
            self._stale = self._stale[len(stale) :]
        for statement in statements:
            prepares = self._prepares and (bool(statement.values) or not is_trailing)
            name = None
            if prepares:
                name = self._prepared_name((statement.query, statement.types))
            if name is None:
                protocol.send_query_params(
                    statement.query, statement.values, statement.types, statement.formats, Format.BINARY
                )
            else:
                protocol.send_query_prepared(name, statement.values, statement.formats, Format.BINARY)
            self._sent.append(statement)

    def _prepared_name(self, key: Key) -> bytes | None:
        """Return the name, or None. The first call after enough uses submits the statement that prepares it."""
        # Popped and set again below, so that the dict keeps the order of use.
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
    number = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal number
        if match[0] == "%%":
            return "%"
        number += 1
        return f"${number}"

    return _PLACEHOLDER.sub(replace, sql).encode()


def _begin_command(connection: psycopg.Connection[Any]) -> bytes:
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
    """Add results until ``ends`` synchronisations have come. ``marks`` gets the number of results before each."""
    while True:
        ready = yield Wait.RW if protocol.flush() else Wait.R
        if ready and ready & Ready.R:  # None after an interruption, which still waits for the end
            protocol.consume_input()
            # Notifications arrive between the results. psycopg keeps them for the code that listens on this connection.
            while notice := protocol.notifies():
                if protocol.notify_handler is not None:
                    protocol.notify_handler(notice)
        while not protocol.is_busy():
            result = protocol.get_result()  # None follows each statement
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
    """Return the error of the first statement that failed. The connection has the encoding of its text."""
    failed = next((result for result in results if result.status == ExecStatus.FATAL_ERROR), None)
    if failed is None:
        return None
    return error_from_result(failed, encoding=connection.info.encoding)


# --- arrays -----------------------------------------------------------------------------------------------------------
#
# Arrays in PostgreSQL's binary format, encoded by this module in place of psycopg.
#
# psycopg inspects every element to find its type, but here the type is known. For many rows the inspection takes a
# tenth of a worker's time.


_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_NULL = b"\xff\xff\xff\xff"
_HEADER = Struct(">iiIii").pack  # dimensions, has nulls, element type, length, lower bound
_LENGTH = Struct(">i").pack
_INT4 = Struct(">ii").pack
_INT8 = Struct(">iq").pack
_FLOAT8 = Struct(">id").pack


def _uuids(values: Iterable[UUID | None]) -> list[bytes]:
    return [_NULL if v is None else b"\0\0\0\x10" + v.bytes for v in values]


def _int4s(values: Iterable[int | None]) -> list[bytes]:
    return [_NULL if v is None else _INT4(4, v) for v in values]


def _int8s(values: Iterable[int | None]) -> list[bytes]:
    return [_NULL if v is None else _INT8(8, v) for v in values]


def _floats(values: Iterable[float | None]) -> list[bytes]:
    return [_NULL if v is None else _FLOAT8(8, v) for v in values]


def _bools(values: Iterable[bool | None]) -> list[bytes]:
    return [_NULL if v is None else (b"\0\0\0\1\1" if v else b"\0\0\0\1\0") for v in values]


def _bytes(values: Iterable[bytes | None]) -> list[bytes]:
    return [_NULL if v is None else _LENGTH(len(v)) + v for v in values]


def _texts(values: Iterable[str | None]) -> list[bytes]:
    return _bytes(None if v is None else v.encode() for v in values)


def _jsons(values: Iterable[str | None]) -> list[bytes]:
    return _bytes(None if v is None else b"\1" + v.encode() for v in values)


def _times(values: Iterable[datetime | None]) -> list[bytes]:
    # A turn writes the same moment again and again, as one object. A lookup by hash would take longer than encoding it.
    last, part, parts = None, _NULL, []
    for v in values:
        if v is not last:
            if v is None:
                part = _NULL
            else:
                since = v - _EPOCH
                part = _INT8(8, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
            last = v
        parts.append(part)
    return parts


#: By PostgreSQL type: object ids of the element and of the array, and the encoder.
_KINDS: dict[str, tuple[int, int, Callable[[Iterable[Any]], list[bytes]]]] = {
    "uuid": (2950, 2951, _uuids),
    "int4": (23, 1007, _int4s),
    "int8": (20, 1016, _int8s),
    "float8": (701, 1022, _floats),
    "bool": (16, 1000, _bools),
    "bytea": (17, 1001, _bytes),
    "text": (25, 1009, _texts),
    "jsonb": (3802, 3807, _jsons),
    "timestamptz": (1184, 1185, _times),
}


class _Array(bytes):
    """The bytes of an array that is encoded for PostgreSQL.

    Each element type has a subclass, by which psycopg finds the object that sends it.
    """


_CLASSES: dict[str, type[_Array]] = {kind: type(f"_Array_{kind}", (_Array,), {}) for kind in _KINDS}


def encode_array(values: Sequence[Any], kind: str) -> bytes:
    """Encode values as a parameter of the PostgreSQL type ``kind[]``; ``kind`` is the name of the element's type.

    The connection that sends it must be one that ``register`` has set up.
    """
    element, _, encode = _KINDS[kind]
    parts = encode(values)
    return _CLASSES[kind](_HEADER(1, 1, element, len(parts), 1) + b"".join(parts))


def register(connection: Connection[Any]) -> None:
    """Let a connection send the results of ``encode_array`` as parameters."""
    for kind, cls in _CLASSES.items():
        connection.adapters.register_dumper(cls, _DUMPERS[kind])


class _ArrayDumper(Dumper):
    """Passes arrays that are encoded already to psycopg, which asks a dumper for the bytes of each parameter."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return bytes(obj)


_DUMPERS = {kind: type(f"_Dumper_{kind}", (_ArrayDumper,), {"oid": oid}) for kind, (_, oid, _e) in _KINDS.items()}


# --- plain ------------------------------------------------------------------------------------------------------------
#
# Statements on PostgreSQL by psycopg's public interface alone: its cursors, its pipeline and its dumpers.


#: The number of statements whose uses the plain wire counts.
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


# --- safe times -------------------------------------------------------------------------------------------------------
#
# The reading of an answer with times that Python cannot show, such as ``infinity``.
#
# psycopg raises for such a time, and then none of the rows of the answer can be read. Only after that error an answer
# is read again by this module, so others cost nothing.


class _SafeTimeLoader(Loader):
    """Reads a time; one that Python cannot show becomes ``BEFORE_ALL`` or ``AFTER_ALL``."""

    format = Format.BINARY

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        self._load = TimestamptzBinaryLoader(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            return self._load(data)
        except psycopg.DataError:
            # A time is a signed integer: the microseconds since 2000.
            return BEFORE_ALL if bytes(data)[0] & 0x80 else AFTER_ALL


def load_rows(connection: psycopg.Connection[Any], result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of ``result``, a binary answer of libpq, whatever times are in it."""
    cursor = psycopg.Cursor(connection)
    cursor.adapters.register_loader("timestamptz", _SafeTimeLoader)
    transformer = Transformer(cursor)
    transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
    return transformer.load_rows(0, result.ntuples, tuple)


# --- wire -------------------------------------------------------------------------------------------------------------
#
# The wire to PostgreSQL, which sends the statements of one connection and receives their answers.
#
# It uses libpq itself where psycopg's internals are known, else psycopg alone. See decision 50.


#: Versions of psycopg whose internals ``LibpqWire`` was tested with: the first one, and the first one that was not.
#: ``pyproject.toml`` has the same bounds.
TESTED_VERSIONS: Final = ((3, 2), (3, 4))


class Wire(Protocol):
    """The sender of statements on one psycopg connection; they join the transaction that is open on it."""

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        """Work on a connection of psycopg. With ``prepares``, statements that are sent often are prepared."""

    @staticmethod
    def array(values: Sequence[Any], kind: str) -> Any:
        """Return a parameter that sends ``values`` as an array; ``kind`` is the PostgreSQL type of its elements."""

    def statement(self) -> Any:
        """Return a cursor for one statement, which Django's wrappers can wrap."""

    def pipeline(self, *, sends_early: bool) -> AbstractContextManager[None]:
        """Send the statements that are executed inside the block together.

        The end of the block waits, and raises the first error. Statements behind one that failed are not executed.
        Without ``sends_early`` other cursors of the connection may be used inside.
        """

    def send_with_next(self, sql: str, parameters: Sequence[Any]) -> Callable[[], bool]:
        """Send a statement with or after the next one that is sent outside of a transaction.

        It is a transaction of its own, and its outcome is ignored. Returns a function that withdraws the statement, and
        that returns False if it was sent already.
        """


def choose_wire(version: str, implementation: str) -> type[Wire]:
    """Return the class that sends statements: ``LibpqWire`` for versions of psycopg with which it was tested.

    For others it is ``PlainWire``. ``implementation`` is "c", "binary" or "python"; psycopg's own implementation in
    Python is not faster when it is given statements in another way, so it gets ``PlainWire``, too.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    first, beyond = TESTED_VERSIONS
    if first <= numbers < beyond and implementation in ("c", "binary"):
        return LibpqWire
    return PlainWire


#: The wire of all connections of this process.
chosen: type[Wire] = choose_wire(psycopg.__version__, psycopg.pq.__impl__)
