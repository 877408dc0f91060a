"""The contracts of a storage with activities, and with workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.run_storage import RunStorage
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling.capacity import Capacity


class TaskStorage(Protocol):
    """The place where scheduled activities live; each call is a transaction of its own, unless it is inside one."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        """Claim external activities that are due and have no owner, the longest due first.

        The claim counts the attempt, although nothing has started yet. With ``atomic`` it also claims atomic
        activities, which test environments run like any other.
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the ends of attempts, final ones as messages of their chains; return the ids that were still valid."""

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        """Store the ends of attempts as ``finish_tasks`` does, but send nothing to the chains.

        Call it inside a transaction. Returns the ids that were still valid, and the messages for the chains, which
        ``deliver`` sends.
        """

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        """Send the messages that ``finish_undelivered`` returned to their chains."""

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        """Return activities that have exceeded one of their timeouts (``expires_at``)."""

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Return the atomic activities of a locked chain, due or waiting for another try, in order of ``seq``.

        ``attempt`` counts the one to come; nothing is written.
        """

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Return the activities of a run that have no result yet, as they are, in order of ``seq``. A plain read."""

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """Return the activity that command ``seq`` of the run scheduled, or None if it has ended.

        It may have an owner. Nothing is claimed or locked. For an atomic activity without an owner, ``attempt`` already
        counts the next attempt, as in ``atomic_tasks``.
        """

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        """Return all activities of a run that are not over, in order of ``seq``, each as ``find_task`` does."""

    def edit_task(self, task: TaskState) -> None:
        """Store the arguments and options of an activity that nobody owns; fenced as in ``finish_tasks``."""

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store heartbeats by ``(task id, attempt, owner)``, and return the keys that are still valid.

        The values are details, which may be encoded already. The attempts of the other keys were cancelled.
        """


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
