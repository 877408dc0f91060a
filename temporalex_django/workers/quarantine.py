"""Activities that may have ended a worker begin one by one, so that the next death tells who it was.

A suspect is on *trial* for a moment after it began: its worker begins nothing else, no turn either, and the marker and
the row of the worker say so. It begins in an empty pool, or after a while beside what has outlived its own beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from temporalex_django.engine.storage import TaskState
from temporalex_django.liveness.crash_markers import MarkedWork, MarkerSlot

if TYPE_CHECKING:
    from temporalex_django.workers.pool import Pool

#: How long a worker takes no other activity so that its pool empties, before a suspect begins beside what is left.
_EMPTY_POOL_TIMEOUT = 0.5
#: How long a trial is: most that kill do so at once. Twice as long with each attempt.
_TRIAL, _LONGEST_TRIAL = 0.5, 300.0


class Quarantine:
    """Decides for one worker what it may take and begin.

    Costs nothing while there is no suspect (``TaskState.crashes``).
    """

    def __init__(self, pool: Pool, mark: MarkerSlot, *, announce: Callable[[Sequence[MarkedWork]], object]) -> None:
        self._pool = pool
        self._announce = announce
        self._mark = mark
        self._waiting_since: float | None = None  # suspects are due, as far as is known
        self._trial_key: tuple[int, int, int] | None = None
        self._trial_until = 0.0

    @property
    def is_on_trial(self) -> bool:
        """Whether somebody is on trial: no turn, nothing new."""
        if self._trial_key is None:
            return False
        if time.monotonic() < self._trial_until and self._trial_key in self._pool.pending_keys():
            return True
        self._announce(())  # where that fails it is still quiet
        self._trial_key = None
        self._mark.clear()
        return False

    @property
    def has_suspects(self) -> bool:
        """Whether suspects wait for this pool to be empty: nothing else is to be taken."""
        return self._waiting_since is not None

    @property
    def is_ready(self) -> bool:
        """Whether a suspect may be taken now."""
        if self._waiting_since is None:
            return False
        return not self._pool.busy or time.monotonic() - self._waiting_since > _EMPTY_POOL_TIMEOUT

    def filter_claimed(
        self, tasks: list[TaskState], *, all_seen: bool = True
    ) -> tuple[list[TaskState], list[tuple[int, int, int]]]:
        """Of those that were claimed: what is to begin, and what is to be given back, uncounted.

        ``all_seen``: where these come from is all there is. Else suspects may wait under limits.
        """
        suspects = [task for task in tasks if task.crashes]
        if not suspects:
            if all_seen and self.is_ready and not tasks:
                self._waiting_since = None  # somebody else has taken them
            return tasks, []
        safe_tasks = [task for task in tasks if not task.crashes]
        if safe_tasks or (self._pool.busy and not self.is_ready):
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
            return safe_tasks, [_task_key(task) for task in suspects]
        first, *others = suspects
        self._announce([MarkedWork("trial", first.id)])
        self._trial_key = _task_key(first)
        self._trial_until = time.monotonic() + min(_TRIAL * 2 ** max(0, first.attempt - 2), _LONGEST_TRIAL)
        self._mark.record("trial", first.id)
        self._waiting_since = time.monotonic()  # there may be more of them
        return [first], [_task_key(task) for task in others]


def _task_key(task: TaskState) -> tuple[int, int, int]:
    return (task.id, task.attempt, task.owner or 0)
