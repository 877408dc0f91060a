"""What a worker asks of a storage, besides what a turn asks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.storage import RunStorage, TaskState, TaskStorage


class WorkerStorage(RunStorage, TaskStorage, Protocol):
    """What a worker asks of a storage besides: it shares it with others, and takes what it does piece by piece."""

    @property
    def turn_size(self) -> int:
        """Runs that a worker claims at a time."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """``TaskStorage.claim_tasks``; with ``suspects`` those only of which a worker died."""

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Attempts of these are under way since ``started_at``: their timeouts count from then. Fenced."""

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Attempts (task id, attempt, owner) that were taken and never begun are free, and uncounted. Fenced."""

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """The attempts of an owner. Locks nothing."""

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Seconds until a run or an activity of these queues is due: 0.0 now (or fresh messages), None nothing ever.

        ``activity_queues``: those of the activities where they are others. Locks nothing.
        """

    def is_deferred(self, chain: UUID) -> bool:
        """Whether this worker leaves the run alone for now."""

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock a chain in the open transaction, waiting so many seconds at most; False: in vain, nothing is lost.

        ``yields``: what the transaction holds may be what somebody stands in line for that has the chain
        (``wait_for_locks``); no more waiting then.
        """
