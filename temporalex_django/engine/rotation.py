"""Which queue comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

#: One of so many that are claimed is one of the newest, where many wait.
_NEWEST_SHARE: Final = 4


class QueueRotation:
    """Queues take turns in being first, each as often as its weight says, and evenly spread."""

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def order(self, queues: Sequence[str], weight: Callable[[str], int]) -> Sequence[str]:
        """For the next round. Those behind the first get what it leaves."""
        if len(queues) < 2:
            return queues
        weights = {queue: weight(queue) for queue in queues}
        self._credit = {queue: self._credit.get(queue, 0) + weights[queue] for queue in queues}
        ordered = sorted(queues, key=lambda queue: -self._credit[queue])
        self._credit[ordered[0]] -= sum(weights.values())
        return ordered


class NewestAndOldest:
    """Whether more waits than a claim takes; then a quarter of what is claimed are the newest.

    So whoever comes behind fifty thousand others goes on at once, step by step, and they get the rest.
    """

    def __init__(self) -> None:
        self._has_backlog = self._started_newest = False
        self._credit: defaultdict[str, int] = defaultdict(int)

    def newest_count(self, limit: int, lane: str = "") -> int:
        """Of a claim of so many, which is to be made now, the number of the newest. Each lane is counted by itself."""
        if not self._has_backlog:
            return 0
        share, self._credit[lane] = divmod(self._credit[lane] + limit, _NEWEST_SHARE)
        return share

    def starts_with_newest(self) -> bool:
        """For a claim that cannot be divided: whether it begins with the newest, as every other one does."""
        self._started_newest = self._has_backlog and not self._started_newest
        return self._started_newest

    def record_claim(self, claimed_count: int, limit: int) -> None:
        """A claim of so many found so many."""
        self._has_backlog = 0 < limit <= claimed_count
