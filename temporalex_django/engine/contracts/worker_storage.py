"""The contract of a storage with a worker, beside that with a turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID

from temporalex_django.engine.contracts.run_storage import RunStorage, TaskState, TaskStorage
from temporalex_django.engine.scheduling.capacity import Capacity


class WorkerStorage(RunStorage, TaskStorage, Protocol):
    """Operations of a storage that several workers share, where each claims its work piece by piece."""

    @property
    def turn_size(self) -> int:
        """The number of runs that a worker claims at a time."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Claim as ``TaskStorage.claim_tasks`` does; with ``suspects``, only activities of which a worker died."""

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Record that these attempts run since ``started_at``: their timeouts count from then. Fenced."""

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Release attempts (task id, attempt, owner) that were claimed and never started, uncounted. Fenced."""

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """Return the attempts of an owner. Locks nothing."""

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Return the seconds until a run or an activity of these queues is due. Locks nothing.

        0.0 means now, or that there are unread messages; None means that nothing will be due. ``activity_queues`` are
        the queues of the activities, if they differ from ``queues``.
        """

    def is_deferred(self, chain: UUID) -> bool:
        """Return True if this worker leaves the run alone for now."""

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock a chain in the open transaction, waiting at most ``wait`` seconds; return False if that failed.

        A failed wait leaves the transaction whole. ``yields`` says that the transaction may hold rows for which the
        holder of the chain waits (``wait_for_locks``); it stops waiting then, so that the holder can proceed.
        """
