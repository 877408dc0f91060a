"""The health file of a worker, and the number of its database connections."""

from __future__ import annotations

import os
import time

from temporalex_django.conf import get_settings
from temporalex_django.engine import policy
from temporalex_django.liveness.health import (
    Health,
    HealthFile,
    State,
    activity_threads,
    delete_stale_files,
    extra_connections,
)
from temporalex_django.workers.maintained_loop import MaintainedLoop


def handover_threads() -> int:
    """Return how many threads may run turns while a long atomic activity occupies the worker's own thread.

    Each of them needs a connection, so there are no more than the other connections leave of ``WORKER_CONNECTIONS``.
    """
    settings = get_settings()
    if settings.WORKER_CONNECTIONS is None:
        return policy.MAX_HELPERS
    return max(0, min(policy.MAX_HELPERS, settings.WORKER_CONNECTIONS - extra_connections() - activity_threads()))


class HealthReport:
    """The health file of one worker loop, and the values that it writes there.

    ``lease_until`` is a time of the monotonic clock; the code that sends the heartbeats sets it.
    """

    def __init__(self, loop: MaintainedLoop) -> None:
        self.loop = loop
        self.lease_until = 0.0
        #: Seconds since which the oldest outgoing message should be gone; 0.0: there is none.
        self.outbox_age = 0.0
        self._file = HealthFile(loop.storage.domain)

    def start(self) -> None:
        """Write that the worker starts, and delete the files of dead workers.

        It may be called again as long as the worker waits for its database.
        """
        delete_stale_files(self._file.domain)
        self.write("starting")

    def record_lease(self, started_at: float) -> None:
        """Record that a statement which began at ``started_at`` (monotonic clock) extended the lease."""
        # Counted from the beginning of the statement, so that the worker never takes its lease for longer than it is.
        self.lease_until = started_at + get_settings().LEASE_SECONDS

    def write(self, state: State | None = None) -> None:
        """Write the present values of the worker to its health file.

        ``state`` replaces the state that follows from the worker's values (working, draining, leaving), if it is not
        None.
        """
        loop = self.loop
        current_state: State = "leaving" if loop.stop_deadline else "draining" if loop.row.drained_at else "working"
        health = Health(
            worker=str(loop.row.id),
            pid=os.getpid(),
            guardian=self._file.guardian_pid(),
            kind=loop.row.kind,
            queues=loop.queues,
            state=state or current_state,
            wrote_at=time.monotonic(),
            looked_at=min(loop.polled_at, loop.handover.oldest_started_at),
            lease_until=self.lease_until,
            leaves_by=loop.stop_deadline,
            runs=len(loop.engine.cache),
            activities=loop.pool.busy,
            turns=loop.turn_count,
            connections=activity_threads() + handover_threads() + extra_connections(),
            counters={"outbox_age": round(self.outbox_age, 1)},
        )
        self._file.write(health)

    def remove(self) -> None:
        self._file.remove()
