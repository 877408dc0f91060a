"""A worker of an environment in a thread of its own, for tests in which a browser uses a live server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.db import DatabaseError, connections

from temporalex_django.core.failures import error_line
from temporalex_django.errors import TemporalexError

if TYPE_CHECKING:
    from temporalex_django.testing.database import DjangoEnvironment

logger = logging.getLogger("temporalex_django.testing")

#: Seconds between two polls.
_POLL = 0.02


@contextmanager
def live_worker(env: DjangoEnvironment) -> Iterator[None]:
    """Return a context manager that runs a worker while its block runs, on a database connection of its own.

    An error of the worker is raised at the end of the block.
    """
    _require_committed_data(env.storage.alias)
    worker = _LiveWorker(env)
    worker.start()
    try:
        yield
    finally:
        worker.stop()
    if worker.error is not None:
        raise worker.error


def call_in_thread(call: Callable[[], None]) -> None:
    """Call ``call()`` in a thread with its own database connection, and wait until it returns.

    Where an event loop runs, Django refuses the connection of the calling thread. An error of the call is raised.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001 - raised below
            errors.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name="temporalex-environment-call")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class _LiveWorker(threading.Thread):
    """A thread that repeatedly lets the environment do the work that is due, until it is stopped.

    ``error`` is the error that ended it, or None.
    """

    def __init__(self, env: DjangoEnvironment) -> None:
        super().__init__(name="temporalex-environment", daemon=True)
        self.env = env
        self.error: Exception | None = None
        self._stop_event = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_event.wait(_POLL):
                self._poll()
        except Exception as exc:  # noqa: BLE001 - raised in the thread of the test
            self.error = exc
        finally:
            connections.close_all()

    def _poll(self) -> None:
        try:
            self.env.work()
        except DatabaseError as exc:
            # The live server writes at the same time: a lock that was not available (SQLite) is no failure of the test.
            if not self.env.storage.is_transient(exc):
                raise
            logger.warning("the database is busy, trying again: %s", error_line(exc))

    def stop(self) -> None:
        self._stop_event.set()
        self.join()


def _require_committed_data(alias: str) -> None:
    """Raise ``TemporalexError`` if another connection could not see the data of the test on the database ``alias``."""
    connection = connections[alias]
    if connection.in_atomic_block:
        raise TemporalexError(
            "a worker alongside the test sees only committed data: use a TransactionTestCase, a "
            "StaticLiveServerTestCase or the fixtures transactional_db and live_server"
        )
    # Only the SQLite backend has this method.
    in_memory = getattr(connection, "is_in_memory_db", None)
    if in_memory is not None and in_memory():
        raise TemporalexError(
            "a worker alongside the test needs its own connection, which an in-memory database cannot provide: "
            f'use a file, DATABASES[{alias!r}]["TEST"] = {{"NAME": "test.sqlite3"}}'
        )
