"""Waiting for notifications about a chain on the caller's own connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections

from temporalex_django.conf import get_settings
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.messages.notify import DONE_CHANNEL

#: A function that waits so many seconds at most.
WaitFunction = Callable[[float], None]


@contextmanager
def listen(chain: UUID, *, alias: str) -> Iterator[WaitFunction]:
    """Listen for notifications about a chain while the block runs, and yield a function that waits for one.

    The function takes the most seconds to wait. It returns early when a turn of ``chain`` was announced. Look at the
    rows before the first wait and after each one, since notifications may be lost and have more than one reason. Your
    statement then also ends the listening. So if you wait again, that wait listens again and returns at once, for
    another look.

    The function is ``time.sleep`` where no notifications arrive: on SQLite, behind a pooler, in a transaction, on a
    standby. An error that breaks the connection is not raised here; the next user of the connection finds it.
    """
    connection, dialect, name = connections[alias], get_dialect(alias), chain.hex
    raw = None
    if _can_listen(connection):
        raw = connection.connection
    if raw is None or not _send_command(connection, raw, "listen"):
        yield time.sleep
        return

    withdraw_unlisten: Callable[[], bool] | None = None  # withdraws the UNLISTEN that goes with the next statement

    def wait(seconds: float) -> None:
        nonlocal withdraw_unlisten
        if withdraw_unlisten is not None:
            is_withdrawn, withdraw_unlisten = withdraw_unlisten(), None
            if not is_withdrawn and _send_command(connection, raw, "listen"):
                return  # a notification may have come while nothing listened, so the caller looks again
        deadline = time.monotonic() + seconds
        try:
            with connection.wrap_database_errors:
                while (left := deadline - time.monotonic()) > 0:
                    if any(name in notice.payload for notice in raw.notifies(timeout=left, stop_after=1)):
                        withdraw_unlisten = dialect.send_with_next(f"unlisten {DONE_CHANNEL}")
                        return
        except DatabaseError:
            time.sleep(max(deadline - time.monotonic(), 0.0))

    try:
        yield wait
    finally:
        if withdraw_unlisten is None or withdraw_unlisten():
            _send_command(connection, raw, "unlisten")


def _can_listen(connection: Any) -> bool:
    """Return True if notifications can arrive on this connection now.

    They cannot on SQLite, behind a pooler, or in a transaction.
    """
    if not get_dialect(connection.alias).listens or get_settings().POOLED or connection.in_atomic_block:
        return False
    return bool(connection.get_autocommit())


def _send_command(connection: Any, raw: Any, command: str) -> bool:
    """Send "listen" or "unlisten" (``command``) for ``DONE_CHANNEL``; return True if the server has executed it.

    It does not use Django's cursor, because it is no query of the project. ``raw`` is the connection of psycopg inside
    ``connection``.
    """
    with suppress(DatabaseError), connection.wrap_database_errors:
        raw.execute(f"{command} {DONE_CHANNEL}")
        return True
    return False
