"""The way of a storage to the database: transactions on Django's connection, the clock, and the kinds of errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from temporalex_django.conf import WITHOUT_TIME_ZONES, get_settings
from temporalex_django.core import process
from temporalex_django.db.attempt_scope import AFTER_TRANSACTION, close_session
from temporalex_django.db.connections import set_transaction_limits, worker_statement_timeout
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.errors import NotConfigured


@contextmanager
def _forbid_close(connection: Any) -> Iterator[None]:
    """Refuse to close the connection: all runs of the turn would fail as if the database did not answer."""
    before = vars(connection).get("close")
    connection.close = _refuse_to_close
    try:
        yield
    finally:
        del connection.close
        if before is not None:
            connection.close = before


def _refuse_to_close() -> None:
    raise TransactionManagementError(
        "an atomic activity cannot close the connection: its writes and the next step of its run commit on it"
    )


class StorageSession:
    """A storage's way to the database: its alias and dialect, its clock, its transactions and its options.

    The parts of a storage share one. ``clock`` (a callable that returns an aware datetime) replaces the database's
    clock everywhere: virtual time in tests. ``worker`` is True for the storage of a worker process, whose transactions
    have limits.

    Raises ``NotConfigured`` in a project whose times have no time zone.
    """

    #: Most new messages that a turn reads of all its runs together.
    inbox_page = policy.INBOX_PAGE
    #: Names of activities to leave alone in test environments. Workers use their admission instead.
    switched_off: Collection[str] = ()
    #: Queues in which background tasks may have a priority.
    priority_queues: Collection[str] = ()
    #: True if activities may wait in partitions of their queues.
    partitioned = False
    #: True if the owner of the open transaction rolls it back after any error, so that a start needs no savepoint.
    disposable = False

    def __init__(
        self, alias: str | None = None, clock: Callable[[], datetime] | None = None, *, worker: bool = False
    ) -> None:
        if not settings.USE_TZ:
            raise NotConfigured(f"{WITHOUT_TIME_ZONES} Set USE_TZ = True in the settings of your project")
        self.alias = alias or get_settings().DATABASE
        self.clock = clock
        self.worker = worker
        self.sql: Dialect = get_dialect(self.alias)
        self._own_connection: Any = None  # the connection on which a ``transaction`` of this object is open
        self._exit_stack: ExitStack | None = None  # for the end of that transaction, if it commits

    def now(self) -> datetime:
        return self.submit_now()()

    def submit_now(self) -> Callable[[], datetime]:
        """Ask the database for its present time, and return a function that waits for the answer and returns it.

        With a virtual clock nothing is sent.
        """
        if self.clock is not None:
            return self.clock
        now, parameters = self.sql.now_expression(None, live=True)
        if parameters:  # a database without a clock of its own gets the time of this process
            return lambda: parameters[0]
        answer = self.sql.submit(f"select {now}", parameters, ("timestamptz",))

        def fetch_now() -> datetime:
            timestamp: datetime = answer()[0][0]
            return timestamp

        return fetch_now

    @contextmanager
    def transaction(self, site: str = "") -> Iterator[None]:
        """Open a transaction of the alias, or a savepoint if one is open.

        On SQLite the writer lock is taken at once. ``site`` names the place for tests that end the process there (see
        ``core.process``); "" has no such place.
        """
        connection, outer = connections[self.alias], (self._own_connection, self._exit_stack)
        outermost = not connection.in_atomic_block
        try:
            with self.sql.atomic() if outermost else transaction.atomic(using=self.alias):
                if outermost and self.worker:
                    set_transaction_limits(self.alias)
                with ExitStack() as end:
                    commits = outermost and connection.commit_on_exit  # not if autocommit is off: the caller commits
                    self._own_connection, self._exit_stack = (
                        connection,
                        end if commits and not self.sql.writer_lock else None,
                    )
                    try:
                        yield
                    finally:
                        self._own_connection, self._exit_stack = outer
                    if site and outermost:
                        process.reached(f"{site}: before commit")
        finally:
            if outermost and connection.close_at == AFTER_TRANSACTION:
                close_session(connection)
        if site and outermost:
            process.reached(f"{site}: after commit")

    def final_pipeline(self) -> AbstractContextManager[None]:
        """Return a context manager for the last statements of a transaction, which do not wait for each answer.

        If ``transaction`` opened the transaction, the commit is sent with them at the end of its block. Their answers
        are available after that, and the block raises their errors. No other statement may be sent in between.
        """
        end = self._exit_stack
        if end is None or self._own_connection is not connections[self.alias]:
            return self.sql.pipeline()
        end.enter_context(self.sql.pipeline())
        end.push(self._send_commit)
        return nullcontext()

    def _send_commit(self, failed: type[BaseException] | None, *_: object) -> None:
        """Send the commit together with the last statements (the pipeline), unless the block raised an error."""
        if failed is None:
            self.sql.execute("commit")  # Django's own commit finds no open transaction afterwards

    def detach(self) -> tuple[Any, ExitStack | None]:
        """Separate this storage from the open transaction of the calling thread, and return the state for ``attach``.

        The transaction stays open. Until ``attach`` another thread can use the storage. It is called while a long
        atomic activity runs.
        """
        state, self._own_connection, self._exit_stack = (self._own_connection, self._exit_stack), None, None
        return state

    def attach(self, state: tuple[Any, ExitStack | None]) -> None:
        """Continue the transaction that ``detach`` separated from this storage. No other one may be open then."""
        self._own_connection, self._exit_stack = state

    def join_transaction(self) -> AbstractContextManager[None]:
        """Return a context manager whose block belongs to the open transaction, without a savepoint of its own.

        An error in it fails that transaction. If none is open, it opens one.
        """
        connection = connections[self.alias]
        if connection.in_atomic_block and self._own_connection is connection:
            return nullcontext()
        return self.transaction()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            yield

    @contextmanager
    def checked_savepoint(self) -> Iterator[None]:
        """Open a savepoint for an atomic activity.

        Its end raises what deferred constraints (Django's foreign keys) would raise at the commit.
        """
        checked = self.sql.check_constraints(statement_timeout=worker_statement_timeout(self.alias))
        with self.savepoint(), checked, _forbid_close(connections[self.alias]):
            yield

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the commit of the open transaction, or now if none is open.

        Its exceptions are logged. If the caller commits by hand, it is called once ``autocommit`` is turned on again
        after the commit, as with Django's own ``on_commit``.
        """
        connection = connections[self.alias]
        is_manual = not connection.in_atomic_block and not connection.get_autocommit()
        with transaction.atomic(using=self.alias, savepoint=False) if is_manual else nullcontext():
            transaction.on_commit(callback, using=self.alias, robust=True)

    def is_transient(self, exc: BaseException) -> bool:
        """Return True if the same work may succeed on another try.

        That is so after a lock timeout, a deadlock, a serialization failure or a cancelled statement.
        """
        return self.sql.is_transient(exc)

    def is_interrupted(self, exc: BaseException) -> bool:
        """Return True if a statement was cancelled, by its ``statement_timeout`` or by a person."""
        return self.sql.is_interrupted(exc)

    def is_connection_lost(self, exc: BaseException, *, is_of_code: bool = False) -> bool:
        """Return True if the connection is gone and the caller should reconnect.

        Nothing was committed, unless the connection broke during a commit. With ``is_of_code``, code of the user may
        have raised the error, for example about a closed cursor or another database. Then the connection has to be
        closed, too.
        """
        if is_of_code and not _is_closed(connections[self.alias].connection):
            return False
        if isinstance(exc, InterfaceError):
            return True
        return isinstance(exc, OperationalError) and not self.sql.is_transient(exc) and self.sql.is_connection_lost(exc)


def _is_closed(raw: Any) -> bool:
    return raw is None or bool(getattr(raw, "closed", False))
