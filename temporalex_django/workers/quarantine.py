"""The quarantine: activities that may have ended a worker start one by one, so that the next death shows the cause.

Such an activity is a suspect. It is on *trial* for a moment after it has started. Its worker starts nothing else then,
and runs no turn, and the marker and the row of the worker name the suspect. It starts in an empty pool or, after a
while, beside activities that have been running since before that. See decision 22.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import TaskState
from temporalex_django.liveness.crash_markers import MarkedWork, MarkerSlot

if TYPE_CHECKING:
    from temporalex_django.workers.pool import Pool


class Quarantine:
    """The quarantine of one worker, which decides what the worker may claim and start.

    It costs nothing while there is no suspect: an activity during which a worker has died (``TaskState.crashes``).
    ``mark`` is a slot in the crash marker of this process. ``announce`` commits to the row of the worker the work that
    is about to run; an empty list clears it.
    """

    def __init__(self, pool: Pool, mark: MarkerSlot, *, announce: Callable[[Sequence[MarkedWork]], object]) -> None:
        self._pool = pool
        self._announce = announce
        self._mark = mark
        self._waiting_since: float | None = None  # when suspects became due, as far as is known
        self._trial_key: tuple[int, int, int] | None = None
        self._trial_until = 0.0

    @property
    def is_on_trial(self) -> bool:
        """True while a suspect is on trial: no turn runs, and nothing new starts."""
        if self._trial_key is None:
            return False
        if time.monotonic() < self._trial_until and self._trial_key in self._pool.pending_keys():
            return True
        self._announce(())  # first: where it fails, the trial continues
        self._trial_key = None
        self._mark.clear()
        return False

    @property
    def has_suspects(self) -> bool:
        """True if suspects wait for this pool to be empty, so that the worker should claim nothing else."""
        return self._waiting_since is not None

    @property
    def is_ready(self) -> bool:
        """True if a suspect waits and may be claimed now: the pool is empty, or the suspect has waited for a while."""
        if self._waiting_since is None:
            return False
        return not self._pool.busy or time.monotonic() - self._waiting_since > policy.EMPTY_POOL_SECONDS

    def filter_claimed(
        self, tasks: list[TaskState], *, all_seen: bool = True
    ) -> tuple[list[TaskState], list[tuple[int, int, int]]]:
        """Return the claimed activities that may start now, and the keys (task id, attempt, owner) of those to release.

        The attempts of the latter do not count. A suspect (an activity during which a worker has died) that may start
        is put on trial: nothing else starts beside it. ``all_seen`` False means that others may wait under limits, so
        that ``tasks`` without a suspect do not prove that there is none.
        """
        suspects = [task for task in tasks if task.crashes]
        if not suspects:
            if all_seen and self.is_ready and not tasks:
                self._waiting_since = None  # another worker has claimed them
            return tasks, []
        safe_tasks = [task for task in tasks if not task.crashes]
        if safe_tasks or (self._pool.busy and not self.is_ready):
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
            return safe_tasks, [_task_key(task) for task in suspects]
        first, *others = suspects
        # The row is written before the activity starts, so that others know the suspect even if no marker survives.
        self._announce([MarkedWork("trial", first.id)])
        self._trial_key = _task_key(first)
        self._trial_until = time.monotonic() + min(
            policy.FIRST_TRIAL * 2 ** max(0, first.attempt - 2), policy.LONGEST_TRIAL
        )
        self._mark.record("trial", first.id)
        self._waiting_since = time.monotonic()  # there may be more of them
        return [first], [_task_key(task) for task in others]


def _task_key(task: TaskState) -> tuple[int, int, int]:
    return (task.id, task.attempt, task.owner or 0)
