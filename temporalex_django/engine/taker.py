"""What a worker takes of the activities that its own turn schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from temporalex_django.authoring import activity
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.storage import NewTask


@dataclass(slots=True, kw_only=True)
class Taker:
    """A worker that takes new activities with the write of the turn that scheduled them: that spares the claim.

    Those of ``queues`` for which there is ``capacity``, which is used up; local ones come first, of all queues, and up
    to ``most_local`` whatever capacity there is: what is beyond that waits like any other in the queue of its run.
    ``refuses``: what waits for whoever judges limits and switches; None: nothing.
    """

    owner: int
    capacity: Capacity
    queues: Collection[str]
    most_local: int = 400
    refuses: Callable[[NewTask], bool] | None = None

    def chooses(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        """Which of these it takes. Atomic ones belong to the turn."""
        able = [task for task in tasks if not task.atomic and task.activity in activity.registry]
        if self.refuses is not None:
            able = [task for task in able if not self.refuses(task)]
        local = [task for task in able if task.local][: self.most_local]
        for task in local:
            self.capacity.takes(task.activity)
        return local + [t for t in able if not t.local and t.queue in self.queues and self.capacity.takes(t.activity)]
