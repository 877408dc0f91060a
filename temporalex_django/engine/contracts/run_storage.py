"""The contract between a turn and the place where runs live, which memory and Django fulfil.

Nothing here imports Django. A turn is one transaction: ``claim`` locks runs, ``inbox``, ``run_records`` and
``histories`` read what it needs, ``write`` stores all that it produced. Values that cross are plain JSON data and aware
datetimes; the storage encodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.prefix import PendingMessage
from temporalex_django.engine.contracts.typed_dicts import BlockMark

if TYPE_CHECKING:
    from temporalex_django.engine.scheduling.eager_claim import EagerClaim
    from temporalex_django.engine.turn_report import ClaimedRuns
from temporalex_django.engine.contracts.records import Inbox, Outcome, RunRecord, RunState, RunWrite, TaskState


class RunStorage(Protocol):
    """The place where runs live; ``claim`` to ``write`` are called inside ``transaction()``.

    Arguments are copied, and results belong to the caller. ``tests/contract`` tests every storage against these
    docstrings.
    """

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        """Open a transaction named in ``core.crash_points``, or a savepoint in an open one; an error undoes it."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Open a savepoint: an error undoes what it did, and the rest of the transaction stays."""

    def checked_savepoint(self) -> AbstractContextManager[None]:
        """Open a savepoint for an atomic activity.

        At its end it raises the errors of deferred constraints. At the commit it would not be known which activity
        caused them.
        """

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        """Lock about ``limit`` runs of these queues that are due or have unread messages.

        The runs of ``first`` need not be due. Locked and deferred runs are skipped. With ``chains`` it locks exactly
        these, whatever their queue, due or not. A run with ``crashes`` is claimed only by a worker that names it alone
        in ``chains``; other callers that name it get nothing.
        """

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        """Return the unsettled messages of locked runs in order.

        For runs in ``waiting`` the unread ones are enough, because their messages are only parked. Of a long inbox it
        returns as much as a turn should read: about ``page`` of the oldest signals and updates, and all other messages.
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
        """Return ``inbox`` of these chains and ``run_records`` of these runs, in one round trip."""

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        """Return why a run is blocked, and since when; None if it is not."""

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        """Return the events of each run with a ``seq`` greater than the given one, in order."""

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        """Return the next ``limit`` events of one run."""

    def patch_markers(self, run_id: UUID) -> set[str]:
        """Return the ids of the patches that are marked in the history of a run."""

    def now(self) -> datetime:
        """Return the time of the storage's clock (after the locks are held)."""

    def new_token(self) -> int:
        """Return a head token that is never drawn twice."""

    def new_run_id(self) -> UUID:
        """Return an id for the next run of a chain; later ids sort last where the storage sorts by them."""

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced for runs that the open transaction has locked; skip rows that are gone.

        Children are started first, so that a message of the same turn finds them. It locks messages and activities of
        these runs, and no other run's. With ``eager_claim``, new activities within its capacity may be stored as
        claimed by it, in their first attempt. The function that is returned gives them after the commit, before which
        they must not start. A storage that does not learn the ids of the rows that it inserts claims none. ``is_last``
        says that nothing follows in this transaction, so that the commit need not wait for the write.
        """

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a locked chain, in order, before those that are there.

        A message with an id replaces the one that has it; one that is there and unread is newer, and stays instead.
        ``received`` is the number of signals in the history of the run. Updates that waited behind later signals are
        new to it.
        """

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Return the statuses of messages of a chain by id: "unread", or that of the outcome; skip unknown ids."""

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Copy the failed messages among ``ids`` from one chain to another.

        The target chain must be locked and must never have had them.
        """

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Store messages from the history of a run, with their outcomes, in a locked chain that never had them.

        So a message that is sent again does not count twice. No turn reads these rows.
        """

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the outermost commit, never after a rollback; log what it raises."""

    def is_transient(self, exc: BaseException) -> bool:
        """Return True if another try may succeed: after a lock timeout, deadlock, serialization failure and such."""

    def is_interrupted(self, exc: BaseException) -> bool:
        """Return True if a statement was cancelled; in an activity that is its own failure."""

    def is_connection_lost(self, exc: BaseException) -> bool:
        """Return True if the connection is gone, so that nothing was committed."""

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Lock one chain in any state, waiting at most ``wait`` seconds; return None if that failed, or it is gone."""

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Leave these runs alone for ``seconds``, while other workers may take them; nothing is written.

        The latest call counts; 0 ends it.
        """

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Wait up to ``timeout`` seconds each for a locked chain and for the rows that its activities lock."""

    def has_live_worker(self, workflow: str, version: int) -> bool:
        """Return True if a live worker has registered that version of the class."""
