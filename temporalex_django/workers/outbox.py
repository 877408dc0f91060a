"""The dispatcher of a worker: it sends the rows of the outbox, in one thread for each destination that has some."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from django.db import Error as DatabaseError
from django.db import connections

from temporalex_django.core.failures import error_line
from temporalex_django.db import outbox
from temporalex_django.db.connections import worker_session
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy

log = logging.getLogger("temporalex_django.workers")


class OutboxDispatcher:
    """Sends the rows of the outbox of one database, from the maintenance of a worker.

    No destination waits for another: each has a thread, which exists only while rows for it are due.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def ensure_running(self) -> None:
        """Start the threads of destinations that have due rows and no thread. One read."""
        for destination in outbox.due_destinations(DjangoStorage(self.alias, worker=True)):
            thread = self._threads.get(destination)
            if thread is None or not thread.is_alive():
                thread = threading.Thread(
                    target=self._run, args=[destination], name=f"temporalex-outbox-{destination}", daemon=True
                )
                self._threads[destination] = thread
                thread.start()

    def age(self) -> float:
        """Return the seconds since which the oldest row should have been sent; 0.0 if there is none. One read."""
        storage = DjangoStorage(self.alias, worker=True)
        oldest = outbox.oldest_due(storage)
        return 0.0 if oldest is None else max(0.0, (storage.now() - oldest).total_seconds())

    def stop(self) -> None:
        """Stop the threads after what they are sending, and wait for them at most ``policy.STOP_SECONDS`` seconds."""
        self._stop.set()
        for thread in self._threads.values():
            thread.join(policy.STOP_SECONDS)

    def _run(self, destination: str) -> None:
        with worker_session(self.alias), ThreadPoolExecutor(policy.OUTBOX_THREADS) as pool:
            try:
                while not self._stop.is_set() and send_batch(self.alias, destination, pool):
                    pass
            except DatabaseError as exc:
                log.warning("the outbox of %s waits for the database: %s", destination, error_line(exc))
                connections[self.alias].close()


def send_batch(alias: str, destination: str | None, pool: ThreadPoolExecutor | None = None) -> bool:
    """Claim and send some due rows of a destination (None: of all); return True if there were any."""
    storage = DjangoStorage(alias, worker=True)
    rows = outbox.claim(storage, limit=policy.OUTBOX_BATCH, destination=destination)
    outbox.deliver(rows, storage=storage, pool=pool)
    return bool(rows)
