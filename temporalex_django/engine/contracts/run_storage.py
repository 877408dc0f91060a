"""The contract between a turn and the storage, which memory and the database implement.

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
from temporalex_django.engine.contracts.records import BlockMark

if TYPE_CHECKING:
    from temporalex_django.engine.scheduling.eager_claim import EagerClaim
    from temporalex_django.engine.turn_report import ClaimedRuns
from temporalex_django.engine.contracts.records import Inbox, Outcome, RunRecord, RunState, RunWrite, TaskState


class RunStorage(Protocol):
    """The storage of runs, as the engine uses it; ``claim`` to ``write`` are called inside ``transaction()``.

    Arguments are copied, and results belong to the caller. ``tests/contract`` tests every storage against these
    docstrings.
    """

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        """Open a transaction, or a savepoint if one is open; an error rolls it back.

        ``site`` is a name for tests that end the process there: see ``core.crash_points``.
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
