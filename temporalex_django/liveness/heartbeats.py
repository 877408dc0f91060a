"""Observations of heartbeats: when this process saw the last new one of each worker, by its own monotonic clock.

A process that searches for dead workers keeps them. A lease that has ended by the database's clock proves nothing: that
clock may have been set forward. See decision 23.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime


class Heartbeats:
    """The heartbeats of workers as one process has observed them, which searches for dead workers.

    Workers are identified by their epoch, the number that a worker draws when it registers. The silence of a worker
    begins when the process sees a new heartbeat of it, or the first one. So a process that has just started finds no
    worker late.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[datetime, float]] = {}
        self._confirmed: set[int] = set()

    def observe(self, heartbeats: Iterable[tuple[int, datetime]]) -> None:
        """Record the heartbeats in the rows of workers, as pairs ``(epoch, time)``; forget workers without a row.

        The epoch is the number that a worker draws when it registers.
        """
        now, before, self._seen = time.monotonic(), self._seen, {}
        for epoch, beat_at in heartbeats:
            last = before.get(epoch)
            # Any other value is a heartbeat, also an earlier one: the database's clock may have been set back.
            if last is not None and last[0] == beat_at:
                self._seen[epoch] = last
                continue
            self._seen[epoch] = (beat_at, now)
            if last is not None:
                self._confirmed.add(epoch)
        self._confirmed &= self._seen.keys()

    def silence(self, epoch: int) -> float:
        """Return the seconds since this process saw a new heartbeat of the worker with this epoch (its number)."""
        return time.monotonic() - self._seen[epoch][1]

    def is_confirmed(self, epoch: int) -> bool:
        """Return True if the worker with this epoch (number) has sent a heartbeat since this process first saw it."""
        return epoch in self._confirmed

    def clear(self) -> None:
        """Forget all observations, so that no worker is late.

        Call it after a time in which this process could not read the heartbeats, or the workers could not send any.
        """
        self._seen.clear()
        self._confirmed.clear()
