"""The time budget of one turn."""

from __future__ import annotations

import time

from temporalex_django.engine.scheduling import policy


class TurnClock:
    """The time budget of one turn: whether its next run may start, and until when that run may take messages.

    Runs with short inboxes come first. There are ``short_count`` of them. A turn that is not ``limited`` starts all
    runs: in a test environment, the order of runs must not depend on how fast the machine is.
    """

    __slots__ = ("_limited", "_short_count", "_started_at")

    def __init__(self, *, short_count: int, limited: bool) -> None:
        self._limited = limited
        self._short_count = short_count
        self._started_at = time.monotonic()

    def may_start(self, index: int, now: float, *, has_results: bool) -> bool:
        """Return True if the run at ``index`` of the turn may start at ``now`` (``time.monotonic``).

        The first run always may. A run to which results of activities are delivered (``has_results``) may start after
        more of the budget is spent than others. So may the first run with a long inbox: such runs come last, so
        otherwise it might never start.
        """
        if has_results:
            budget = policy.TURN_SECONDS_WITH_RESULTS
        else:
            budget = policy.TURN_SECONDS
        if index == self._short_count:
            budget = policy.LATE_SECONDS
        return not index or not self._limited or now - self._started_at <= budget

    def deadline(self, index: int, now: float) -> float:
        """Return the time until which the run at ``index``, which starts at ``now``, may take messages.

        Both are times of ``time.monotonic``.
        """
        until = self._started_at + policy.TURN_SECONDS
        if index >= self._short_count:
            until = max(until, now + policy.MIN_RUN_SECONDS)
        return min(until, now + policy.RUN_SECONDS)
