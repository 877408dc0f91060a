"""Transactions of a storage on Django's connection, and what may be tried again after one that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from temporalex_django.core import crash_points
from temporalex_django.db.connections import set_transaction_limits, worker_statement_timeout
from temporalex_django.db.dialects.base import Dialect, get_dialect


@contextmanager
def _forbid_close(connection: Any) -> Iterator[None]:
    """Whoever closes the connection meanwhile is refused: it looks like a database that is away, to all runs."""
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


class Transactions:
    """What a storage does about them. ``worker``: it is one of a worker, whose transactions have limits."""

    def __init__(self, alias: str, *, worker: bool) -> None:
        self.alias = alias
        self.worker = worker
        self.sql: Dialect = get_dialect(alias)
        self._own_connection: Any = None  # the connection on which a ``transaction`` of this object is open
        self._exit_stack: ExitStack | None = None  # what is left to be done at the end of that, where it commits

    @contextmanager
    def transaction(self, site: str = "") -> Iterator[None]:
        """A transaction of the alias, or a savepoint inside one that is open.

        On SQLite the writer lock is taken at once. ``site``: its name in ``core.crash_points``.
        """
        connection, outer = connections[self.alias], (self._own_connection, self._exit_stack)
        outermost = not connection.in_atomic_block
        with self.sql.atomic() if outermost else transaction.atomic(using=self.alias):
            if outermost and self.worker:
                set_transaction_limits(self.alias)
            with ExitStack() as end:
                commits = outermost and connection.commit_on_exit  # not where autocommit is off: that is the caller's
                self._own_connection, self._exit_stack = (
                    connection,
                    end if commits and not self.sql.writer_lock else None,
                )
                try:
                    yield
                finally:
                    self._own_connection, self._exit_stack = outer
                if site and outermost:
                    crash_points.reached(f"{site}: before commit")
        if site and outermost:
            crash_points.reached(f"{site}: after commit")

    def final_pipeline(self) -> AbstractContextManager[None]:
        """As ``Dialect.pipeline``, for the last statements of a transaction.

        Of our own the commit is sent with them, when its block is over: their answers are there behind it, and what one
        of them raises it raises. Nothing else is to be asked before.
        """
        end = self._exit_stack
        if end is None or self._own_connection is not connections[self.alias]:
            return self.sql.pipeline()
        end.enter_context(self.sql.pipeline())
        end.push(self._send_commit)
        return nullcontext()

    def _send_commit(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self.sql.execute("commit")  # Django's own finds nothing that is open any more

    def detach(self) -> tuple[Any, ExitStack | None]:
        """The calling thread leaves its transaction open for a while, and the object to others; see ``attach``."""
        state, self._own_connection, self._exit_stack = (self._own_connection, self._exit_stack), None, None
        return state

    def attach(self, state: tuple[Any, ExitStack | None]) -> None:
        """It is back, and nobody else has one open."""
        self._own_connection, self._exit_stack = state

    def join_transaction(self) -> AbstractContextManager[None]:
        """Part of our own ``transaction``, which fails with it, without a savepoint; where none is open, one."""
        connection = connections[self.alias]
        return (
            nullcontext() if connection.in_atomic_block and self._own_connection is connection else self.transaction()
        )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with transaction.atomic(using=self.alias):
            yield

    @contextmanager
    def checked_savepoint(self) -> Iterator[None]:
        """A savepoint for an atomic activity.

        Its end raises what deferred constraints (Django's foreign keys) would raise at the commit.
        """
        checked = self.sql.check_constraints(statement_timeout=worker_statement_timeout(self.alias))
        with self.savepoint(), checked, _forbid_close(connections[self.alias]):
            yield

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call it after the commit of the transaction that is open, or now if none is; what it raises is logged.

        Where the caller commits by himself, when he has and turns ``autocommit`` on again: as Django's own.
        """
        connection = connections[self.alias]
        is_manual = not connection.in_atomic_block and not connection.get_autocommit()
        with transaction.atomic(using=self.alias, savepoint=False) if is_manual else nullcontext():
            transaction.on_commit(callback, using=self.alias, robust=True)

    def is_transient(self, exc: BaseException) -> bool:
        """Whether the same work may succeed on another try.

        Lock timeout, deadlock, serialization failure, a cancelled statement.
        """
        return self.sql.is_transient(exc)

    def is_interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled, by its ``statement_timeout`` or by somebody."""
        return self.sql.is_interrupted(exc)

    def is_connection_lost(self, exc: BaseException) -> bool:
        """Whether the connection is gone, and the caller should reconnect.

        Nothing was committed, unless it broke while a commit was on its way.
        """
        if isinstance(exc, InterfaceError):
            return True
        return isinstance(exc, OperationalError) and not self.sql.is_transient(exc) and self.sql.is_connection_lost(exc)
