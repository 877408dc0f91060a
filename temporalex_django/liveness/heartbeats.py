"""Observations of heartbeats: when a judge saw the last new one of each worker, by the judge's own monotonic clock.

A judge is a process that finds out which workers are dead. A lease that has ended by the database's clock proves
nothing: that clock may have been set forward. See decision 23.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime


class Heartbeats:
    """The observations of one judge: a process that finds out which workers are dead.

    Workers are identified by their epoch. The silence of a worker begins when the judge sees a new heartbeat of it, or
    the first one. So a judge that has just started finds no worker late.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[datetime, float]] = {}
        self._confirmed: set[int] = set()

    def observe(self, heartbeats: Iterable[tuple[int, datetime]]) -> None:
        """Record the heartbeats that the rows of workers have now, as (epoch, time); forget workers without a row."""
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
        """Return the seconds since the judge saw a new heartbeat of the worker with this epoch."""
        return time.monotonic() - self._seen[epoch][1]

    def is_confirmed(self, epoch: int) -> bool:
        """Return True if the worker with this epoch has sent a heartbeat since the judge first saw it."""
        return epoch in self._confirmed

    def clear(self) -> None:
        """Forget all observations.

        Call it after a time in which the judge could not look, or the workers could not send heartbeats.
        """
        self._seen.clear()
        self._confirmed.clear()
