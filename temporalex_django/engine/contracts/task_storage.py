"""The contracts of a storage that has activities, and of one that several workers share."""

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

        ``owner`` is the epoch of the worker. The claim counts the attempt, although nothing has started yet. With
        ``atomic`` it also claims atomic activities, which test environments run like any other.
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the ends of attempts and return the ids of the activities whose attempt was still valid.

        A final result becomes a message of the chain.
        """

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        """Store the ends of attempts as ``finish_tasks`` does, but send nothing to the chains.

        Call it inside a transaction. Returns the ids of the activities whose attempt was still valid, and the final
        results of these, which ``deliver`` sends.
        """

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        """Send the results that ``finish_undelivered`` returned to their chains, as messages."""

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        """Return at most ``limit`` activities that have exceeded one of their timeouts."""

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Return the atomic activities of a locked chain, due or waiting for another try, in order of ``seq``.

        ``attempt`` is the number of the next attempt; nothing is written.
        """

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Return at most ``limit`` activities of a run that have no result yet, in order of ``seq``. Locks nothing."""

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """Return the activity that command ``seq`` of the run scheduled, or None if it has ended.

        It may have an owner. Nothing is claimed or locked. For an atomic activity without an owner, ``attempt`` already
        counts the next attempt, as in ``atomic_tasks``.
        """

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        """Return all activities of a run that have not ended, in order of ``seq``, each as ``find_task`` returns it."""

    def edit_task(self, task: TaskState) -> None:
        """Store the arguments and options of an activity that has no owner.

        Nothing changes if the attempt of ``task`` is not the present one.
        """

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store heartbeats by ``(task id, attempt, owner)``, and return the keys that are still valid.

        The values are the details of the heartbeats, plain or encoded. An attempt whose key is not returned was
        cancelled.
        """


class WorkerStorage(RunStorage, TaskStorage, Protocol):
    """A storage that several workers share."""

    @property
    def turn_size(self) -> int:
        """The number of runs that a worker claims at a time."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Claim due activities as ``TaskStorage.claim_tasks`` does.

        With ``suspects`` claim only activities that may have ended a worker.
        """

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Store that these attempts run since their ``started_at``, from which their timeouts count.

        An attempt that its owner has lost changes nothing.
        """

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Give up attempts that were claimed and never started; they do not count.

        ``keys`` are triples of task id, attempt and owner. A key that is not valid any more changes nothing.
        """

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """Return the attempts of an owner as triples of task id, attempt and owner. Locks nothing."""

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Return the seconds until a run or an activity of these queues is due. Locks nothing.

        0.0 means now, or that there are unread messages; None means that nothing will be due. ``activity_queues`` are
        the queues of the activities, if they differ from ``queues``.
        """

    def is_deferred(self, chain: UUID) -> bool:
        """Return True if this worker has deferred the run and does not claim it at present."""

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock a chain in the open transaction; return False if it is not free within ``wait`` seconds.

        The transaction stays usable then. ``yields`` says that the transaction may hold rows for which the holder of
        the chain waits (``wait_for_locks``). If the holder does, this function returns False at once, so that the
        holder can proceed.
        """
