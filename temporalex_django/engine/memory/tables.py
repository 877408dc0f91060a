"""The tables of runs in memory, and the few ways in which several of them change together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from temporalex_django.core.aliases import all_names
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.senders import Sender
from temporalex_django.engine.lookup import Found, as_run_id, the_one
from temporalex_django.engine.memory.undo import Table, UndoLog
from temporalex_django.engine.outcomes import FAULT
from temporalex_django.engine.shapes import Blocked
from temporalex_django.engine.storage import HumanTaskWrite, InboxMessage, NewEvent, Outcome, RunFacts, RunState

_FREE = frozenset({"rejected", "undelivered", FAULT})


@dataclass(slots=True, kw_only=True)
class MemoryRun:
    """What the database keeps in the row of a run, with its history."""

    facts: RunFacts
    created_at: datetime
    status: str = "pending"
    published: Any = None
    stored: dict[str, Any] | None = None
    tags: list[str] = field(default_factory=list)
    accepts: dict[str, list[str]] = field(default_factory=lambda: {"signals": [], "updates": []})
    waiting_for: list[str] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    blocked: Blocked | None = None
    paused: dict[str, Any] | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    closing: dict[str, Any] | None = None
    cause: str | None = None
    events: list[HistoryEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMessage:
    """A message with what the database keeps beside it."""

    message: InboxMessage
    chain_id: UUID
    fresh: bool = True
    outcome: Outcome | None = None

    @property
    def free(self) -> bool:
        """Whether its id is free: only what was accepted occupies it."""
        return self.outcome is not None and self.outcome.status in _FREE

    @property
    def failed(self) -> bool:
        """Whether it is a signal whose handler failed, and that nobody has delivered again or discarded."""
        return self.message.kind == "signal" and self.outcome is not None and self.outcome.status == "failed"


class MemoryTables:
    """Not thread-safe; one environment owns it. What is put in is copied, rows are replaced and never changed."""

    def __init__(self, now: datetime) -> None:
        self.clock = now
        self.undo_log = log = UndoLog()
        self.chains: Table[UUID, RunState] = Table(log)
        self.runs: Table[UUID, MemoryRun] = Table(log)
        self.run_ids: Table[UUID, tuple[UUID, ...]] = Table(log)  # of each chain, oldest first
        self.messages: Table[int, MemoryMessage] = Table(log)
        self.human_tasks: Table[UUID, HumanTaskWrite] = Table(log)
        self.queues: set[str] = set()  # all that ever were
        self._chain_of_run: Table[UUID, UUID] = Table(log)
        self._chains_of: Table[str, tuple[UUID, ...]] = Table(log)  # by business id, oldest first
        self._open_keys: Table[UUID, str] = Table(log)  # what is unique among open runs
        self._fresh: Table[UUID, int] = Table(log)  # chains that a message has not woken yet, and since which one
        # Numbers of messages by chain: those that are unsettled, and those that have an id, by it.
        self._inboxes: defaultdict[UUID, Table[int, None]] = defaultdict(lambda: Table(log))
        self._kept: defaultdict[UUID, Table[str, int]] = defaultdict(lambda: Table(log))
        # Chains of the children of a run, by the number of the command.
        self._children: defaultdict[UUID, Table[int, UUID]] = defaultdict(lambda: Table(log))
        # Numbers that are given out are never given out again, as those of a database sequence.
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def current(self, chain_id: UUID) -> MemoryRun:
        """The present run of a chain."""
        return self.runs[self.chains[chain_id].run_id]

    def _new_run(self, chain_id: UUID, facts: RunFacts, *, tags: Iterable[str] | None) -> None:
        self.runs[facts.run_id] = MemoryRun(facts=facts, created_at=self.clock, tags=[*(tags or ())])
        self._chain_of_run[facts.run_id] = chain_id
        self.run_ids[chain_id] = (*self.run_ids.get(chain_id, ()), facts.run_id)

    def _append(self, run: MemoryRun, events: Iterable[NewEvent]) -> None:
        """Raises ``ValueError`` for an event that is there already: the turn knows another history."""
        history = run.events
        self.undo_log.undo_by(partial(history.__delitem__, slice(len(history), None)))
        for event in events:
            if event.number != len(history) + 1:
                raise ValueError(f"event {event.number} cannot follow event {len(history)} of run {run.facts.run_id}")
            attributes = deep_copy(event.attributes)
            history.append(HistoryEvent(event.number, event.activation, event.kind, event.at, attributes))

    def forget(self, chain_id: UUID) -> None:
        """A chain, with its runs and messages."""
        for run_id in self.run_ids.get(chain_id, ()):
            workflow_id = self.runs[run_id].facts.workflow_id
            self._chains_of[workflow_id] = tuple(one for one in self._chains_of[workflow_id] if one != chain_id)
            self.runs.discard(run_id)
            self._chain_of_run.discard(run_id)
        for task in [task for task, kept in self.human_tasks.items() if kept.chain_id == chain_id]:
            self.human_tasks.discard(task)
        for number in [number for number, kept in self.messages.items() if kept.chain_id == chain_id]:
            self._inboxes[chain_id].discard(number)
            self.messages.discard(number)
        for table in (self.run_ids, self.chains, self._fresh, self._open_keys):
            table.discard(chain_id)

    # -- which run an id means ----------------------------------------------------------------------------------------

    def chain_of(self, ref: str, *, workflow: str | None = None) -> UUID | None:
        """The chain that an id means, of one workflow if it is named. Raises ``AmbiguousId``."""
        chain_id = self._by_run_id(ref)
        names = None if workflow is None else all_names(workflow)
        if chain_id is not None and (names is None or self.current(chain_id).facts.workflow in names):
            return chain_id
        one = the_one(ref, [found for found in self._found(ref) if names is None or found.workflow in names])
        return None if one is None else one.chain_id

    def _by_run_id(self, ref: str) -> UUID | None:
        run_id = as_run_id(ref)
        return None if run_id is None else self._chain_of_run.get(run_id)

    def _found(self, workflow_id: str) -> list[Found]:
        """The chains of a business id, newest first."""
        chains = [(self.current(chain_id), self.chains[chain_id]) for chain_id in self._chains_of.get(workflow_id, ())]
        return [
            Found(state.chain_id, state.run_id, run.facts.workflow, run.status, state.closed)
            for run, state in reversed(chains)
        ]

    # -- messages -----------------------------------------------------------------------------------------------------

    def _deliver(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        *,
        request_id: str | None = None,
        run_id: UUID | None = None,
        sender: Sender | None = None,
        redelivered: bool = False,
    ) -> int:
        """Put a message into the inbox of a chain, and ring; its number, or that of the one that has its id already."""
        if request_id is not None and (known := self._kept[chain_id].get(request_id)) is not None:
            return known
        number, body = next(self._ids), deep_copy(body)
        message = InboxMessage(
            id=number,
            kind=kind,
            name=name,
            body=body,
            request_id=request_id,
            run_id=run_id,
            sender=sender,
            redelivered=redelivered,
        )
        self.messages[number] = MemoryMessage(message=message, chain_id=chain_id)
        self._inboxes[chain_id][number] = None
        self._ring(chain_id, number)
        if request_id is not None:
            self._kept[chain_id][request_id] = number
        return number

    def has_message(self, chain_id: UUID, request_id: str) -> bool:
        """Whether a message of that id ever came."""
        return request_id in self._kept[chain_id]

    def _ring(self, chain_id: UUID, number: int) -> None:
        if chain_id not in self._fresh:
            self._fresh[chain_id] = number

    def _change(self, number: int, **changes: Any) -> None:
        """Columns of a message; one that is gone stays gone."""
        if (kept := self.messages.get(number)) is not None:
            self.messages[number] = replace(kept, **changes)
