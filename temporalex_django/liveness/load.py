"""The load of a worker: how long its runs and activities take, and how many there are.

A worker stores it in its row with each heartbeat. ``operations.fleet.scaling`` computes from the rows of all workers
how many workers a queue needs.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Final, TypedDict

from temporalex_django.conf import CLUSTER_CONNECTIONS, get_settings, uses_cluster
from temporalex_django.engine import policy

_EXTRA_CONNECTIONS: Final = 5


class QueueLoad(TypedDict):
    """The attempts of activities of one queue: how many end in a second, and the mean of their seconds.

    ``share`` is the part of a worker that one running attempt occupies, such as 1/8 for one of eight threads.
    """

    rate: float
    seconds: float
    share: float


class WorkerLoad(TypedDict):
    """The load of a worker, as its row stores it.

    ``busy`` is the part of its time, from 0 to 1, in which it
    ran turns, and ``run_seconds`` the mean time to advance one run; None if it has advanced none. ``queues`` has the
    load by activities, by queue.
    """

    busy: float
    run_seconds: float | None
    queues: dict[str, QueueLoad]


class LoadMeter:
    """Measures the load of one worker. Thread-safe.

    All sums fade with time, so that a load of a minute ago counts little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updated_at = time.monotonic()
        self._elapsed = self._busy = self._runs = 0.0
        #: By queue: the number of attempts, and the sums of their seconds and of their shares of the worker.
        self._attempts: dict[str, tuple[float, float, float]] = {}

    def add_attempt(self, queue: str, seconds: float, *, slots: int) -> None:
        """Count an attempt of an activity that has ended after ``seconds``.

        ``slots`` is the number of such attempts that the worker can run at a time.
        """
        with self._lock:
            count, total, shares = self._attempts.get(queue, (0.0, 0.0, 0.0))
            if count or len(self._attempts) < policy.MAX_MEASURED_QUEUES:
                self._attempts[queue] = count + 1.0, total + seconds, shares + 1.0 / slots

    def add_poll(self, seconds: float, *, runs: int) -> None:
        """Count a poll that found work: it took ``seconds`` and advanced ``runs`` runs."""
        with self._lock:
            self._busy += seconds
            self._runs += runs

    def load(self) -> WorkerLoad:
        """Return the present load, and let what was measured fade."""
        with self._lock:
            now = time.monotonic()
            passed, self._updated_at = now - self._updated_at, now
            elapsed = self._elapsed + passed
            load = WorkerLoad(
                busy=round(min(1.0, self._busy / elapsed), 4) if elapsed else 0.0,
                run_seconds=round(self._busy / self._runs, 6) if self._runs >= 1.0 else None,
                queues={
                    queue: QueueLoad(
                        rate=round(count / elapsed, 4), seconds=round(total / count, 4), share=round(shares / count, 6)
                    )
                    for queue, (count, total, shares) in self._attempts.items()
                    if elapsed
                },
            )
            weight = math.exp(-passed / policy.LOAD_MEMORY_SECONDS)
            self._elapsed, self._busy, self._runs = elapsed * weight, self._busy * weight, self._runs * weight
            self._attempts = {
                queue: (count * weight, total * weight, shares * weight)
                for queue, (count, total, shares) in self._attempts.items()
                if count * weight > policy.LEAST_ATTEMPTS
            }
            return load


def extra_connections() -> int:
    """Return the number of database connections of a worker that are not those of its threads for activities.

    Its turns, its maintenance, LISTEN and its background work have one each, and so does the thread in which its
    ``async`` activities use the database. A Temporal cluster needs ``CLUSTER_CONNECTIONS`` more.
    """
    return _EXTRA_CONNECTIONS + (CLUSTER_CONNECTIONS if uses_cluster() else 0)


def activity_threads() -> int:
    """Return the number of threads for activities: ``ACTIVITY_THREADS``, as far as ``WORKER_CONNECTIONS`` allows."""
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return settings.ACTIVITY_THREADS
    return min(settings.ACTIVITY_THREADS, settings.WORKER_CONNECTIONS - extra_connections())
