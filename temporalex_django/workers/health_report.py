"""What a worker writes into its health file, and how many connections it takes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from temporalex_django.conf import get_settings
from temporalex_django.liveness.health import Health, HealthFile, State, sweep
from temporalex_django.workers.relief import MOST

if TYPE_CHECKING:
    from temporalex_django.workers.loop import WorkerLoop

#: Connections of a worker that are not those of its threads for activities: its turns, maintenance, LISTEN, chores, and
#: the thread in which its ``async`` activities ask the database.
BESIDE_THREADS = 5


def activity_threads() -> int:
    """Threads of a worker for activities: what ``WORKER_CONNECTIONS`` leaves of ``ACTIVITY_THREADS``."""
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return settings.ACTIVITY_THREADS
    return min(settings.ACTIVITY_THREADS, settings.WORKER_CONNECTIONS - BESIDE_THREADS)


def relief_threads() -> int:
    """Threads that take turns where an atomic activity takes long: what ``WORKER_CONNECTIONS`` leaves beside others."""
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return MOST
    return max(0, min(MOST, settings.WORKER_CONNECTIONS - BESIDE_THREADS - activity_threads()))


class HealthReport:
    """Of one worker loop. ``lease_until`` is kept by whoever beats, by the monotonic clock."""

    def __init__(self, loop: WorkerLoop) -> None:
        self.loop = loop
        self.lease_until = 0.0
        self._file = HealthFile(loop.storage.domain)

    def begin(self) -> None:
        """It starts. May be called again, as long as it waits for its database; what dead ones left goes."""
        sweep(self._file.domain)
        self.write("starting")

    def leased(self, began: float) -> None:
        """The lease was prolonged by a statement that began then."""
        self.lease_until = began + get_settings().LEASE_SECONDS

    def write(self, state: State | None = None) -> None:
        loop = self.loop
        here: State = "leaving" if loop.leaves_by else "draining" if loop.row.drained_at else "working"
        said = Health(
            worker=str(loop.row.id),
            pid=os.getpid(),
            guardian=self._file.guarded_by(),
            kind=loop.row.kind,
            queues=loop.queues,
            state=state or here,
            wrote_at=time.monotonic(),
            looked_at=min(loop.looked_at, loop.relief.since),
            lease_until=self.lease_until,
            leaves_by=loop.leaves_by,
            runs=len(loop.engine.cache),
            activities=loop.pool.busy,
            turns=loop.turns,
            connections=activity_threads() + relief_threads() + BESIDE_THREADS,
        )
        self._file.write(said)

    def end(self) -> None:
        self._file.remove()
