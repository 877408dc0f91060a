"""The contract of a dialect: the statements and capabilities in which databases differ.

The SQL itself is written once, in ``db`` and ``liveness``. A statement for many rows reads them from a common table
expression ``v``: on PostgreSQL one ``unnest`` of binary arrays, on SQLite one ``executemany``. So a turn needs the same
number of statements whether it advances one run or two hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

#: Column name and its PostgreSQL type.
Columns = tuple[tuple[str, str], ...]
#: PostgreSQL types of the columns that a statement returns.
Types = Sequence[str]


#: A function that waits for the rows of a submitted statement and returns them.
Answer = Callable[[], list[tuple[Any, ...]]]

#: A function that returns a placeholder for a value of a type.
Placeholder = Callable[[str], str]


class Dialect(Protocol):
    """The statements and capabilities of one database alias, in which PostgreSQL and SQLite differ.

    Statements are sent on Django's own connection, so they take part in the transaction that is open on it.
    """

    alias: str
    name: str
    #: Runs in a turn of a worker.
    turn_size: int
    #: True if one lock of the whole database keeps all writers out. It replaces every row lock, so nothing waits for
    #: rows.
    writer_lock: bool
    #: True if there are notifications, and session locks that show which sessions live.
    listens: bool
    #: True if an insert of many rows returns their ids, so that new activities can be written as claimed.
    claims_on_insert: bool
    #: True if one statement can write two tables.
    chained_writes: bool
    #: True if there are ``array(select …)`` and, for the second one, ``cross join lateral``.
    arrays: bool
    lateral: bool
    #: True if tables have storage parameters.
    tunes_tables: bool
    #: A placeholder for a limit that the planner cannot see. Otherwise it would sort all rows where it expects few,
    #: instead of reading the first ones of an index.
    hidden_limit: str

    @staticmethod
    def placeholder(kind: str) -> str:
        """Return the placeholder that SQL uses for a value of the type ``kind``."""

    def atomic(self) -> AbstractContextManager[None]:
        """Open an outermost transaction.

        On SQLite the transaction has the writer lock from its beginning.
        """

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]: ...

    def submit(self, sql: str, parameters: Sequence[Any], types: Types) -> Answer:
        """Send a query and return a function that waits for its rows and returns them.

        Inside ``pipeline()`` several queries can be sent before the first answer is awaited. Elsewhere the query may
        run at once. ``types`` are the types of the columns.
        """

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement that returns no rows, and return the number of rows that it changed."""

    def in_array(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        """Return ``(SQL, parameter)``: after a column name, the SQL tests if its value is among ``values``."""

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        """Run the statement ``with v(columns) as (rows) body``, which reads the rows from ``v``.

        With ``key`` (a column), ``{key}`` in the body is replaced by a test that the value of that column is in one of
        the rows. Joined with ``v`` alone, the database may read the whole table; with the test it uses the index.
        """

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        """Run the statement ``with v(columns) as (rows) body``, whose body returns rows, and return these rows.

        ``types`` are the types of the columns that it returns. With ``key`` (a column), ``{key}`` in the body is
        replaced by a test that the value of that column is in one of the rows. ``columns`` may hold bytes only if the
        dialect has ``chained_writes``.
        """

    def submit_write(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> Answer:
        """Send a statement with the arguments of ``write_returning``, and return a function that waits for its rows.

        Inside ``pipeline()`` several statements can be sent before the first answer is awaited.
        """

    def pipeline(self) -> AbstractContextManager[None]:
        """Return a context manager whose statements are sent without waiting for each answer; its end waits for all.

        This applies to ``execute`` and ``write``, and to statements of the methods that begin with ``submit``. Nothing
        else may use the connection inside: no queryset, and no cursor of Django's.
        """

    def send_with_next(self, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], bool]:
        """Send a statement together with the next one that is sent while no transaction is open.

        Only a dialect that ``listens`` can do it. The statement is a transaction of its own. Its outcome is ignored,
        and no log or wrapper of queries sees it. Returns a function that withdraws it, and that returns False if it was
        sent already.
        """

    def now_expression(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        """Return ``(SQL expression for the present time, parameters)``.

        It gives the time of ``clock`` or, with None, of the database. With ``live`` it gives the time at which the
        expression is evaluated, and not the time at which the statement started. A comparison with it cannot use an
        index.
        """

    def skip_locked(self) -> str: ...

    def set_lock_timeout(self, seconds: float) -> None:
        """Limit the wait for each lock, in seconds, until the end of the open transaction.

        Does nothing where there are no row locks.
        """

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context manager that limits the wait for each lock, in seconds, for the statements of its block.

        The old limit is restored unless a statement fails, so use it inside a savepoint.
        """

    def prefer_indexes(self) -> None:
        """Make the open transaction read through indexes if the engine opened it; a caller's stays as it is.

        The database keeps a plan for long. A plan made for an almost empty table reads the whole table, and would still
        do so after fifty thousand rows have come.
        """

    def announce_wait(self, number: int) -> None:
        """Announce that the open transaction waits for a lock, which ``number`` identifies, until its end.

        If another transaction has announced the same number, this waits for its end first. Transactions that hold the
        lock ask ``is_waited_for(number)`` about it.
        """

    def is_waited_for(self, number: int) -> bool:
        """Return True if a transaction that has announced ``number`` with ``announce_wait`` waits for a lock now."""

    def fixed_snapshot(self) -> str | None:
        """Return the isolation level of the open transaction if its snapshot is fixed, else None.

        With a fixed snapshot it cannot see what others commit while it lasts.
        """

    def check_constraints(self, *, statement_timeout: str | None) -> AbstractContextManager[None]:
        """Return a context manager that raises at the end of its block the errors of deferred constraints.

        They would otherwise come at the commit, which could not tell which run is at fault. User code inside may set
        limits for its own statements, so ``statement_timeout`` is restored (None: the present one). Databases that can
        check only whole tables check nothing.
        """

    def set_up_session(self, limits: Mapping[str, str]) -> None:
        """Set these limits (value by name of the setting) for the session, such as a statement timeout.

        From then on the session also notices soon if the other side of the connection is gone.
        """

    def set_up_transaction(self, limits: Mapping[str, str]) -> None:
        """Set these limits (value by name of the setting) for the open transaction."""

    def is_transient(self, exc: BaseException) -> bool:
        """Return True if the work that raised ``exc`` may succeed on another try, as after a deadlock."""

    def is_interrupted(self, exc: BaseException) -> bool:
        """Return True if a statement was cancelled, by its ``statement_timeout`` or by a person."""

    def is_connection_lost(self, exc: BaseException) -> bool:
        """Return True if the error means that the session has ended."""
