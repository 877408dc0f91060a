"""Database sessions of workers: limits that keep a frozen worker from blocking other processes.

The limits apply to the whole session of a worker. Behind a transaction pooler (setting ``POOLED``) sessions are shared,
also with web requests. There each transaction of a worker sets the limits for itself, and the next user of the session
is not affected.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from temporalex_django.conf import get_settings
from temporalex_django.db.dialects.base import get_dialect
from temporalex_django.engine import policy

_thread = threading.local()


@contextmanager
def worker_session(alias: str) -> Iterator[None]:
    """Set the limits of a worker on every connection that this thread opens to ``alias`` inside the block.

    A connection that is open is closed first, since it may have broken. If a transaction is open, the connection stays
    open and gets the limits.
    """
    _thread.alias = alias
    _thread.pooled = get_settings().POOLED
    try:
        if connections[alias].in_atomic_block:
            _configure_session(alias)
        else:
            connections[alias].close()
        yield
    finally:
        _thread.alias, _thread.pooled = None, False
        if not connections[alias].in_atomic_block:
            connections[alias].close()


def keep_open(seconds: float = policy.KEEP_OPEN_SECONDS) -> None:
    """Keep the connections that this thread opens from now on for ``seconds``, unless they break.

    ``CONN_MAX_AGE`` does not matter. A connection that has broken is replaced when it is used again
    (``CONN_HEALTH_CHECKS``). So a restart of the database fails only the attempts that were running. Use it in threads
    that run one short activity after the other: a new connection costs more than most of these.
    """
    _thread.kept_for = seconds


@receiver(connection_created)
def _configure_connection(sender: Any, connection: Any, **_: Any) -> None:
    kept_for = getattr(_thread, "kept_for", None)
    if kept_for is not None:
        connection.health_check_enabled = True
        if connection.close_at is not None:
            connection.close_at = max(connection.close_at, time.monotonic() + kept_for)
    if getattr(_thread, "alias", None) == connection.alias:
        _configure_session(connection.alias)


def set_transaction_limits(alias: str) -> None:
    """Set the limits of a worker for the transaction that begins, if this thread is a worker behind a pooler.

    Otherwise nothing is sent.
    """
    if getattr(_thread, "pooled", False) and _thread.alias == alias:
        get_dialect(alias).set_up_transaction(_session_limits())


def worker_statement_timeout(alias: str) -> str | None:
    """Return the statement timeout of this worker's transactions, in PostgreSQL's notation. No statement is sent.

    Returns None if this thread is not a worker's, or not for that alias.
    """
    if getattr(_thread, "alias", None) == alias:
        return policy.STATEMENT_TIMEOUT
    return None


def _configure_session(alias: str) -> None:
    """Set a worker's limits for the session, unless a pooler shares sessions: other processes would get them."""
    if not _thread.pooled:
        get_dialect(alias).set_up_session(_session_limits())


def _session_limits() -> dict[str, str]:
    lock_timeout = random.randint(*policy.LOCK_TIMEOUT_MS)  # noqa: S311 - no secret
    return {
        "idle_in_transaction_session_timeout": policy.IDLE_IN_TRANSACTION,
        "lock_timeout": f"{lock_timeout}ms",
        "statement_timeout": policy.STATEMENT_TIMEOUT,
    }
