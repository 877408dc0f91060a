"""How many activities of a queue may begin now, by all the limits that they are under. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from temporalex_django.core import aliases
from temporalex_django.core.limits import Limits, QueuePartition, StartSlices

#: After so many seconds there may be room that another worker had; so long at most nobody asks:
#: others of the queue may have come that need not wait.
AGAIN, _LONGEST = 0.05, 0.2
#: Queue, activity, line and number of those that are under way.
Live = Iterable[tuple[str, str, str | None, int]]


def queue_name(queue: str) -> str:
    """What a limit of that queue is called."""
    return f"queue:{queue}"


def activity_name(activity: str) -> str:
    """The same of an activity, whichever of its names it is scheduled by."""
    return f"activity:{aliases.ACTIVITIES.get(activity, activity)}"


class Room:
    """Those that are free in one queue.

    ``limits`` are the queue's, ``own`` those of activities that have some, ``live`` says what is under way,
    ``starts`` what began of late, by the names of limits.
    """

    def __init__(
        self,
        queue: str,
        limits: Limits,
        own: Mapping[str, Limits],
        live: Live,
        starts: Mapping[str, StartSlices],
        now: float,
    ) -> None:
        self._limits, self._own, self._queue = limits, own, queue_name(queue)
        self._rates = {name: one.rate for name, one in self._named() if one.rate is not None}
        self._left = {name: rate.remaining(starts.get(name, ()), now) for name, rate in self._rates.items()}
        self._waits = {name: rate.wait_seconds(starts.get(name, ()), now) for name, rate in self._rates.items()}
        self._busy: Counter[tuple[str, str | None]] = Counter()  # by limit and key
        counted = {activity_name(name) for name in own}
        for its_queue, activity, line, number in live:
            key = None if line is None else QueuePartition.from_name(line).key
            for name in ([self._queue] if its_queue == queue else []) + (
                [activity_name(activity)] if activity_name(activity) in counted else []
            ):
                self._busy[name, None] += number
                if key is not None:
                    self._busy[name, key] += number

    def _named(self) -> list[tuple[str, Limits]]:
        return [(self._queue, self._limits), *((activity_name(name), one) for name, one in self._own.items())]

    def wait(self, activity: str, key: str | None) -> float | None:
        """Seconds until it is worth asking again whether one of these may begin; None: it may."""
        waits = [wait for name, one in self._of(activity) if (wait := self._wait(name, one, key)) is not None]
        return max(waits, default=None)

    def is_rated(self, activity: str) -> bool:
        """Whether a rate lets none of these begin now."""
        return any(self._left.get(name, 1) <= 0 for name, _ in self._of(activity))

    def takes(self, activity: str, key: str | None) -> None:
        """One of these begins."""
        for name, _ in self._of(activity):
            self._busy[name, None] += 1
            if key is not None:
                self._busy[name, key] += 1
            if name in self._rates:
                self._left[name] -= 1

    def _of(self, activity: str) -> list[tuple[str, Limits]]:
        own = self._own.get(activity)
        return [(self._queue, self._limits), *([] if own is None else [(activity_name(activity), own)])]

    def _wait(self, name: str, limits: Limits, key: str | None) -> float | None:
        most = limits.concurrency_per_key
        if (limits.concurrency is not None and self._busy[name, None] >= limits.concurrency) or (
            key is not None and most is not None and self._busy[name, key] >= most
        ):
            return AGAIN
        return None if self._left.get(name, 1) > 0 else min(max(self._waits[name], AGAIN), _LONGEST)
