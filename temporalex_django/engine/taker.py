"""What a worker takes of the activities that its own turn schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from temporalex_django.authoring import activity
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.storage import NewTask


@dataclass(slots=True, kw_only=True)
class EagerClaim:
    """A worker that takes new activities with the write of the turn that scheduled them: that spares the claim.

    Those of ``queues`` for which there is ``capacity``, which is used up; local ones come first, of all queues, and up
    to ``max_local`` whatever capacity there is: what is beyond that waits like any other in the queue of its run.
    ``is_refused``: what waits for whoever judges limits and switches; None: nothing.
    """

    owner: int
    capacity: Capacity
    queues: Collection[str]
    max_local: int = 400
    is_refused: Callable[[NewTask], bool] | None = None

    def select(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        """Which of these it takes. Atomic ones belong to the turn."""
        candidates = [task for task in tasks if not task.atomic and task.activity in activity.registry]
        if self.is_refused is not None:
            candidates = [task for task in candidates if not self.is_refused(task)]
        local = [task for task in candidates if task.is_local][: self.max_local]
        for task in local:
            self.capacity.acquire(task.activity)
        return local + [
            t for t in candidates if not t.is_local and t.queue in self.queues and self.capacity.acquire(t.activity)
        ]
