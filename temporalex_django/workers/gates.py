"""What a worker may take now: limits of queues and activities, and what somebody has switched off.

Who has neither pays for it with a look at two empty mappings a poll.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from django.db import Error as DatabaseError

from temporalex_django.authoring import activity, workflow
from temporalex_django.conf import queue_limits
from temporalex_django.core.limits import NO_LIMITS
from temporalex_django.db.limited_claims import LimitedClaim, LimitedClaims
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.db.switches import Switches
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.room import AGAIN
from temporalex_django.engine.storage import NewTask, TaskState
from temporalex_django.errors import WorkflowSwitchedOff


class Gates:
    """Those of one worker. ``switches`` is what it heard last; the maintenance sets it."""

    def __init__(self, storage: DjangoStorage, queues: Sequence[str]) -> None:
        self._storage = storage
        self._queues = list(queues)
        self._claims = LimitedClaims(storage)
        self._next: dict[str, float] = {}  # when it is worth looking again at a queue of which nothing was to be had
        self._full: set[str] = set()  # those that have no room for what is due
        self._rated: set[str] = set()  # those of them in which a rate holds something back
        self._skipped = False  # the last claim did not look everywhere: it had looked a moment before
        self.short = False  # something might begin, but for the room that others had
        self.switches = Switches()

    @property
    def in_force(self) -> bool:
        """Whether there may be something that is limited, or off."""
        return bool(queue_limits()) or self._storage.lined or self.switches != Switches()

    @property
    def queues(self) -> Sequence[str]:
        """Queues whose runs it may take."""
        off = self.switches.queues
        return [queue for queue in self._queues if queue not in off] if off else self._queues

    @property
    def open_queues(self) -> Sequence[str]:
        """Those of them whose activities it may take without asking."""
        limits = queue_limits()
        return (
            [queue for queue in self.queues if not limits.get(queue, NO_LIMITS).is_limited] if limits else self.queues
        )

    @property
    def waiting(self) -> bool:
        """Whether something is due that a limit holds back, or may have come since somebody looked."""
        return bool(self._full) or self._skipped

    @property
    def rated(self) -> bool:
        """Whether some of it waits for a rate: that ends by itself, whatever others do."""
        return bool(self._rated)

    @property
    def wait(self) -> float | None:
        """Seconds until the next of these may be had."""
        waits = [self._next[queue] for queue in self._full if queue in self._next]
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def refuses(self, task: NewTask) -> bool:
        """Whether a new activity is to wait until it is judged."""
        if task.activity in self.switches.activities:
            return True
        return not task.local and task.activity in activity.limits_by_name

    def resolve(self, chain: UUID, name: str, version: int) -> type[workflow.Workflow]:
        """The class of a run. Raises ``WorkflowSwitchedOff``, and ``UnknownWorkflow``."""
        del chain
        if name in self.switches.workflows:
            raise WorkflowSwitchedOff(f"{name} is switched off")
        return workflow.class_for_run(name, version)

    def sift(self, tasks: list[TaskState]) -> list[TaskState]:
        """Of those that were claimed what may begin; the others are given back, to wait in lines of their own."""
        apart = self.switches.activities | activity.limits_by_name.keys()
        wrong = [task for task in tasks if task.activity in apart]
        if not wrong:
            return tasks
        self._storage.lined = True
        self._storage.give_back([(task.id, task.attempt, task.owner or 0) for task in wrong])
        for queue in {task.queue for task in wrong}:
            self._claims.move_apart(queue, {task.activity for task in wrong if task.queue == queue})
        return [task for task in tasks if task.activity not in apart]

    def claim(self, capacity: Capacity, *, owner: int, suspects: bool = False) -> tuple[list[TaskState], int]:
        """Take activities that are under limits, each queue in a transaction of its own; and how many were moved.

        With ``suspects`` only what a worker died of, whenever it was looked for last.
        """
        limits, tasks, moved, lines, short = queue_limits(), [], 0, suspects, False
        lined = self.switches.lines or self._storage.lined
        chosen = [queue for queue in self.queues if lined or limits.get(queue, NO_LIMITS).is_limited]
        now = time.monotonic()
        self._skipped = False
        for queue in self._storage.in_turn(chosen, "limited"):
            self._skipped = self._skipped or self._next.get(queue, 0.0) > now
            if not capacity or (not suspects and self._next.get(queue, 0.0) > now):
                short = short or not capacity or self.short
                lines = True  # who knows
                continue
            common, off = limits.get(queue, NO_LIMITS).is_limited, self.switches.activities
            try:
                found = self._claims.claim(
                    queue, capacity=capacity, owner=owner, off=off, common=common, suspects=suspects
                )
            except DatabaseError as exc:
                if not self._storage.transient(exc):
                    raise
                lines = True  # another worker has the limit: the next time
                continue
            tasks += found.tasks
            moved += found.moved
            lines, short = lines or found.lines, short or found.short
            if not suspects:
                self._noted(queue, found, now)
        self.short = short and not tasks
        self._storage.lined = self._storage.lined and lines
        return tasks, moved

    def _noted(self, queue: str, found: LimitedClaim, now: float) -> None:
        """When to look again: at once where something was to be had, or nothing waits."""
        self._next.pop(queue, None)
        self._full.discard(queue)
        self._rated.discard(queue)
        if found.again is not None:
            self._full.add(queue)
        if found.rated:
            self._rated.add(queue)
        if found.again is not None or (found.looked and not found.tasks and not found.moved):
            self._next[queue] = now + (found.again or AGAIN)

    def ended(self, queues: Sequence[str]) -> None:
        """Activities of these have ended: there is room."""
        for queue in queues:
            self._next.pop(queue, None)
