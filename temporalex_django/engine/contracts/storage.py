"""The contract of a storage: runs, their events and messages, and their activities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.prefix import PendingMessage
from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.engine.contracts.records import (
    BlockMark,
    Inbox,
    Outcome,
    RunRecord,
    RunState,
    RunWrite,
    TaskResult,
    TaskState,
)
from temporalex_django.engine.external_messages import FinishedActivity
from temporalex_django.engine.scheduling import Capacity, LimitedClaim
from temporalex_django.engine.turn_report import ClaimedRuns

if TYPE_CHECKING:
    from temporalex_django.engine.scheduling import EagerClaim


# --- run storage ------------------------------------------------------------------------------------------------------
#
# The contract between a turn and the storage, which memory and the database implement.
#
# Nothing here imports Django. A turn is one transaction: ``claim`` locks runs, ``inbox``, ``run_records`` and
# ``histories`` read what it needs, ``write`` stores all that it produced. Values that cross are plain JSON data and
# aware datetimes; the storage encodes them.


class RunStorage(Protocol):
    """The storage of runs, as the engine uses it; ``claim`` to ``write`` are called inside ``transaction()``.

    Arguments are copied, and results belong to the caller. ``tests/contract`` tests every storage against these
    docstrings.
    """

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        """Open a transaction, or a savepoint if one is open; an error rolls it back.

        ``site`` is a name for tests that end the process there: see ``core.process``.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """Open a savepoint; an error rolls it back and leaves the rest of the transaction as it is."""

    def checked_savepoint(self) -> AbstractContextManager[None]:
        """Open a savepoint around an atomic activity; its end checks deferred constraints and raises their errors.

        Otherwise the commit would raise them, when nobody knows which activity caused them.
        """

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        """Lock about ``limit`` runs of these queues that are due or have unread messages, and return them.

        The runs of ``first`` need not be due. Locked and deferred runs are skipped. With ``chains`` it locks exactly
        these, whatever their queue, due or not. A run with ``crashes`` is claimed only by a worker that names it alone
        in ``chains``; other callers that name it get nothing.
        """

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        """Return the unsettled messages of locked chains, oldest first, by chain.

        Of chains in ``waiting`` only unread messages are needed, because a turn does nothing but let them wait. Of a
        long inbox it returns as much as a turn should read: about ``page`` of the oldest signals and updates (None: as
        many as the policy allows), and all other messages.
        """

    def run_records(self, runs: Collection[UUID]) -> dict[UUID, RunRecord]: ...

    def load_turn_input(
        self,
        chains: Collection[UUID],
        *,
        waiting: Collection[UUID] = (),
        page: int | None = None,
        runs: Collection[UUID] = (),
    ) -> tuple[dict[UUID, Inbox], dict[UUID, RunRecord]]:
        """Return ``(inboxes by chain, records by run)`` for ``chains`` and ``runs``, with one round trip.

        ``waiting`` and ``page`` are those of ``inbox``: chains that need only unread messages, and the number of
        messages to read for a chain.
        """

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        """Return the data that say why and since when a run is blocked; None if the run is not blocked."""

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        """Return the events of each run in order, by run id.

        ``after`` maps each run id to the number of the last event that is not needed; 0 returns all events.
        """

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        """Return the next ``limit`` events of one run that come after the event number ``after``."""

    def patch_markers(self, run_id: UUID) -> set[str]:
        """Return the ids of the patches (``api.patched``) whose answer the history of a run has recorded."""

    def now(self) -> datetime:
        """Return the present time of the storage's clock. Call it after the locks are held."""

    def new_token(self) -> int:
        """Return a token for an activation, a number that is never drawn twice."""

    def new_run_id(self) -> UUID:
        """Return an id for the next run of a chain; ids sort in the order in which they were made."""

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced for runs that the open transaction has locked; skip rows that are gone.

        Children are started first, so that a message of the same turn finds them. It locks messages and activities of
        these runs, and no other run's. With ``eager_claim``, it may store new activities within that capacity as
        claimed, in their first attempt. Call the returned function after the commit: it returns these activities, which
        must not start before. A storage that does not learn the ids of inserted rows claims none. ``is_last`` says that
        no statement follows in this transaction, so that the commit need not wait for the write.
        """

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a locked chain, in order, before the messages that wait in it.

        A reset uses this. A message replaces the one that has its id; but an unread one with that id is newer and stays
        instead. ``received`` is the number of signals in the history of the run. An update that waited behind a later
        signal counts as unread.
        """

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Return the statuses of messages of a chain by message id: ``unread``, or the status of the outcome.

        Unknown ids are left out.
        """

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Copy the failed messages with one of the message ids ``ids`` from one chain to another.

        The target chain must be locked, and must not have messages with these ids.
        """

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Store messages that are in the copied history of a fork, with their outcomes, in the fork's locked chain.

        So a message that is sent to the fork again under its id does not count twice. No turn reads these rows.
        """

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the outermost commit, never after a rollback; log what it raises."""

    def is_transient(self, exc: BaseException) -> bool:
        """Return True if another try may succeed, as after a lock timeout, a deadlock or a serialization failure."""

    def is_interrupted(self, exc: BaseException) -> bool:
        """Return True if a statement was cancelled. In an activity this counts as a failure of that activity."""

    def is_connection_lost(self, exc: BaseException, *, is_of_code: bool = False) -> bool:
        """Return True if the connection is gone, so that nothing was committed.

        With ``is_of_code``, code of the user may have raised the error, and the state of the connection decides.
        """

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Lock one chain in any state and return it, or None if it is gone or not free within ``wait`` seconds."""

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Do not claim these runs for ``seconds``; other workers may claim them. Nothing is written.

        A later call for a run replaces the earlier one, and 0 ends the pause.
        """

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Wait for a locked chain, then for rows that its atomic activities lock, up to ``timeout`` seconds each."""

    def has_live_worker(self, workflow: str, version: int) -> bool:
        """Return True if a live worker (with a valid lease) has registered that version of the workflow class."""


# --- task storage -----------------------------------------------------------------------------------------------------
#
# The contracts of a storage that has activities, and of one that several workers share.


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

    def record_progress(self, progress: Mapping[tuple[int, int, int], Mapping[str, Any]]) -> None:
        """Store the progress that attempts have reported, by ``(task id, attempt, owner)``. One statement."""

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

    def owned_tasks(self, owner: int) -> dict[tuple[int, int, int], datetime | None]:
        """Return the attempts that the worker with the epoch ``owner`` has claimed. Locks nothing.

        The epoch is the number under which a worker owns what it claims. An attempt is ``(id of the task, attempt,
        owner)``. Its value is when somebody has cancelled it, or None.
        """

    def owned_background_tasks(self, *, owner: int) -> list[TaskState]:
        """Return the background tasks that the worker with the epoch ``owner`` (its number) has claimed.

        Tasks that this process cannot read, because it lacks an encryption key, are left out.
        """

    def free_background_task(self, task_id: int) -> TaskState | None:
        """Return a background task if no worker has it and this process can read it, else None."""
