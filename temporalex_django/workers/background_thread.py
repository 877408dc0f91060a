"""Background work of a worker that may take long, in a thread that exists only while there is such work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from temporalex_django.core.failures import error_line
from temporalex_django.db import background_hooks
from temporalex_django.db.background_hooks import BackgroundHook
from temporalex_django.db.connections import worker_session
from temporalex_django.engine import policy

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
