"""Waiting for a database that does not answer, and reconnecting to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.core.failures import error_line
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.storage import WorkerStorage

log = logging.getLogger("temporalex_django.workers")


def next_pause(pause: float) -> float:
    """Return the seconds to wait after a failure; ``pause`` is the previous result (0.0 at the first failure)."""
    return min(max(policy.FIRST_RECONNECT, pause * 2), policy.LONGEST_RECONNECT)


def retry_until_available(
    callback: Callable[[], None], *, storage: WorkerStorage, stop: threading.Event, timeout: float | None = None
) -> bool:
    """Call ``callback`` until the database answers; return False when ``stop`` is set before that.

    Raises other errors of ``callback``, and ``TimeoutError`` after ``timeout`` seconds (None: never).
    """
    pause, deadline = 0.0, None if timeout is None else time.monotonic() + timeout
    while not stop.is_set():
        try:
            callback()
        except DatabaseError as exc:
            if not storage.is_connection_lost(exc):
                raise
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the database did not answer within {timeout:g} s: {exc}") from exc
            pause = next_pause(pause)
            log.warning("the database does not answer, retrying in %.1f s: %s", pause, error_line(exc))
            connections[storage.alias].close()
            stop.wait(pause)
        else:
            return True
    return False
