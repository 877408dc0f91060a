"""Sessions of workers: limits that keep a frozen worker from holding anybody up.

A session of its own has them for good. Behind a transaction pooler (``POOLED``) sessions belong to everybody, web
requests too: there each transaction of a worker sets them for itself, and nothing for whoever comes next.
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

_thread = threading.local()

#: Seconds that a thread of a worker keeps a connection; an idle one lets go of it after as many.
KEEP_OPEN_SECONDS = 60.0
#: The server ends the session of a worker that froze inside a transaction; its locks go with it.
IDLE_IN_TRANSACTION = "15s"
#: About 100 ms, and different in every session: of two workers that wait for each other's rows one gives up first.
LOCK_TIMEOUT_MS = (50, 150)
STATEMENT_TIMEOUT = "60s"


@contextmanager
def worker_session(alias: str) -> Iterator[None]:
    """While inside, every connection that this thread opens to ``alias`` is set up for a worker.

    One that is open is closed before: it may have broken, and whoever works in the block waits for the next one. Inside
    of a transaction it stays, and is set up.
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


def keep_open(seconds: float = KEEP_OPEN_SECONDS) -> None:
    """Connections that this thread opens from now on stay so long, whatever ``CONN_MAX_AGE`` says, unless they break.

    One that broke meanwhile is replaced when it is used (``CONN_HEALTH_CHECKS``): a restart of the database costs an
    attempt of those that were running, and none of those that come next. For threads that run one short activity after
    the other: opening a connection for each costs more than most of them.
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
    """At the beginning of a transaction: a worker behind a pooler sets its limits for this one.

    No statement anywhere else.
    """
    if getattr(_thread, "pooled", False) and _thread.alias == alias:
        get_dialect(alias).set_up_transaction(_session_limits())


def worker_statement_timeout(alias: str) -> str | None:
    """What holds in the transactions of a worker, without asking the server.

    None when this thread is no worker's there.
    """
    return STATEMENT_TIMEOUT if getattr(_thread, "alias", None) == alias else None


def _configure_session(alias: str) -> None:
    if not _thread.pooled:
        get_dialect(alias).set_up_session(_session_limits())


def _session_limits() -> dict[str, str]:
    lock_timeout = random.randint(*LOCK_TIMEOUT_MS)  # noqa: S311 - no secret
    return {
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION,
        "lock_timeout": f"{lock_timeout}ms",
        "statement_timeout": STATEMENT_TIMEOUT,
    }
