"""Background work of a worker that may take long, in a thread that exists only while there is such work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.core.failures import error_line
from temporalex_django.db import background_hooks
from temporalex_django.db.background_hooks import BackgroundHook
from temporalex_django.db.connections import worker_session
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.storage import WorkerStorage

log = logging.getLogger("temporalex_django.workers")


class BackgroundThread:
    """A thread that does occasional work of a worker on one database, so that neither heartbeats nor turns wait for it.

    ``hooks`` is one of the lists of ``db.background_hooks``: bulk jobs and cleanup, or schedules. They may run code of
    users. ``name`` is the name of the thread, and ``pause`` the seconds between two rounds of the hooks.
    """

    def __init__(self, alias: str, hooks: Sequence[BackgroundHook], *, name: str, pause: float) -> None:
        self.alias = alias
        self._hooks = hooks
        self._name = name
        self._pause = pause
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Start the thread if there is work and it is not running. One statement; raises errors of the database."""
        if (self._thread is None or not self._thread.is_alive()) and background_hooks.has_work(self.alias, self._hooks):
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its present piece of work, and wait for it at most ``policy.STOP_SECONDS`` seconds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(policy.STOP_SECONDS)

    def _run(self) -> None:
        with worker_session(self.alias):
            try:
                while not self._stop.is_set() and background_hooks.run_hooks(self.alias, self._hooks):
                    self._stop.wait(self._pause)
            except Exception as exc:  # noqa: BLE001 - maintenance starts it again
                log.warning("the background thread of a worker failed and will be restarted: %s", error_line(exc))


# --- reconnect --------------------------------------------------------------------------------------------------------
#
# Waiting for a database that does not answer, and reconnecting to it.


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
