"""Sessions of workers: limits that keep a frozen worker from holding anybody up."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

_thread = threading.local()

#: The server ends the session of a worker that froze inside a transaction; its locks go with it.
IDLE_IN_TRANSACTION = "15s"
#: About 100 ms, and different in every session: of two workers that wait for each other's rows one gives up first.
LOCK_TIMEOUT_MS = (50, 150)
STATEMENT_TIMEOUT = "60s"


@contextmanager
def worker_session(alias: str) -> Iterator[None]:
    """While inside, every connection that this thread opens to ``alias`` is set up for a worker; one that is open is too."""
    _thread.alias = alias
    try:
        connection = connections[alias]
        if connection.connection is not None:
            _prepare(connection)
        yield
    finally:
        _thread.alias = None
        if not connections[alias].in_atomic_block:
            connections[alias].close()


@receiver(connection_created)
def _set_up(sender: Any, connection: Any, **_: Any) -> None:
    if getattr(_thread, "alias", None) == connection.alias:
        _prepare(connection)


def _prepare(connection: Any) -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            wait = random.randint(*LOCK_TIMEOUT_MS)  # noqa: S311 - no secret
            cursor.execute(
                f"set idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION}';"
                f" set lock_timeout = '{wait}ms'; set statement_timeout = '{STATEMENT_TIMEOUT}';"
                " set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3"
            )
