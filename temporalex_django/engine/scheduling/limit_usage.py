"""Limit usage: which activities of a queue may start now, under all limits that apply to them. No I/O.

A limit belongs to a queue or to the name of an activity. It bounds how many activities run at a time, in all or for
each concurrency key, or how many start within a period (its rate). It holds for all workers together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from temporalex_django.core import names
from temporalex_django.core.limits import Limits, QueuePartition, StartSlices
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.engine.scheduling import policy

#: Queue, activity, partition and number of the activities that are running.
LiveCounts = Iterable[tuple[str, str, str | None, int]]


@dataclass(slots=True)
class LimitedClaim:
    """The result of a claim of activities under limits; ``tasks`` are the activities that were claimed.

    - ``moved``: the number of activities that moved to another partition of the queue.
    - ``has_due``: some activities are due.
    - ``has_partitions``: some activities wait in partitions.
    - ``retry_after``: the limits allow no due activity to start now; this is the number of seconds after which they
      may.
    - ``is_rate_limited``: some of these wait for a rate.
    - ``lacks_capacity``: the worker itself has no capacity for some activities that may start.
    """

    tasks: list[TaskState] = field(default_factory=list)
    moved: int = 0
    has_due: bool = False
    has_partitions: bool = False
    retry_after: float | None = None
    is_rate_limited: bool = False
    lacks_capacity: bool = False


def queue_limit_name(queue: str) -> str:
    """Return the name under which the use of a queue's limit is counted."""
    return f"queue:{queue}"


def activity_limit_name(activity: str) -> str:
    """Return the name under which the use of an activity's limit is counted; a renamed activity keeps it."""
    return f"activity:{names.ACTIVITIES.get(activity, activity)}"


class LimitUsage:
    """The free capacity of one queue under its limits.

    ``limits`` are those of the queue, and ``activity_limits`` those of activities, by name. ``live_counts`` has the
    numbers of running activities, as ``(queue, activity, partition, number)``. ``recent_starts`` has the latest starts
    by the name of the limit. ``now`` is in seconds since 1970.
    """

    def __init__(
        self,
        queue: str,
        limits: Limits,
        activity_limits: Mapping[str, Limits],
        live_counts: LiveCounts,
        recent_starts: Mapping[str, StartSlices],
        now: float,
    ) -> None:
        self._limits, self._activity_limits, self._queue = limits, activity_limits, queue_limit_name(queue)
        self._rates = {name: limit.rate for name, limit in self._named_limits() if limit.rate is not None}
        self._remaining = {name: rate.remaining(recent_starts.get(name, ()), now) for name, rate in self._rates.items()}
        self._waits = {name: rate.wait_seconds(recent_starts.get(name, ()), now) for name, rate in self._rates.items()}
        self._running: Counter[tuple[str, str | None]] = Counter()  # by limit and key
        limited_names = {activity_limit_name(name) for name in activity_limits}
        for its_queue, activity, partition, number in live_counts:
            key = None
            if partition is not None:
                key = QueuePartition.from_name(partition).key
            # A limit of an activity counts in all queues, a limit of the queue only there.
            for name in ([self._queue] if its_queue == queue else []) + (
                [activity_limit_name(activity)] if activity_limit_name(activity) in limited_names else []
            ):
                self._running[name, None] += number
                if key is not None:
                    self._running[name, key] += number

    def _named_limits(self) -> list[tuple[str, Limits]]:
        return [
            (self._queue, self._limits),
            *((activity_limit_name(name), limit) for name, limit in self._activity_limits.items()),
        ]

    def wait_seconds(self, activity: str, key: str | None) -> float | None:
        """Return None if an activity of this name may start now under all limits.

        Otherwise return the seconds after which to ask again. ``key`` is its concurrency key, if it has one.
        """
        waits = [
            wait
            for name, limit in self._limits_of(activity)
            if (wait := self._limit_wait(name, limit, key)) is not None
        ]
        return max(waits, default=None)

    def is_rate_limited(self, activity: str) -> bool:
        """Return True if no activity of this name may start now, because a rate has been used up."""
        return any(self._remaining.get(name, 1) <= 0 for name, _ in self._limits_of(activity))

    def acquire(self, activity: str, key: str | None) -> None:
        """Count one activity of this name as started; ``key`` is its concurrency key, if it has one."""
        for name, _ in self._limits_of(activity):
            self._running[name, None] += 1
            if key is not None:
                self._running[name, key] += 1
            if name in self._rates:
                self._remaining[name] -= 1

    def _limits_of(self, activity: str) -> list[tuple[str, Limits]]:
        """Return the limits that apply to an activity of this name, as pairs ``(name, limits)``.

        They are those of the queue and, if there are any, those of the activity.
        """
        activity_limit = self._activity_limits.get(activity)
        return [
            (self._queue, self._limits),
            *([] if activity_limit is None else [(activity_limit_name(activity), activity_limit)]),
        ]

    def _limit_wait(self, name: str, limits: Limits, key: str | None) -> float | None:
        """Return the seconds until one limit may let an activity with this ``key`` start; None: it may start now."""
        # Nobody knows when a running activity ends, so the wait is a fixed one; that for a rate can be computed.
        max_per_key = limits.concurrency_per_key
        if (limits.concurrency is not None and self._running[name, None] >= limits.concurrency) or (
            key is not None and max_per_key is not None and self._running[name, key] >= max_per_key
        ):
            return policy.LIMIT_RETRY_SECONDS
        if self._remaining.get(name, 1) > 0:
            return None
        return min(max(self._waits[name], policy.LIMIT_RETRY_SECONDS), policy.MAX_LIMIT_WAIT)
