"""The contracts of a storage that has activities, and of one that several workers share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import TaskResult, TaskState
from temporalex_django.engine.contracts.run_storage import RunStorage
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling.capacity import Capacity
from temporalex_django.engine.scheduling.limit_usage import LimitedClaim
from temporalex_django.engine.turn_report import ClaimedRuns


class TaskStorage(Protocol):
    """The storage of scheduled activities; each call is a transaction of its own, unless it is inside one."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        """Claim external activities that are due and have no owner, the longest due first.

        ``capacity`` says how many the worker can take; each claimed activity is subtracted from it. ``owner`` is the
        epoch of the worker: the number under which it owns what it claims, renewed after it was declared dead. The
        claim counts the attempt, although nothing has started yet. With ``atomic`` it also claims atomic activities,
        which test environments run like any other.
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the ends of attempts and return the ids of the activities whose attempt was still valid.

        A final result becomes a message of the chain.
        """

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        """Store the ends of attempts, without sending the results to the runs that wait for them.

        Call it inside a transaction. Returns the ids of the activities whose attempt was still valid, and their final
        results, which the caller passes to a turn or to ``deliver``.
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
        """Return all activities of a run that have not ended, in order of ``seq``.

        They may have an owner. Nothing is claimed or locked.
        """

    def edit_task(self, task: TaskState) -> None:
        """Store the edited arguments and options of an activity that no worker has claimed.

        Nothing changes if the attempt of ``task`` is not the present one.
        """

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store heartbeats by ``(task id, attempt, owner)``, and return the keys that are still valid.

        The values are the details of the heartbeats, plain or encoded. An attempt whose key is not returned has lost
        its activity, so it should end.
        """


class WorkerStorage(RunStorage, TaskStorage, Protocol):
    """A storage on a database, which several workers share: all that ``workers`` and ``liveness`` use of one.

    A method that begins with ``submit`` sends statements, and returns a function that waits for their answers. Call
    that function after ``sql.pipeline()``, within which the statements of several calls are sent together.
    """

    #: The alias of the database, and its dialect: liveness sends statements of its own.
    alias: str
    sql: Dialect
    #: A callable that returns the present time in place of the database's clock; None: there is none.
    clock: Callable[[], datetime] | None
    #: Queues in which background tasks may have a priority.
    priority_queues: Collection[str]
    #: True if activities may wait in partitions of their queues. A write that puts one there sets it.
    partitioned: bool

    @property
    def domain(self) -> str:
        """A digest of the database's address, by which processes on one machine tell databases apart."""

    @property
    def turn_size(self) -> int:
        """The number of runs that a worker claims at a time."""

    def join_transaction(self) -> AbstractContextManager[None]:
        """Return a context manager whose block belongs to the open transaction of this storage, without a savepoint.

        An error in the block fails that transaction. If none is open, it opens one.
        """

    def detach(self) -> tuple[Any, ExitStack | None]:
        """Separate this object from the open transaction of the calling thread, and return the state for ``attach``.

        The transaction stays open. Until ``attach``, another thread can use this object.
        """

    def attach(self, state: tuple[Any, ExitStack | None]) -> None:
        """Continue the transaction that ``detach`` separated from this object and returned as ``state``.

        No other transaction may be open in this object then.
        """

    # -- claims of runs -----------------------------------------------------------------------------------------------

    def queue_order(self, queues: Sequence[str], kind: str) -> Sequence[str]:
        """Return the queues in the order in which to look for work of a kind; the first place rotates.

        ``kind`` is a name such as "runs"; each kind has a rotation of its own.
        """

    def submit_claim(
        self, *, limit: int, queues: Sequence[str], first: Collection[UUID] = (), due: int | None = None
    ) -> Callable[[Collection[UUID]], ClaimedRuns]:
        """Send the statements of a claim of at most ``limit`` due runs of these queues, without waiting for the rows.

        The returned function waits, and returns the claimed runs. It takes those chains of ``first`` (claimed although
        not due) that the caller still wants. ``due`` limits the runs of a queue that are claimed because they are due,
        and not for a message; None: only ``limit`` does.
        """

    def is_deferred(self, chain: UUID) -> bool:
        """Return True if this worker has deferred the run and does not claim it at present."""

    def lock_chain(self, chain: UUID, *, wait: float, yields: bool = False) -> bool:
        """Lock a chain in the open transaction; return False if it is not free within ``wait`` seconds.

        The transaction stays usable then. ``yields`` says that the transaction may hold rows for which the holder of
        the chain waits (``wait_for_locks``). If the holder does, this function returns False at once, so that the
        holder can proceed.
        """

    def next_due(self, *, queues: Sequence[str], activity_queues: Sequence[str] | None = None) -> float | None:
        """Return the seconds until a run or an activity of these queues is due. Locks nothing.

        0.0 means now, or that there are unread messages; None means that nothing will be due. ``activity_queues`` are
        the queues of the activities, if they differ from ``queues``.
        """

    # -- claims of activities -----------------------------------------------------------------------------------------

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> list[TaskState]:
        """Claim external activities that are due and have no owner, the longest due first.

        ``capacity`` says how many the worker can take, and ``owner`` is the epoch of the worker (the number under which
        it owns what it claims). With ``atomic`` it also claims atomic activities. With ``suspects`` it claims only
        activities during which a worker has died.
        """

    def submit_task_claim(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False, suspects: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Send the statements of a claim of activities, inside a transaction, without waiting for the rows.

        The returned function waits, and returns the claimed activities. The arguments are those of ``claim_tasks``.
        """

    def claim_limited(
        self,
        queue: str,
        *,
        capacity: Capacity,
        owner: int,
        off: Collection[str],
        unpartitioned: bool,
        held_keys: Collection[str] = (),
        suspects: bool = False,
    ) -> LimitedClaim:
        """Claim the activities of a queue that may start now under their limits, in a transaction of its own.

        ``capacity`` says how many the worker can take, and ``owner`` is its epoch, the number under which it owns what
        it claims. With ``suspects`` it claims only activities during which a worker has died, and with
        ``unpartitioned`` also activities that are in no partition. A partition of a queue holds activities that wait
        for each other because of a key, a limit or a switch. ``off`` has the names of activities that are switched off,
        and ``held_keys`` the concurrency keys that a hold keeps back.
        """

    def repartition(self, queue: str, names: Collection[str]) -> int:
        """Move waiting activities with these names into partitions (parts of the queue), one for each name.

        So the activities of a name with a limit wait only for each other. Returns the number that moved.
        """

    def move_to_partitions(self, tasks: Sequence[TaskState]) -> None:
        """Move waiting activities to the partitions of their concurrency keys, because a hold keeps these keys back."""

    def mark_tasks_started(self, tasks: Sequence[TaskState]) -> None:
        """Store that the attempts of ``tasks`` run since their ``started_at``, from which their timeouts count.

        An attempt that its owner has lost changes nothing.
        """

    def submit_finish(self, results: Sequence[TaskResult]) -> Callable[[], tuple[list[int], list[FinishedActivity]]]:
        """Send the statements that store the ends of attempts, without sending the results to the runs.

        The returned function waits. It returns the ids of the activities whose attempt was still valid, and their final
        results.
        """

    def release_tasks(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Give up attempts that were claimed and never started; they do not count.

        ``keys`` are triples of task id, attempt and owner, the epoch of the worker. A key that is not valid any more
        changes nothing.
        """

    def release_unstarted(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Give up attempts that were claimed and not started, and subtract them from the starts that rate limits count.

        ``keys`` are triples of task id, attempt and owner, the epoch of the worker.
        """

    def owned_tasks(self, owner: int) -> set[tuple[int, int, int]]:
        """Return the attempts that the worker with the epoch ``owner`` has claimed. Locks nothing.

        The epoch is the number under which a worker owns what it claims. An attempt is ``(id of the task, attempt,
        owner)``.
        """

    def owned_background_tasks(self, *, owner: int) -> list[TaskState]:
        """Return the background tasks that the worker with the epoch ``owner`` (its number) has claimed.

        Tasks that this process cannot read, because it lacks an encryption key, are left out.
        """

    def free_background_task(self, task_id: int) -> TaskState | None:
        """Return a background task if no worker has it and this process can read it, else None."""
