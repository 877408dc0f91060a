"""The order in which a worker serves queues, and rows of a queue that wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from temporalex_django.engine.scheduling import policy


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
