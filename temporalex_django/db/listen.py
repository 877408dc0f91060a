"""Hearing on the caller's own connection that a chain has something that somebody may wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connections

from temporalex_django.conf import get_settings
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.db.notify import DONE_CHANNEL

#: Waits so many seconds at most.
WaitFunction = Callable[[float], None]


@contextmanager
def listen(chain: UUID, *, alias: str) -> Iterator[WaitFunction]:
    """While inside this thread's connection listens; gives a pause that ends when a turn of ``chain`` has been told of.

    Who has heard of it will look: the end of listening goes with that, and behind a look in vain there is no pause,
    since it listens anew. Just ``time.sleep`` where hints do not come: on SQLite, behind a pooler, in a transaction, on
    a standby. They may be lost anywhere, and are sent for more than one reason: look before the first pause and after
    each. What breaks the connection is left to be found by whoever uses it next.
    """
    connection, dialect, name = connections[alias], get_dialect(alias), chain.hex
    raw = connection.connection if _can_listen(connection) else None
    if raw is None or not _send_command(connection, raw, "listen"):
        yield time.sleep
        return

    withdraw_unlisten: Callable[[], bool] | None = (
        None  # takes the end of listening back, which goes with the next look
    )

    def wait(seconds: float) -> None:
        nonlocal withdraw_unlisten
        if withdraw_unlisten is not None:
            is_withdrawn, withdraw_unlisten = withdraw_unlisten(), None
            if not is_withdrawn and _send_command(connection, raw, "listen"):
                return  # what came in between was not heard
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
    if not get_dialect(connection.alias).listens or get_settings().POOLED or connection.in_atomic_block:
        return False
    return bool(connection.get_autocommit())


def _send_command(connection: Any, raw: Any, command: str) -> bool:
    """Whether the server has done it. Not by Django's cursor: it is no query of the project's."""
    with suppress(DatabaseError), connection.wrap_database_errors:
        raw.execute(f"{command} {DONE_CHANNEL}")
        return True
    return False
