"""The storage of ``WorkflowEnvironment``: runs in memory, with a virtual clock.

It implements the contract that the database storage implements, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from temporalex_django.core.history import events
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.prefix import EXTERNAL_KINDS
from temporalex_django.engine import policy
from temporalex_django.engine.contracts.records import BlockMark, Inbox, InboxMessage, RunRecord, RunState
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.memory.writes import MemoryWrites
from temporalex_django.engine.turn_report import ClaimedRuns


class MemoryRunStorage(MemoryWrites):
    """The storage of runs and activities in memory. It implements the protocols ``RunStorage`` and ``TaskStorage``.

    It has a single caller and no workers, so nothing is ever locked by others.
    """

    #: New messages that a turn reads of all its runs together.
    inbox_page = 1_000_000

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self._deferred: dict[UUID, datetime] = {}

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        del site  # memory does not outlive its process, so it has no crash points
        return self.undo_log.block()

    def savepoint(self) -> AbstractContextManager[None]:
        return self.undo_log.block()

    checked_savepoint = savepoint  # there are no constraints that could be deferred

    def on_commit(self, callback: Callable[[], None]) -> None:
        self.undo_log.on_commit(callback)

    def is_transient(self, exc: BaseException) -> bool:
        return False

    def is_interrupted(self, exc: BaseException) -> bool:
        return False

    def is_connection_lost(self, exc: BaseException, *, is_of_code: bool = False) -> bool:
        return False

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        if chains:
            return ClaimedRuns(replace(self.chains[chain_id]) for chain_id in chains if chain_id in self.chains)
        first_runs = [self.chains[chain_id] for chain_id in first if chain_id in self.chains]
        candidates = first_runs + [run for run in self._runs_with_work() if run.chain_id not in first]
        eligible = [run for run in candidates if run.queue in queues and not self.is_deferred(run.chain_id)]
        return ClaimedRuns((replace(run) for run in eligible[:limit]), now=self.clock)

    def _runs_with_work(self) -> list[RunState]:
        """Return the runs that are due, the longest due first, then the others that have unread messages.

        A claim takes runs from the beginning of this list.
        """
        due = [(run.due_at, run) for run in self.chains.values() if run.due_at is not None and run.due_at <= self.clock]
        due_chains = {run.chain_id for _, run in due}
        fresh_chains = [chain for chain, _ in sorted(self._fresh.items(), key=lambda entry: entry[1])]
        return [
            *(run for _, run in sorted(due, key=lambda entry: entry[0])),
            *(self.chains[chain] for chain in fresh_chains if chain not in due_chains),
        ]

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Return the state of the chain, or None if it is gone. There is no other caller to wait for."""
        del wait
        state = self.chains.get(chain)
        if state is None:
            return None
        return replace(state)

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        for chain_id in chains:
            self._deferred.pop(chain_id, None)
            if seconds:
                self._deferred[chain_id] = self.clock + timedelta(seconds=seconds)

    def is_deferred(self, chain: UUID) -> bool:
        until = self._deferred.get(chain)
        return until is not None and until > self.clock

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Do nothing, since no other caller can hold a lock."""

    def has_live_worker(self, workflow: str, version: int) -> bool:
        return False

    # -- reading ------------------------------------------------------------------------------------------------------

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        if not chains:
            return {}
        page = min(self.inbox_page // len(chains), page or self.inbox_page)
        page = max(page, min(policy.SMALLEST_INBOX_PAGE, self.inbox_page))
        return {chain_id: self._read_inbox(chain_id, page, fresh_only=chain_id in waiting) for chain_id in chains}

    def _read_inbox(self, chain_id: UUID, limit: int, *, fresh_only: bool) -> Inbox:
        """Read at most ``limit`` new messages of an inbox, oldest first, and all results and updates that wait in it.

        Results and waiting updates are read wherever they are, because they let the run continue. With ``fresh_only``
        only unread messages are read.
        """
        messages, new = Inbox(), 0
        for number in sorted(self._inboxes[chain_id]):
            row = self.messages[number]
            if fresh_only and not row.fresh:
                continue
            is_new = _is_new(row.message)
            new += is_new
            if is_new and new > limit:
                messages.has_more = True
            else:
                messages.append(replace(row.message))
        return messages

    def load_turn_input(
        self,
        chains: Collection[UUID],
        *,
        waiting: Collection[UUID] = (),
        page: int | None = None,
        runs: Collection[UUID] = (),
    ) -> tuple[dict[UUID, Inbox], dict[UUID, RunRecord]]:
        return self.inbox(chains, waiting=waiting, page=page), self.run_records(runs)

    def run_records(self, runs: Collection[UUID]) -> dict[UUID, RunRecord]:
        return {run_id: self.runs[run_id].facts for run_id in runs if run_id in self.runs}

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        return self.runs[run_id].blocked

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        return {run_id: self._history(run_id)[seq:] for run_id, seq in after.items()}

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        return self._history(run_id)[after : after + limit]

    def patch_markers(self, run_id: UUID) -> set[str]:
        return {events.PATCH_MARKED.read(event)["id"] for event in self._history(run_id) if event.kind == "PatchMarked"}

    def _history(self, run_id: UUID) -> list[HistoryEvent]:
        run = self.runs.get(run_id)
        if run is None:
            return []
        return run.events

    def now(self) -> datetime:
        return self.clock

    def new_token(self) -> int:
        return next(self._tokens)

    def new_run_id(self) -> UUID:
        return uuid7()


def _is_new(message: InboxMessage) -> bool:
    return message.after is None and message.kind in EXTERNAL_KINDS
