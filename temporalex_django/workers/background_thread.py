"""Background work of a worker that may take long, in a thread that exists only while there is such work."""

from __future__ import annotations

import logging
import threading

from temporalex_django.core.error_text import error_line
from temporalex_django.db import background_hooks
from temporalex_django.db.connections import worker_session
from temporalex_django.engine.scheduling import policy

log = logging.getLogger("temporalex_django.workers")


class BackgroundThread:
    """A thread that runs background hooks on one database alias: neither heartbeats nor turns wait for it.

    Hooks (``db.background_hooks``) are work that a worker does beside turns, and may run code of users.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Start the thread if there is work and it is not running. One statement; raises errors of the database."""
        if (self._thread is None or not self._thread.is_alive()) and background_hooks.has_work(self.alias):
            self._thread = threading.Thread(target=self._run, name="temporalex-chores", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop after the present piece of work."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(policy.STOP_SECONDS)

    def _run(self) -> None:
        with worker_session(self.alias):
            try:
                while not self._stop.is_set() and background_hooks.run_hooks(self.alias):
                    self._stop.wait(policy.BACKGROUND_PAUSE)
            except Exception as exc:  # noqa: BLE001 - maintenance starts it again
                log.warning("the background thread of a worker failed and will be restarted: %s", error_line(exc))
