"""The worker for development, a worker loop in a thread of this process."""

from __future__ import annotations

import atexit
import logging
import threading

from django.db import DatabaseError

from temporalex_django.core.failures import error_line
from temporalex_django.workers.loop import WorkerLoop

log = logging.getLogger("temporalex_django.workers")


class DevelopmentWorker:
    """A worker in threads of this process, on one database alias (None: that of the settings).

    ``runserver`` under DEBUG starts one; see the setting ``LOCAL_RUNNER``.
    """

    def __init__(self, alias: str | None = None) -> None:
        self.alias = alias
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: WorkerLoop | None = None

    def wake(self, after: float = 0.0) -> None:
        """Make the worker look for work at once, whatever ``after`` says: it knows the next due time itself."""
        del after  # the loop itself sleeps until the next due time
        if self._loop is not None:
            self._loop.wake.set()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="temporalex-local", daemon=True)
            self._thread.start()
            atexit.register(self.stop)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.stop)
            self._stop.set()
            self.wake()
            thread.join(30)
            self._stop.clear()

    def _run(self) -> None:
        """Run the worker loop. Before the first ``migrate`` it waits for the package's tables."""
        delay = 1.0
        while not self._stop.is_set():
            try:
                self._loop = WorkerLoop(alias=self.alias, kind="local")
                self._loop.run(self._stop)
            except DatabaseError as exc:
                log.warning("workflows are not running yet: %s (did you run `manage.py migrate`?)", error_line(exc))
                self._stop.wait(delay)
                delay = min(delay * 2, 30.0)
            finally:
                self._loop = None
