"""Lines in which classes of workflows take turns: that of attempts that wait for a thread, and that of their ends."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from uuid import UUID

from temporalex_django.core.limits import interleave
from temporalex_django.engine.storage import TaskResult
from temporalex_django.workers.attempts import Attempt


class FairQueue:
    """Classes of workflows take turns in it, each in its own order: a few of one do not wait for all of another.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_class: dict[str, deque[Attempt]] = {}  # who comes next first; none is empty

    def __bool__(self) -> bool:
        return bool(self._by_class)

    def extend(self, attempts: Iterable[Attempt]) -> None:
        with self._lock:
            for attempt in attempts:
                self._by_class.setdefault(attempt.task.workflow, deque()).append(attempt)

    def pop(self) -> Attempt | None:
        """Take out the one whose turn it is; None: nobody waits."""
        with self._lock:
            for name in self._by_class:
                attempts = self._by_class.pop(name)
                attempt = attempts.popleft()
                if attempts:
                    self._by_class[name] = attempts  # behind the others
                return attempt
            return None

    def waiting_since(self) -> float | None:
        """When the one was taken that waits longest (``time.monotonic``); None: nobody waits."""
        with self._lock:
            return min((attempts[0].claimed_at for attempts in self._by_class.values()), default=None)


def select_fairly(results: list[TaskResult], limit: int) -> list[TaskResult]:
    """The ends of so many runs, of all classes; with each the others that it has. Those of lone activities besides."""
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
