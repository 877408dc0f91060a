"""Scheduling: what a worker may claim, in which order of queues, and under which limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from temporalex_django.authoring import activity
from temporalex_django.core import names
from temporalex_django.core.limits import Limits, QueuePartition, StartSlices
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import NewTask, TaskState

# --- limit usage ------------------------------------------------------------------------------------------------------
#
# Limit usage: which activities of a queue may start now, under all limits that apply to them. No I/O.
#
# A limit belongs to a queue or to the name of an activity. It bounds how many activities run at a time, in all or for
# each concurrency key, or how many start within a period (its rate). It holds for all workers together.


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
        for its_queue, activity_name, partition, number in live_counts:
            key = None
            if partition is not None:
                key = QueuePartition.from_name(partition).key
            # A limit of an activity counts in all queues, a limit of the queue only there.
            for name in ([self._queue] if its_queue == queue else []) + (
                [activity_limit_name(activity_name)] if activity_limit_name(activity_name) in limited_names else []
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
        """Return ``(name, limits)`` of the queue and, if there are any, of the activity."""
        activity_limit = self._activity_limits.get(activity)
        return [
            (self._queue, self._limits),
            *([] if activity_limit is None else [(activity_limit_name(activity), activity_limit)]),
        ]

    def _limit_wait(self, name: str, limits: Limits, key: str | None) -> float | None:
        """Return the seconds until one limit may let an activity start; None: it may start now."""
        # Nobody knows when a running activity ends, so the wait is a fixed one; that for a rate can be computed.
        max_per_key = limits.concurrency_per_key
        if (limits.concurrency is not None and self._running[name, None] >= limits.concurrency) or (
            key is not None and max_per_key is not None and self._running[name, key] >= max_per_key
        ):
            return policy.LIMIT_RETRY_SECONDS
        if self._remaining.get(name, 1) > 0:
            return None
        return min(max(self._waits[name], policy.LIMIT_RETRY_SECONDS), policy.MAX_LIMIT_WAIT)


# --- capacity ---------------------------------------------------------------------------------------------------------
#
# The number of activities that a worker may claim: some that can start now, and some that can start soon.
#
# A plain activity needs a thread, and an ``async def`` one a place in the event loop.


#: Key in ``Capacity.prefetch`` for plain functions of names that have not finished here yet.
UNMEASURED: Final = ""


@dataclass(slots=True, kw_only=True)
class Capacity:
    """The number of activities that a worker can still claim in one poll; ``acquire`` reduces it.

    - ``threads``: the number of plain activities that can start at once.
    - ``tasks``: the number of ``async def`` activities, whose names are ``async_names``.
    - ``prefetch``: how many further activities of each name may be claimed ahead, because at their measured rate they
      start in a moment.
    - ``prefetch_limit``: the most of these together; None: as many as ``prefetch`` allows.
    - ``eager_limit``: the most new activities that the turn may claim beside these as it schedules them.
    - ``measured_names``: the names of activities that have finished here, so that their rate is known.
    - ``busy_runs``: the number of runs of which the worker holds an unstarted activity or a result.

    Slow activities are claimed only when they can start, since another worker may be idle. The same holds for names
    that were not measured. If many of such names were quick lately, ``prefetch`` has the name ``UNMEASURED``, which
    stands for them. See decision 35.
    """

    threads: int = 0
    tasks: int = 0
    prefetch: dict[str, int] = field(default_factory=dict)
    prefetch_limit: int | None = None
    eager_limit: int = 0
    async_names: Collection[str] = ()
    measured_names: Collection[str] = ()
    busy_runs: int = 0

    def __post_init__(self) -> None:
        if not self.async_names:
            self.tasks = 0  # nothing could use them
        total_prefetch = sum(self.prefetch.values())
        self.prefetch_limit = (
            total_prefetch if self.prefetch_limit is None else min(self.prefetch_limit, total_prefetch)
        )

    def __bool__(self) -> bool:
        return self.threads > 0 or self.tasks > 0 or bool(self.prefetch_limit)

    def reserve(self) -> int:
        """Set aside a part of ``prefetch_limit`` and return it; the caller adds it again later.

        So a claim of waiting activities leaves some capacity for those that the turn itself schedules.
        """
        reserved = (self.prefetch_limit or 0) // policy.RESERVE_SHARE
        self.prefetch_limit = (self.prefetch_limit or 0) - reserved
        return reserved

    @property
    def total(self) -> int:
        """The largest number of activities that can be claimed now."""
        return self.threads + self.tasks + (self.prefetch_limit or 0)

    @property
    def prefetch_excluded(self) -> Collection[str] | None:
        """The names of which no activity may be claimed ahead; None means all names that are not in ``prefetch``."""
        if UNMEASURED not in self.prefetch:
            return None
        return [name for name in {*self.measured_names, *self.async_names} if name not in self.prefetch]

    def acquire(self, activity: str) -> bool:
        """Consume the capacity for one activity of this name, and return False if there is none."""
        if activity in self.async_names:
            if self.tasks > 0:
                self.tasks -= 1
                return True
        elif self.threads > 0:
            self.threads -= 1
            return True
        remaining = self.prefetch.get(activity, 0)
        # A name that has never finished here uses the share of all unmeasured names.
        if not remaining and activity not in self.measured_names and activity not in self.async_names:
            activity, remaining = UNMEASURED, self.prefetch.get(UNMEASURED, 0)
        if not remaining or not self.prefetch_limit:
            return False
        self.prefetch_limit -= 1
        self.prefetch[activity] = remaining - 1
        if remaining == 1:
            del self.prefetch[activity]
        return True


# --- eager claim ------------------------------------------------------------------------------------------------------
#
# The eager claim: a worker claims new activities in the turn that schedules them.


@dataclass(slots=True, kw_only=True)
class EagerClaim:
    """The capacity of a worker to claim new activities in the turn that schedules them, which saves a later claim.

    ``owner`` is the worker's epoch, the number under which it owns what it claims. It claims activities of ``queues``
    as long as there is ``capacity``. Local activities come first, of all queues and whatever the capacity, up to
    ``max_local``. Further local ones wait in the queue of their run. ``is_refused`` returns True for an activity that
    has to wait for admission (limits and switches); None refuses none.
    """

    owner: int
    capacity: Capacity
    queues: Collection[str]
    max_local: int = policy.MAX_LOCAL
    is_refused: Callable[[NewTask], bool] | None = None

    def select(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        """Return the new activities that the worker claims, and reduce the capacity by them.

        Atomic activities are never among them, because turns run them.
        """
        candidates = [task for task in tasks if not task.atomic and task.activity in activity.registry]
        if self.is_refused is not None:
            candidates = [task for task in candidates if not self.is_refused(task)]
        local = [task for task in candidates if task.is_local][: self.max_local]
        for task in local:
            self.capacity.acquire(task.activity)
        return local + [
            t for t in candidates if not t.is_local and t.queue in self.queues and self.capacity.acquire(t.activity)
        ]


# --- queue rotation ---------------------------------------------------------------------------------------------------
#
# The order in which a worker serves queues, and rows of a queue that wait.


class QueueRotation:
    """A rotation of the queues of a worker: each queue comes first as often as its weight says, evenly spread."""

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def order(self, queues: Sequence[str], weight: Callable[[str], int]) -> Sequence[str]:
        """Return the queues in their order for the next round; the first one may use all of the worker's capacity.

        ``weight`` returns the weight of a queue: how often it comes first, in relation to the others.
        """
        if len(queues) < 2:
            return queues
        weights = {queue: weight(queue) for queue in queues}
        self._credit = {queue: self._credit.get(queue, 0) + weights[queue] for queue in queues}
        ordered = sorted(queues, key=lambda queue: -self._credit[queue])
        # Smooth weighted round robin: the first queue pays for the credit that all queues have gained in this round.
        self._credit[ordered[0]] -= sum(weights.values())
        return ordered


class NewestAndOldest:
    """A mix of the oldest and the newest rows for claims, while more rows wait than a claim takes.

    A quarter of the claimed rows are the newest then. So a run that starts behind fifty thousand others proceeds at
    once, and the others still get most of the claims.
    """

    def __init__(self) -> None:
        self._has_backlog = self._started_newest = False
        self._credit: defaultdict[str, int] = defaultdict(int)

    def newest_count(self, limit: int, lane: str = "") -> int:
        """Return how many of the next ``limit`` rows to claim should be the newest ones; 0 unless many rows wait.

        On average a quarter are. ``lane`` is any name that the caller chooses: claims with different names are counted
        separately, so that each kind gets its quarter.
        """
        if not self._has_backlog:
            return 0
        # The remainder is carried over, so that many claims of one or two rows add up to a quarter, too.
        share, self._credit[lane] = divmod(self._credit[lane] + limit, policy.NEWEST_SHARE)
        return share

    def starts_with_newest(self) -> bool:
        """Return True if the next claim, which takes either kind of rows, should take the newest ones.

        While many rows wait, that is every other claim.
        """
        self._started_newest = self._has_backlog and not self._started_newest
        return self._started_newest

    def record_claim(self, claimed_count: int, limit: int) -> None:
        """Record that a claim of at most ``limit`` rows has returned ``claimed_count``.

        If these are equal, more rows may wait, and the next claims take newest rows as well.
        """
        self._has_backlog = 0 < limit <= claimed_count
