"""What a worker does beside turns that may take long: in a thread that is there only while there is something to do."""

from __future__ import annotations

import logging
import threading

from temporalex_django.core.error_text import error_line
from temporalex_django.db import background_hooks
from temporalex_django.db.connections import worker_session

log = logging.getLogger("temporalex_django.workers")

#: Between two moments of work, for those who want to write as well.
_PAUSE = 0.1
#: How long a worker that ends waits for the item in hand.
_STOP_TIMEOUT = 10.0


class BackgroundThread:
    """They may run code of users: neither the beat of the worker nor its turns wait for them."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def ensure_running(self) -> None:
        """Go on with what there is, if that is not being done. One statement; raises what the database raises."""
        if (self._thread is None or not self._thread.is_alive()) and background_hooks.has_work(self.alias):
            self._thread = threading.Thread(target=self._run, name="temporalex-chores", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """After the item in hand."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        with worker_session(self.alias):
            try:
                while not self._stop.is_set() and background_hooks.run_hooks(self.alias):
                    self._stop.wait(_PAUSE)
            except Exception as exc:  # noqa: BLE001 - it is begun again
                log.warning("what a worker does beside turns goes on after an error: %s", error_line(exc))
