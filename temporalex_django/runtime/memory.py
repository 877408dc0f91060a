"""Runs in memory: the storage of ``WorkflowEnvironment``. Fulfils the same contract as the database, with a virtual clock."""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from temporalex_django.core.events import HistoryEvent
from temporalex_django.core.senders import Sender
from temporalex_django.core.values import copied
from temporalex_django.errors import AlreadyRunning, AmbiguousId
from temporalex_django.runtime import activities
from temporalex_django.runtime.lookup import Found, as_run_id, run_id_taken, the_one
from temporalex_django.runtime.resent import Sent
from temporalex_django.runtime.room import Room
from temporalex_django.runtime.storage import (
    PARENT_CLOSED,
    Inbox,
    InboxMessage,
    NewChild,
    NewMessage,
    NewTask,
    Outcome,
    Reached,
    RunFacts,
    RunState,
    RunWrite,
    TaskResult,
    TaskState,
    deadline,
    live_key,
)


@dataclass(slots=True, kw_only=True)
class MemoryRun:
    """What the database keeps in the row of a run, with its history."""

    facts: RunFacts
    status: str = "pending"
    published: Any = None
    accepts: dict[str, list[str]] = field(default_factory=lambda: {"signals": [], "updates": []})
    waiting_for: list[str] = field(default_factory=list)
    blocked: dict[str, Any] | None = None
    started_at: datetime | None = None
    closed_at: datetime | None = None
    closing: dict[str, Any] | None = None
    events: list[HistoryEvent] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class MemoryMessage:
    """A message with what the database keeps beside it."""

    message: InboxMessage
    chain_id: UUID
    fresh: bool = True
    outcome: Outcome | None = None


#: Numbers that are given out are never given out again, as those of a database sequence.
_NEVER_BACK = ("_ids", "_tokens", "clock", "revocable")


class MemoryStorage:
    """Not thread-safe; one environment owns it."""

    def __init__(self, now: datetime) -> None:
        self.clock = now
        self.chains: dict[UUID, RunState] = {}
        self.runs: dict[UUID, MemoryRun] = {}
        self.run_ids: dict[UUID, list[UUID]] = {}  # of each chain, oldest first
        self.chains_of: dict[str, list[UUID]] = {}  # by business id, oldest first
        self._live_keys: dict[UUID, str] = {}  # what is unique among open runs
        self.messages: dict[int, MemoryMessage] = {}
        self._inboxes: dict[UUID, dict[int, MemoryMessage]] = {}  # unsettled ones
        self._kept: dict[UUID, dict[str, MemoryMessage]] = {}  # messages by their id
        self._fresh: dict[UUID, None] = {}  # chains that a message has not woken yet
        self._children: dict[UUID, dict[int, UUID]] = {}  # chains of the children of a run, by their number
        self.open_tasks: dict[int, TaskState] = {}
        self._tasks_of: dict[UUID, dict[int, int]] = {}  # open ones of a run, by their number
        self._due_tasks: list[tuple[datetime, int]] = []  # a heap: those that nobody has, and some that are gone
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self.revocable = False  # whether the next transaction can be rolled back

    # -- what clients write -------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        workflow: str,
        workflow_id: str,
        version: int,
        queue: str,
        args: Any,
        seed: int,
        scope: str = "global",
        execution_timeout: float | None = None,
        run_timeout: float | None = None,
    ) -> UUID:
        """A new chain, due now. Raises ``AlreadyRunning`` when an open run in its scope has the id, ``InvalidId`` for a run's."""
        if as_run_id(workflow_id) in self.runs:
            raise run_id_taken(workflow_id)
        taken = self._taken(scope, workflow=workflow, version=version, workflow_id=workflow_id)
        if taken is not None:
            raise AlreadyRunning(f"{workflow} {workflow_id!r} is open already: use its handle, or another id")
        chain_id, run_id = uuid4(), uuid4()
        facts = RunFacts(
            run_id=run_id,
            workflow_id=workflow_id,
            workflow=workflow,
            version=version,
            args=args,
            seed=seed,
            expires_at=None if execution_timeout is None else self.clock + timedelta(seconds=execution_timeout),
            run_timeout=run_timeout,
        )
        self._new_chain(chain_id, facts, queue, scope)
        return chain_id

    def _taken(self, scope: str, *, workflow: str, version: int, workflow_id: str) -> UUID | None:
        """The open chain that keeps a start of that scope out: one of its own key, or one that a wider scope sees (D-14)."""
        key = live_key(scope, workflow=workflow, version=version, workflow_id=workflow_id)
        if key is None:
            return None
        for chain_id in self.chains_of.get(workflow_id, ()):
            held = self._live_keys.get(chain_id)
            if held is None or self.chains[chain_id].closed:
                continue
            own = scope == "global" or (scope == "workflow" and self.current(chain_id).facts.workflow == workflow)
            if own or held == key:
                return chain_id
        return None

    def _new_chain(self, chain_id: UUID, facts: RunFacts, queue: str, scope: str) -> None:
        key = live_key(scope, workflow=facts.workflow, version=facts.version, workflow_id=facts.workflow_id)
        if key is not None:
            self._live_keys[chain_id] = key
        self.runs[facts.run_id] = MemoryRun(facts=facts)
        self.run_ids[chain_id] = [facts.run_id]
        self.chains_of.setdefault(facts.workflow_id, []).append(chain_id)
        self.chains[chain_id] = RunState(
            chain_id=chain_id,
            run_id=facts.run_id,
            queue=queue,
            head=None,
            length=0,
            activations=0,
            stamp=None,
            due_at=self.clock,
            deadline=deadline(self.clock, expires_at=facts.expires_at, run_timeout=facts.run_timeout),
        )

    def chain_of(self, ref: str, *, workflow: str | None = None) -> UUID | None:
        """The chain that an id means, of one workflow if it is named. Raises ``AmbiguousId``."""
        chain_id = self._chain_of_run(as_run_id(ref))
        if chain_id is not None and workflow in (None, self.current(chain_id).facts.workflow):
            return chain_id
        one = the_one(ref, [found for found in self._found(ref) if workflow in (None, found.workflow)])
        return None if one is None else one.chain_id

    def _chain_of_run(self, run_id: UUID | None) -> UUID | None:
        return None if run_id not in self.runs else next(c for c, runs in self.run_ids.items() if run_id in runs)

    def _found(self, workflow_id: str) -> list[Found]:
        """The chains of a business id, newest first."""
        chains = [(self.current(chain_id), self.chains[chain_id]) for chain_id in self.chains_of.get(workflow_id, ())]
        return [
            Found(state.chain_id, state.run_id, run.facts.workflow, run.status, state.closed)
            for run, state in reversed(chains)
        ]

    def _reached(self, ref: str) -> Reached:
        """Where a message to an id goes."""
        if (chain_id := self._chain_of_run(as_run_id(ref))) is not None:
            return Reached(None if self.chains[chain_id].closed else chain_id)
        found = self._found(ref)
        try:
            one = the_one(ref, [run for run in found if not run.closed])
        except AmbiguousId as exc:
            return Reached(None, ambiguous=exc)
        return Reached(None if one is None else one.chain_id, known=bool(found))

    def send(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        *,
        dedupe: str | None = None,
        sender: Sender | None = None,
    ) -> int:
        """Put a message into the inbox of a chain; sent again, it gives the one that is there. Raises ``MessageIdTaken``."""
        if dedupe is not None and (known := self._kept.get(chain_id, {}).get(dedupe)) is not None:
            has = known.message
            Sent(has.kind, has.name, has.body, has.sender).require_same(
                dedupe, Sent(kind, name, body, sender), exact=False
            )
            return has.id
        return self._deliver(chain_id, kind, name, body, dedupe=dedupe, sender=sender)

    def _deliver(
        self,
        chain_id: UUID,
        kind: str,
        name: str,
        body: Any,
        *,
        dedupe: str | None = None,
        run_id: UUID | None = None,
        sender: Sender | None = None,
    ) -> int:
        number = next(self._ids)
        message = InboxMessage(id=number, kind=kind, name=name, body=body, dedupe=dedupe, run_id=run_id, sender=sender)
        kept = self.messages[number] = MemoryMessage(message=message, chain_id=chain_id)
        self._inboxes.setdefault(chain_id, {})[number] = kept
        self._fresh[chain_id] = None
        if dedupe is not None:
            self._kept.setdefault(chain_id, {})[dedupe] = kept
        return number

    def current(self, chain_id: UUID) -> MemoryRun:
        return self.runs[self.chains[chain_id].run_id]

    # -- Storage ------------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Rolled back on an exception only where ``revocable`` is set: a copy of everything is what that takes."""
        before = copy.deepcopy({k: v for k, v in vars(self).items() if k not in _NEVER_BACK}) if self.revocable else {}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        yield

    attempt = savepoint  # no constraint, no limit

    def on_commit(self, callback: Callable[[], None]) -> None:
        callback()

    def transient(self, exc: BaseException) -> bool:
        return False

    def interrupted(self, exc: BaseException) -> bool:
        return False

    def lost(self, exc: BaseException) -> bool:
        return False

    def decline(self, chains: Iterable[UUID], *, seconds: float) -> None:
        raise AssertionError("there are no other workers in memory")

    def queue_for(self, chain: UUID, *, patience: float) -> None:
        """Nobody else is there."""

    def live_workers_with(self, workflow: str, version: int) -> bool:
        return False

    def claim(self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = ()) -> list[RunState]:
        if chains:
            wanted = [self.chains[chain_id] for chain_id in chains]
        else:
            due = [run for run in self.chains.values() if run.due_at is not None and run.due_at <= self.clock]
            wanted = sorted(due, key=lambda run: run.due_at or self.clock)
            taken = {run.chain_id for run in due}
            wanted += [self.chains[chain_id] for chain_id in self._fresh if chain_id not in taken]
        return [replace(run) for run in wanted[:limit]]

    def inbox(self, chains: Collection[UUID], *, waiting: Collection[UUID] = ()) -> dict[UUID, Inbox]:
        return {c: Inbox(kept.message for kept in self._inboxes.get(c, {}).values()) for c in chains}

    def facts(self, runs: Collection[UUID]) -> dict[UUID, RunFacts]:
        return {run_id: self.runs[run_id].facts for run_id in runs}

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        return {run_id: self.runs[run_id].events[seq:] for run_id, seq in after.items()}

    def page(self, run_id: UUID, *, after: int, most: int) -> list[HistoryEvent]:
        return self.runs[run_id].events[after : after + most]

    def markers(self, run_id: UUID) -> set[str]:
        return {e.attributes["id"] for e in self.runs[run_id].events if e.kind == "PatchMarked"}

    def now(self) -> datetime:
        return self.clock

    def new_token(self) -> int:
        return next(self._tokens)

    def new_run_id(self) -> UUID:
        return uuid4()

    def write(self, writes: Sequence[RunWrite]) -> None:
        for write in writes:
            for child in write.children:
                self._start_child(child)
        for write in writes:
            for message in write.messages:
                self._tell(message)
        for write in writes:
            if write.close_children:
                self._close_children(write.run.run_id)
            self._write(write)

    def _start_child(self, child: NewChild) -> None:
        if as_run_id(child.workflow_id) in self.runs:
            self._tell(child.refusal(run_id_taken(child.workflow_id)))
            return
        if self._taken(child.scope, workflow=child.workflow, version=child.version, workflow_id=child.workflow_id):
            self._tell(child.refusal())
            return
        chain_id = uuid4()
        facts = RunFacts(
            run_id=uuid4(),
            workflow_id=child.workflow_id,
            workflow=child.workflow,
            version=child.version,
            args=copied(child.args),
            seed=child.seed,
            parent=child.parent,
            parent_chain=child.parent_chain,
            parent_run=child.parent_run,
            parent_seq=child.parent_seq,
            parent_close=child.parent_close,
            expires_at=child.expires_at,
            run_timeout=child.run_timeout,
        )
        self._new_chain(chain_id, facts, child.queue, child.scope)
        self._children.setdefault(child.parent_run, {})[child.parent_seq] = chain_id

    def _tell(self, message: NewMessage) -> None:
        reached = Reached(message.chain_id)
        if message.child is not None:
            reached = Reached(self._children.get(message.child[0], {}).get(message.child[1]))
        elif message.chain_id is None and message.workflow_id is not None:
            reached = self._reached(message.workflow_id)
        chain_id = reached.chain_id
        if message.ask is not None and chain_id is not None and self.chains[chain_id].closed:
            chain_id = None
            reached = Reached(None)
        if chain_id is not None:
            self._deliver(chain_id, message.kind, message.name, copied(message.body), run_id=message.run_id)
        if message.ask is not None:
            name, body = message.answer(reached)
            self._deliver(message.ask[0], "external", name, body, run_id=message.ask[1])

    def _close_children(self, run_id: UUID) -> None:
        for chain_id in self._children.get(run_id, {}).values():
            policy = self.current(chain_id).facts.parent_close
            if not self.chains[chain_id].closed and policy != "abandon":
                kind = "cancel" if policy == "request_cancel" else "terminate"
                self._deliver(chain_id, kind, "", dict(PARENT_CLOSED))

    def _write(self, write: RunWrite) -> None:
        state, run = write.run, self.runs[write.run.run_id]
        for event in write.events:
            stored = HistoryEvent(event.seq, event.activation, event.kind, event.at, copied(event.attributes))
            run.events.append(stored)
        for name, value in write.instance.items():
            setattr(run, name, value)
        for task in write.tasks:
            self._schedule(task)
        open_ones = self._tasks_of.get(state.run_id, {})
        for seq in list(open_ones) if write.drop_tasks else write.cancelled_tasks:
            if seq in open_ones:
                self._drop(self.open_tasks[open_ones[seq]])
        self._settle(write)
        if write.next_run is not None:
            following = write.next_run
            facts = replace(
                run.facts, run_id=following.run_id, args=following.args, seed=following.seed, carried=following.carried
            )
            self.runs[following.run_id] = MemoryRun(facts=facts)
            self.run_ids[state.chain_id].append(following.run_id)
            state = replace(
                state, run_id=following.run_id, head=None, length=0, activations=0, due_at=self.clock, atomic_due=None
            )
        self.chains[state.chain_id] = state

    def _settle(self, write: RunWrite) -> None:
        chain_id = write.run.chain_id
        inbox, updates = self._inboxes.get(chain_id, {}), self._kept.get(chain_id, {})
        for number in write.consumed:
            self.messages.pop(number, None)
            inbox.pop(number, None)
        for number, outcome in write.settled.items():
            kept = inbox.pop(number)
            kept.fresh, kept.outcome = False, outcome
            if outcome.status in ("rejected", "undelivered") and kept.message.dedupe is not None:
                del updates[kept.message.dedupe]  # the id of what was not accepted stays free
        for number, after in write.waiting.items():
            inbox[number].fresh, inbox[number].message.after = False, after
        for number in write.parked:
            inbox[number].fresh = False
        if not any(kept.fresh for kept in inbox.values()):
            self._fresh.pop(chain_id, None)
        for update_id, outcome in write.outcomes.items():
            updates[update_id].outcome = outcome
        if write.closing is not None:
            open_ones = [kept for kept in updates.values() if kept.outcome and kept.outcome.status == "accepted"]
            for kept in open_ones:
                kept.outcome = write.closing
            for kept in inbox.values():  # what is left there is for the next turn to answer, also what waited
                kept.fresh = True
                self._fresh[chain_id] = None
            if write.cut_off:
                write.warn_of_unfinished([kept.message.name for kept in open_ones])

    # -- TaskStorage --------------------------------------------------------------------------------------------------

    def _schedule(self, task: NewTask) -> None:
        number = next(self._ids)
        self.open_tasks[number] = TaskState(
            id=number,
            chain_id=task.chain_id,
            run_id=task.run_id,
            workflow_id=task.workflow_id,
            workflow=task.workflow,
            seq=task.seq,
            activity=task.activity,
            args=task.args,
            kwargs=task.kwargs,
            options=task.options,
            queue=task.queue,
            atomic=task.atomic,
            attempt=0,
            scheduled_at=task.scheduled_at,
            due_at=task.scheduled_at,
        )
        self._tasks_of.setdefault(task.run_id, {})[task.seq] = number
        heapq.heappush(self._due_tasks, (task.scheduled_at, number))

    def _drop(self, task: TaskState) -> None:
        del self.open_tasks[task.id], self._tasks_of[task.run_id][task.seq]

    def claim_tasks(self, *, room: Room, queues: Sequence[str], owner: int, atomic: bool = False) -> list[TaskState]:
        taken: list[TaskState] = []
        while room and self._due_tasks and self._due_tasks[0][0] <= self.clock:
            task = self.open_tasks.get(heapq.heappop(self._due_tasks)[1])
            if task is not None and task.owner is None and room.takes(task.activity):
                task.owner, task.attempt = owner, task.attempt + 1
                taken.append(task)
        return taken

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        valid = []
        for result in results:
            task = self.open_tasks.get(result.task.id)
            if task is None:
                continue
            valid.append(task.id)
            if result.outcome is not None:
                self._drop(task)
                kind, attributes = result.outcome
                self._deliver(task.chain_id, "activity", kind, attributes, run_id=task.run_id)
            elif result.retry_at is not None:
                task.owner = task.started_at = None
                task.attempt -= not result.count
                task.due_at = result.retry_at
                heapq.heappush(self._due_tasks, (task.due_at, task.id))
        return valid

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        return [t for t in self.open_tasks.values() if activities.timed_out(t, self.clock) is not None][:limit]

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        return []

    def heartbeat(self, beats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        for (number, _, _), details in beats.items():
            if (task := self.open_tasks.get(number)) is not None:
                task.heartbeat_details, task.beat_at = details, self.clock
        return {key for key in beats if key[0] in self.open_tasks}
