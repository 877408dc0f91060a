"""How the statements of a turn reach a database: two dialects, one set of statements.

The SQL itself is written once, in the modules beside this one. A statement for many rows reads them from a common table
expression ``v``: on PostgreSQL one ``unnest`` of binary arrays, on SQLite one ``executemany``. So a turn needs the same
number of statements whether it advances one run or two hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cache
from typing import Any, Protocol

from django.db import connections

from temporalex_django.errors import NotConfigured

#: Column name and its PostgreSQL type.
Columns = tuple[tuple[str, str], ...]
#: PostgreSQL types of the columns that a statement gives back.
Types = Sequence[str]


#: Waits for the rows of a statement that was sent, and gives them.
Answer = Callable[[], list[tuple[Any, ...]]]

#: Makes a placeholder for a value of a type.
Placeholder = Callable[[str], str]


class Dialect(Protocol):
    """Statements on Django's own connection of one alias: they take part in whatever transaction is open on it."""

    alias: str
    name: str
    #: Runs in a turn of a worker.
    turn_size: int
    #: One lock of the whole database keeps all writers out and stands for every row lock; nobody waits for rows then.
    writer_lock: bool
    #: There are notifications, and session locks that say who lives.
    listens: bool
    #: An insert of many rows gives their ids back, so that new activities can be written as claimed.
    claims_on_insert: bool
    #: A statement can write two tables.
    chained_writes: bool
    #: ``array(select …)`` and ``cross join lateral``.
    arrays: bool
    lateral: bool
    #: Tables have storage parameters.
    tunes_tables: bool
    #: A placeholder for a limit that the planner does not know: it is to read the first of an index, however few rows
    #: it believes that there are, and not to sort all of them.
    hidden_limit: str

    @staticmethod
    def placeholder(kind: str) -> str:
        """A placeholder for a value of that type."""

    def atomic(self) -> AbstractContextManager[None]:
        """An outermost transaction, which has the writer lock from its beginning, where there is one."""

    def select(self, sql: str, parameters: Sequence[Any], types: Types) -> list[tuple[Any, ...]]: ...

    def submit(self, sql: str, parameters: Sequence[Any], types: Types) -> Answer:
        """``select`` in two halves: inside ``pipeline()`` nobody waits until the answer is called."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run it; the number of rows that it changed."""

    def in_array(self, values: Collection[Any], kind: str) -> tuple[str, Any]:
        """The right side of ``column …`` for membership, and its parameter: always one, a bound array."""

    def write(self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], *, key: str | None = None) -> None:
        """Run ``with v(columns) as (rows) body``. With ``key``, ``{key}`` in the body is replaced by a membership test.

        (A join with ``v`` alone can be planned as a scan of the whole table; the bound array makes it an index scan.)
        """

    def write_returning(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> list[tuple[Any, ...]]:
        """The same for a body that returns rows. ``columns`` hold bytes only where there are ``chained_writes``."""

    def submit_write(
        self, columns: Columns, body: str, rows: Iterable[Sequence[Any]], types: Types, *, key: str | None = None
    ) -> Answer:
        """``write_returning`` in two halves, as ``submit``."""

    def pipeline(self) -> AbstractContextManager[None]:
        """Statements inside need not wait for each other's answers: those that give no rows, and what is asked.

        Nothing else is to use the connection inside: no queryset, no cursor of Django's.
        """

    def send_with_next(self, sql: str, parameters: Sequence[Any] = ()) -> Callable[[], bool]:
        """Send it with the next statement that is waited for outside of a transaction, as a transaction of its own.

        Where it ``listens``. What becomes of it is nobody's business, and no log or wrapper of queries sees it. Gives
        what takes it back: False when it was sent.
        """

    def now_expression(self, clock: Callable[[], datetime] | None, *, live: bool = False) -> tuple[str, list[Any]]:
        """An expression for now, and its parameters: the storage's clock if it has one of its own, else the database's.

        ``live``: the time of evaluation rather than of the statement's start (which alone lets an index be used).
        """

    def skip_locked(self) -> str: ...

    def set_lock_timeout(self, seconds: float) -> None:
        """To the end of the open transaction nobody waits longer for a lock. Nothing where there are no row locks."""

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """The same for the statements inside; the setting is put back, unless they fail: use it behind a savepoint."""

    def prefer_indexes(self) -> None:
        """To the end of our own transaction no table is read whole where an index will do; in a caller's, nothing.

        A plan is kept for long: of a table that is all but empty it reads the whole, and so it does when fifty thousand
        rows have come.
        """

    def announce_wait(self, number: int) -> None:
        """Say, to the end of the open transaction, that somebody waits for what ``number`` stands for.

        Waits for whoever says so already.
        """

    def is_waited_for(self, number: int) -> bool:
        """Whether somebody stands in line for it, and waits for a lock himself."""

    def fixed_snapshot(self) -> str | None:
        """The isolation level of the open transaction, if it cannot see what others commit while it lasts."""

    def check_constraints(self, *, statement_timeout: str | None) -> AbstractContextManager[None]:
        """The end raises what deferred constraints would raise at the commit, when nobody could tell whose fault it is.

        User code inside may set limits for its own statements: ``statement_timeout`` (None: what it is now) is put
        back. Where only whole tables can be asked about, nothing is.
        """

    def set_up_session(self, limits: Mapping[str, str]) -> None:
        """Set these limits for the session; it notices soon that the other side is gone."""

    def set_up_transaction(self, limits: Mapping[str, str]) -> None:
        """Set these limits for the open transaction."""

    def is_transient(self, exc: BaseException) -> bool:
        """Whether the same work may succeed on another try."""

    def is_interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled, by its ``statement_timeout`` or by somebody."""

    def is_connection_lost(self, exc: BaseException) -> bool:
        """Whether an ``OperationalError`` means that the session has ended."""


def find_dialect(alias: str) -> Dialect | None:
    """The dialect of the database behind ``alias``, if it is supported."""
    return _build_dialect(connections[alias].vendor, alias)


@cache
def _build_dialect(vendor: str, alias: str) -> Dialect | None:
    if vendor == "postgresql":
        from temporalex_django.db.dialects.postgres import PostgresDialect  # noqa: PLC0415 - psycopg is an extra

        return PostgresDialect(alias)
    if vendor == "sqlite":
        from temporalex_django.db.dialects.sqlite import SqliteDialect  # noqa: PLC0415 - only where it is used

        return SqliteDialect(alias)
    return None


def get_dialect(alias: str) -> Dialect:
    """The same. Raises ``NotConfigured`` for a database that is not supported."""
    dialect = find_dialect(alias)
    if dialect is not None:
        return dialect
    vendor = connections[alias].vendor
    raise NotConfigured(f"temporalex_django runs on PostgreSQL and SQLite; the database {alias!r} is {vendor}")
