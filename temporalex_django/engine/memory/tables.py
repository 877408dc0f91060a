"""The tables of the storage in memory, and how a transaction is undone."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from temporalex_django.authoring.run_columns import RUN_COLUMNS, Origin
from temporalex_django.core.failures import error_line
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import all_names
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.engine.activity_policy import FAULT
from temporalex_django.engine.contracts.records import (
    BlockMark,
    HumanTaskWrite,
    InboxMessage,
    NewEvent,
    Outcome,
    RunRecord,
    RunState,
)
from temporalex_django.engine.ids import RunRef, parse_run_id, resolve_run

# --- tables -----------------------------------------------------------------------------------------------------------
#
# The tables of runs and messages in memory, and the operations that change several of them together.


_FREE = frozenset({"rejected", "undelivered", FAULT})


@dataclass(slots=True, kw_only=True)
class RunRow:
    """The row of a run, with the columns of the database, and the history of the run.

    ``facts`` is its record in the engine. ``labels`` has, by name, the columns from its start that the engine does not
    read, such as its tags.
    """

    facts: RunRecord
    created_at: datetime
    labels: Mapping[str, Any]
    status: str = "pending"
    published: Any = None
    published_at: datetime | None = None
    stored: dict[str, Any] | None = None
    accepts: dict[str, list[str]] = field(default_factory=lambda: {"signals": [], "updates": []})
    waiting_for: list[str] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    blocked: BlockMark | None = None
    paused: dict[str, Any] | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    closing: dict[str, Any] | None = None
    cause: str | None = None
    fault: str | None = None
    events: list[HistoryEvent] = field(default_factory=list)

    def column(self, name: str) -> Any:
        """Return the value of a column of runs. ``name`` is its name in the database."""
        if name in self.labels:
            return self.labels[name]
        return getattr(self.facts if name in _FACT_NAMES else self, _FACT_NAMES.get(name, name))


_FACT_FIELDS = {fact.name for fact in fields(RunRecord)} - {"started_at"}
#: Columns that a record has, with the names of its fields. The time of the start is in the row.
_FACT_NAMES = {column.name: column.engine_name for column in RUN_COLUMNS if column.engine_name in _FACT_FIELDS}
_LABEL_NAMES = [
    column.name for column in RUN_COLUMNS if column.origin is Origin.START and column.name not in _FACT_NAMES
]


def start_labels(start: Any) -> dict[str, Any]:
    """Return, by name, the columns of a new run that its start determines and that the engine does not read.

    ``start`` is the start, or another object that has these columns as attributes.
    """
    return {name: getattr(start, name) for name in _LABEL_NAMES}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMessage:
    """A message in the inbox of a chain, and the columns of its row that only the storage uses.

    ``fresh`` is True until a turn has read the message. ``outcome`` is None until the message has one.
    """

    message: InboxMessage
    chain_id: UUID
    fresh: bool = True
    outcome: Outcome | None = None

    @property
    def is_id_free(self) -> bool:
        """True if another message may use the message id of this one, because this one was never accepted."""
        return self.outcome is not None and self.outcome.status in _FREE

    @property
    def is_failed(self) -> bool:
        """True for a signal whose handler failed, and which nobody has delivered again or discarded."""
        return self.message.kind == "signal" and self.outcome is not None and self.outcome.status == "failed"


class MemoryTables:
    """The tables of one environment in memory, whose virtual clock starts at ``now``; not thread-safe.

    Rows are copied when they are stored. They are replaced, and never changed.
    """

    def __init__(self, now: datetime) -> None:
        self.clock = now
        self.undo_log = log = UndoLog()
        self.chains: Table[UUID, RunState] = Table(log)
        self.runs: Table[UUID, RunRow] = Table(log)
        self.run_ids: Table[UUID, tuple[UUID, ...]] = Table(log)  # of each chain, oldest first
        self.messages: Table[int, MemoryMessage] = Table(log)
        self.human_tasks: Table[UUID, HumanTaskWrite] = Table(log)
        self.queues: set[str] = set()  # all that were ever used
        self.start_times: Table[str, list[float]] = Table(log)  # of throttles, by name
        self._chain_of_run: Table[UUID, UUID] = Table(log)
        self._chains_of: Table[str, tuple[UUID, ...]] = Table(log)  # by business id, oldest first
        self._open_keys: Table[UUID, str] = Table(log)  # unique among open runs
        self._fresh: Table[UUID, int] = Table(log)  # chains with fresh messages, and the number of the first
        # By chain: the numbers of unsettled messages and, by message id, those of messages that have one.
        self._inboxes: defaultdict[UUID, Table[int, None]] = defaultdict(lambda: Table(log))
        self._message_numbers: defaultdict[UUID, Table[str, int]] = defaultdict(lambda: Table(log))
        # By run and command number: the chains of children.
        self._children: defaultdict[UUID, Table[int, UUID]] = defaultdict(lambda: Table(log))
        # Numbers are never drawn twice, not even after a rollback, like those of a database sequence.
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)

    # -- runs ---------------------------------------------------------------------------------------------------------

    def current_run(self, chain_id: UUID) -> RunRow:
        """Return the current run of a chain, which is its newest one."""
        return self.runs[self.chains[chain_id].run_id]

    def _add_run(self, chain_id: UUID, record: RunRecord, *, labels: Mapping[str, Any]) -> None:
        """Store a run and make it the newest one of its chain.

        ``labels`` has, by name, the columns from its start that the engine does not read.
        """
        self.runs[record.run_id] = RunRow(facts=record, created_at=self.clock, labels=labels)
        self._chain_of_run[record.run_id] = chain_id
        self.run_ids[chain_id] = (*self.run_ids.get(chain_id, ()), record.run_id)

    def _append_events(self, run: RunRow, events: Iterable[NewEvent]) -> None:
        """Append events to the history of a run.

        Raises ``ValueError`` if the history already has an event with one of these numbers, because it changed after
        the turn had read it.
        """
        history = run.events
        # A history is the one value that is changed in place: copying it for each turn would cost too much.
        self.undo_log.add_undo(partial(history.__delitem__, slice(len(history), None)))
        for event in events:
            if event.number != len(history) + 1:
                raise ValueError(f"event {event.number} cannot follow event {len(history)} of run {run.facts.run_id}")
            attributes = deep_copy(event.attributes)
            history.append(HistoryEvent(event.number, event.activation, event.kind, event.at, attributes))

    def delete_chain(self, chain_id: UUID) -> None:
        """Delete a chain, with its runs and messages."""
        for run_id in self.run_ids.get(chain_id, ()):
            workflow_id = self.runs[run_id].facts.workflow_id
            self._chains_of[workflow_id] = tuple(chain for chain in self._chains_of[workflow_id] if chain != chain_id)
            self.runs.discard(run_id)
            self._chain_of_run.discard(run_id)
        for task in [task for task, row in self.human_tasks.items() if row.chain_id == chain_id]:
            self.human_tasks.discard(task)
        for number in [number for number, row in self.messages.items() if row.chain_id == chain_id]:
            self._delete_message(number)
        for table in (self.run_ids, self.chains, self._fresh, self._open_keys):
            table.discard(chain_id)

    # -- which run an id means ----------------------------------------------------------------------------------------

    def chains_of(self, workflow_id: str) -> tuple[UUID, ...]:
        """Return the chains with a business id, oldest first."""
        return self._chains_of.get(workflow_id, ())

    def find_chain(self, ref: str, *, workflow: str | None = None) -> UUID | None:
        """Return the chain that a run id or a business id (``ref``) means, or None.

        ``workflow`` restricts the search to the runs of one class. Raises ``AmbiguousId`` if several chains could be
        meant.
        """
        chain_id = self._chain_by_run_id(ref)
        names = None if workflow is None else all_names(workflow)
        if chain_id is not None and (names is None or self.current_run(chain_id).facts.workflow in names):
            return chain_id
        run_ref = resolve_run(ref, [run for run in self._run_refs(ref) if names is None or run.workflow in names])
        return None if run_ref is None else run_ref.chain_id

    def _chain_by_run_id(self, ref: str) -> UUID | None:
        """Return the chain of the run whose run id ``ref`` is, or None."""
        run_id = parse_run_id(ref)
        if run_id is None:
            return None
        return self._chain_of_run.get(run_id)

    def _run_refs(self, workflow_id: str) -> list[RunRef]:
        """Return the current runs of the chains with a business id, newest first."""
        chains = [
            (self.current_run(chain_id), self.chains[chain_id]) for chain_id in self._chains_of.get(workflow_id, ())
        ]
        return [
            RunRef(state.chain_id, state.run_id, run.facts.workflow, run.status, state.closed)
            for run, state in reversed(chains)
        ]

    # -- messages -----------------------------------------------------------------------------------------------------

    def _add_message(self, chain_id: UUID, kind: str, name: str, payload: Any, **fields: Any) -> int:
        """Add a message to the inbox of a chain; return its number, or the number of an earlier message with its id.

        ``fields`` are the other fields of ``InboxMessage``.
        """
        existing_number = self._message_numbers[chain_id].get(fields.get("message_id") or "")
        if existing_number is not None:
            return existing_number
        return self._store_message(chain_id, InboxMessage(id=0, kind=kind, name=name, payload=payload, **fields))

    def _store_message(self, chain_id: UUID, message: InboxMessage, outcome: Outcome | None = None) -> int:
        """Store a message under the next number, at the end of the inbox unless it has an outcome already."""
        number = next(self._ids)
        message = replace(message, id=number, payload=deep_copy(message.payload))
        self.messages[number] = MemoryMessage(
            message=message, chain_id=chain_id, fresh=outcome is None, outcome=deep_copy(outcome)
        )
        if outcome is None:
            self._inboxes[chain_id][number] = None
            self._mark_fresh(chain_id, number)
        if message.message_id is not None:
            self._message_numbers[chain_id][message.message_id] = number
        return number

    def _delete_message(self, number: int) -> None:
        """Delete a message. If it has a message id, another message may use the id then."""
        if (row := self.messages.discard(number)) is not None:
            self._inboxes[row.chain_id].discard(number)
            if row.message.message_id is not None:
                self._message_numbers[row.chain_id].discard(row.message.message_id)

    def _messages_of(self, chain_id: UUID) -> list[InboxMessage]:
        """Return the messages in the inbox of a chain, oldest first."""
        return [self.messages[number].message for number in sorted(self._inboxes[chain_id])]

    def has_message(self, chain_id: UUID, message_id: str) -> bool:
        """Return True if the chain has ever received a message with that message id."""
        return message_id in self._message_numbers[chain_id]

    def _mark_fresh(self, chain_id: UUID, number: int) -> None:
        """Record that the chain has unread (fresh) messages, of which the first has the number ``number``."""
        if chain_id not in self._fresh:
            self._fresh[chain_id] = number

    def _update_message(self, number: int, **changes: Any) -> None:
        """Change columns of a message; does nothing if the message was deleted."""
        if (row := self.messages.get(number)) is not None:
            self.messages[number] = replace(row, **changes)


# --- undo -------------------------------------------------------------------------------------------------------------
#
# Transactions in memory: tables whose changes are undone when the block that made them raises.


logger = logging.getLogger("temporalex_django.engine")

K = TypeVar("K")
V = TypeVar("V")
_ABSENT: Any = object()


class UndoLog:
    """The functions that undo the changes of the open transactions and savepoints in memory.

    It also keeps the callbacks to call when the outermost transaction has ended without an error.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._depth = 0

    def add_undo(self, undo: Callable[[], object]) -> None:
        """Record a function that undoes a change; it is called if the open transaction or savepoint raises.

        Without an open transaction it does nothing, so the change stays.
        """
        if self._depth:
            self._undo.append(undo)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a transaction, or a savepoint inside one; an error undoes its changes."""
        changes, callbacks = len(self._undo), len(self._callbacks)
        self._depth += 1
        try:
            yield
        except BaseException:
            # The latest change goes first, since it may be about what an earlier one made.
            while len(self._undo) > changes:
                self._undo.pop()()
            del self._callbacks[callbacks:]
            raise
        finally:
            self._depth -= 1
        if not self._depth:
            self._undo.clear()
            due_callbacks, self._callbacks = self._callbacks, []
            for callback in due_callbacks:
                _run_callback(callback)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the outermost block has ended without an error; without a block, call it now."""
        if self._depth:
            self._callbacks.append(callback)
        else:
            _run_callback(callback)


def _run_callback(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as exc:  # noqa: BLE001 - a callback is the project's own
        logger.error("a callback after a commit failed: %s", error_line(exc))


class Table(dict[K, V]):
    """A dict of rows by key whose changes are undone if the open transaction or savepoint raises.

    A row is never changed in place, but replaced at its key.
    """

    def __init__(self, log: UndoLog) -> None:
        super().__init__()
        self._log = log

    def __setitem__(self, key: K, row: V) -> None:
        before = self.get(key, _ABSENT)
        if before is _ABSENT:
            undo = partial(super().__delitem__, key)
        else:
            undo = partial(super().__setitem__, key, before)
        self._log.add_undo(undo)
        super().__setitem__(key, row)

    def __delitem__(self, key: K) -> None:
        self._log.add_undo(partial(super().__setitem__, key, self[key]))
        super().__delitem__(key)

    def discard(self, key: K) -> V | None:
        """Delete the row of this key and return it, or None if there is none."""
        row = self.get(key)
        if key in self:
            del self[key]
        return row
