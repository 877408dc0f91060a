"""Runs in memory: the storage of ``WorkflowEnvironment``.

Fulfils the same contract as the database, with a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.process import REQUEST
from temporalex_django.engine.claimed import Claimed
from temporalex_django.engine.ids import uuid7
from temporalex_django.engine.memory.turn_writes import MemoryWrites
from temporalex_django.engine.shapes import Blocked
from temporalex_django.engine.storage import Inbox, InboxMessage, RunFacts, RunState

#: What a turn reads of an inbox however long those of the others are.
_SMALLEST_PAGE = 100
#: Kinds of which there may be any number, so that a turn takes a page of them.
_MANY = frozenset({"signal", "update", REQUEST})


class MemoryRunStorage(MemoryWrites):
    """``RunStorage`` and ``TaskStorage``; see there for what each method promises.

    There is one caller: nothing is ever locked by another one, and no other worker lives.
    """

    #: New messages that a turn reads of all its runs together.
    inbox_page = 1_000_000

    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self._deferred: dict[UUID, datetime] = {}

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        del site  # it dies with its process, and all that it has
        return self.undo_log.block()

    def savepoint(self) -> AbstractContextManager[None]:
        return self.undo_log.block()

    checked_savepoint = savepoint  # there are no constraints that could be deferred

    def on_commit(self, callback: Callable[[], None]) -> None:
        self.undo_log.on_commit(callback)

    def transient(self, exc: BaseException) -> bool:
        return False

    def interrupted(self, exc: BaseException) -> bool:
        return False

    def lost(self, exc: BaseException) -> bool:
        return False

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> Claimed:
        if chains:
            return Claimed(replace(self.chains[chain_id]) for chain_id in chains if chain_id in self.chains)
        now = self.clock
        due = [(run.due_at, run) for run in self.chains.values() if run.due_at is not None and run.due_at <= now]
        begun = {run.chain_id for _, run in due}
        rung = [self.chains[c] for c, _ in sorted(self._fresh.items(), key=lambda one: one[1]) if c not in begun]
        named = [self.chains[chain_id] for chain_id in first if chain_id in self.chains]
        others = [run for _, run in sorted(due, key=lambda one: one[0])] + rung
        found = named + [run for run in others if run.chain_id not in first]
        wanted = [run for run in found if run.queue in queues and not self.is_deferred(run.chain_id)]
        return Claimed((replace(run) for run in wanted[:limit]), now=now)

    def hold(self, chain: UUID, *, wait: float) -> RunState | None:
        """Nobody else is there to wait for."""
        del wait
        state = self.chains.get(chain)
        return None if state is None else replace(state)

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        for chain_id in chains:
            self._deferred.pop(chain_id, None)
            if seconds:
                self._deferred[chain_id] = self.clock + timedelta(seconds=seconds)

    def is_deferred(self, chain: UUID) -> bool:
        until = self._deferred.get(chain)
        return until is not None and until > self.clock

    def queue_for(self, chain: UUID, *, patience: float) -> None:
        """Nobody else is there."""

    def live_workers_with(self, workflow: str, version: int) -> bool:
        return False

    # -- reading ------------------------------------------------------------------------------------------------------

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        if not chains:
            return {}
        page = min(self.inbox_page // len(chains), page or self.inbox_page)
        page = max(page, min(_SMALLEST_PAGE, self.inbox_page))
        return {chain_id: self._page(chain_id, page, fresh_only=chain_id in waiting) for chain_id in chains}

    def _page(self, chain_id: UUID, most: int, *, fresh_only: bool) -> Inbox:
        """Of a long inbox the oldest new messages; and, wherever they stand, updates that wait and results.

        Those bring it on.
        """
        found, new = Inbox(), 0
        for number in sorted(self._inboxes[chain_id]):
            kept = self.messages[number]
            if fresh_only and not kept.fresh:
                continue
            is_new = _is_new(kept.message)
            new += is_new
            if is_new and new > most:
                found.more = True
            else:
                found.append(replace(kept.message))
        return found

    def begin(
        self,
        chains: Collection[UUID],
        *,
        waiting: Collection[UUID] = (),
        page: int | None = None,
        runs: Collection[UUID] = (),
    ) -> tuple[dict[UUID, Inbox], dict[UUID, RunFacts]]:
        return self.inbox(chains, waiting=waiting, page=page), self.facts(runs)

    def facts(self, runs: Collection[UUID]) -> dict[UUID, RunFacts]:
        return {run_id: self.runs[run_id].facts for run_id in runs if run_id in self.runs}

    def blocked_by(self, run_id: UUID) -> Blocked | None:
        return self.runs[run_id].blocked

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        return {run_id: self._history(run_id)[seq:] for run_id, seq in after.items()}

    def page(self, run_id: UUID, *, after: int, most: int) -> list[HistoryEvent]:
        return self._history(run_id)[after : after + most]

    def markers(self, run_id: UUID) -> set[str]:
        return {event.attributes["id"] for event in self._history(run_id) if event.kind == "PatchMarked"}

    def _history(self, run_id: UUID) -> list[HistoryEvent]:
        run = self.runs.get(run_id)
        return [] if run is None else run.events

    def now(self) -> datetime:
        return self.clock

    def new_token(self) -> int:
        return next(self._tokens)

    def new_run_id(self) -> UUID:
        return uuid7()


def _is_new(message: InboxMessage) -> bool:
    return message.after is None and message.kind in _MANY
