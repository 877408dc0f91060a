"""The eager claim: a worker claims new activities in the turn that schedules them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from temporalex_django.authoring import activity
from temporalex_django.engine.contracts.records import NewTask
from temporalex_django.engine.scheduling import policy
from temporalex_django.engine.scheduling.capacity import Capacity


@dataclass(slots=True, kw_only=True)
class EagerClaim:
    """The capacity of a worker to claim new activities in the turn that schedules them, which saves a later claim.

    ``owner`` is the worker's epoch, the number under which it owns what it claims. It claims activities of ``queues``
    as long as there is ``capacity``. Local activities come first, of all queues and whatever the capacity, up to
    ``max_local``. Further local ones wait in the queue of their run. ``is_refused`` returns True for an activity that
    has to wait for admission (limits and switches); None refuses none.
    """

    owner: int
    capacity: Capacity
    queues: Collection[str]
    max_local: int = policy.MAX_LOCAL
    is_refused: Callable[[NewTask], bool] | None = None

    def select(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        """Return the new activities that the worker claims, and reduce the capacity by them.

        Atomic activities are never among them, because turns run them.
        """
        candidates = [task for task in tasks if not task.atomic and task.activity in activity.registry]
        if self.is_refused is not None:
            candidates = [task for task in candidates if not self.is_refused(task)]
        local = [task for task in candidates if task.is_local][: self.max_local]
        for task in local:
            self.capacity.acquire(task.activity)
        return local + [
            t for t in candidates if not t.is_local and t.queue in self.queues and self.capacity.acquire(t.activity)
        ]
