"""Fair queues, of attempts that wait for a thread and of results: workflow classes take turns in them."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from uuid import UUID

from temporalex_django.core.limits import interleave
from temporalex_django.engine.contracts.records import TaskResult
from temporalex_django.workers.attempts import Attempt, PooledCall


class FairQueue:
    """A queue of attempts and calls in which workflow classes take turns, each in its own order. Thread-safe.

    So a few attempts of one class do not wait for all attempts of another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_class: dict[str, deque[Attempt | PooledCall]] = {}  # the next class first; none is empty

    def __bool__(self) -> bool:
        return bool(self._by_class)

    def extend(self, attempts: Iterable[Attempt | PooledCall]) -> None:
        with self._lock:
            for attempt in attempts:
                self._by_class.setdefault(attempt.workflow, deque()).append(attempt)

    def pop(self) -> Attempt | PooledCall | None:
        """Remove and return the next attempt, or None if there is none."""
        with self._lock:
            for name in self._by_class:
                attempts = self._by_class.pop(name)
                attempt = attempts.popleft()
                if attempts:
                    self._by_class[name] = attempts  # behind the others
                return attempt
            return None

    def waiting_since(self) -> float | None:
        """Return when the attempt that waits longest was claimed (``time.monotonic``), or None if none waits."""
        with self._lock:
            return min((attempts[0].claimed_at for attempts in self._by_class.values()), default=None)


def select_fairly(results: list[TaskResult], limit: int) -> list[TaskResult]:
    """Return the results of at most ``limit`` runs, taking one workflow class after the other.

    All results of a chosen run are returned, and all results of background tasks.
    """
    if len(results) <= limit:
        return results
    by_class: defaultdict[str, list[TaskResult]] = defaultdict(list)
    for result in results:
        by_class[result.task.workflow].append(result)
    chains: set[UUID] = set()
    selected = []
    for result in interleave(by_class.values()):
        chain = result.task.chain_id
        if chain is not None and len(chains) < limit:
            chains.add(chain)
        if chain is None or chain in chains:
            selected.append(result)
    return selected
