"""The contract between a turn and the place where runs live. Memory and Django fulfil it; nothing here imports Django.

A turn is one transaction: ``claim`` locks runs, ``inbox``/``facts``/``histories`` read what it needs, ``write`` stores all that it
produced. Values that cross are plain JSON data and aware datetimes; how they are encoded is the storage's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from temporalex_django.core.commands import Command
from temporalex_django.core.events import CLOSED_FROM_OUTSIDE, DELIVERED, HistoryEvent
from temporalex_django.core.senders import Sender
from temporalex_django.errors import AlreadyRunning, AmbiguousId, TemporalexError
from temporalex_django.runtime.room import Room

logger = logging.getLogger("temporalex_django.runtime")


@dataclass(slots=True, kw_only=True)
class RunState:
    """A claimed (locked) chain and its current run; all of it is on the chain's row."""

    chain_id: UUID
    run_id: UUID
    queue: str
    head: int | None  # token of the last writing activation; None before the first
    length: int  # events in the history
    activations: int
    stamp: datetime | None  # of the last activation: time never goes back
    due_at: datetime | None
    deadline: datetime | None
    attempt: int = 0  # failed tries in a row of the present activation
    crashes: int = 0  # processes in a row that ended while they ran its code: such a run comes alone, and is rebuilt
    closed: bool = False
    paused: bool = False
    atomic_due: datetime | None = None  # when the next atomic activity of the run is to run; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the row of the run says; read only for runs that are not in the cache."""

    run_id: UUID
    workflow_id: str
    workflow: str
    version: int
    args: Any
    seed: int
    carried: dict[str, Any] | None = (
        None  # what came along from the run before (``Completion.carried``); None: there is none
    )
    attempt: int = 1
    parent: str | None = None
    parent_chain: UUID | None = None
    parent_seq: int | None = None
    parent_run: UUID | None = None
    parent_close: str | None = None
    expires_at: datetime | None = None  # when the whole chain times out
    run_timeout: float | None = None  # seconds that each run of it has
    started_at: datetime | None = None
    snapshot: dict[str, Any] | None = None  # of a graph that was moved from another version: where it goes on


@dataclass(slots=True, kw_only=True)
class InboxMessage:
    """An unsettled message of a chain, oldest first.

    ``kind``: ``signal`` (name, body payload) · ``update`` (name, body args, dedupe = update id) · ``resume`` (name: the
    event, body: see ``core.executor.Resumes``, dedupe = an id) · ``cancel`` (body reason) ·
    ``activity`` (body: the attributes of ActivityCompleted/Failed/TimedOut, name: that kind) · ``child`` and ``external`` likewise.
    A result may also be ``external`` (name ExternalDelivered/ExternalFailed). ``terminate`` (body reason): the parent closed.
    ``after`` is set when an earlier turn left this update waiting behind a busy handler. ``sender``: the person who sent it, if one did.
    """

    id: int
    kind: str
    name: str
    body: Any
    dedupe: str | None = None
    run_id: UUID | None = None  # only for results: the run that asked
    after: int | None = None
    sender: Sender | None = None
    size: int = 0  # bytes of the body where it is stored, if known


class Inbox(list[InboxMessage]):
    """What a turn reads of the inbox of one chain. ``more``: there are messages behind these, for another turn."""

    __slots__ = ("more",)

    def __init__(self, messages: Iterable[InboxMessage] = (), *, more: bool = False) -> None:
        super().__init__(messages)
        self.more = more


@dataclass(slots=True, kw_only=True)
class NewEvent:
    """An event to append."""

    seq: int
    activation: int
    kind: str
    at: datetime
    attributes: dict[str, Any]


@dataclass(slots=True, kw_only=True)
class NewTask:
    """An activity to run. ``options``: see ``authoring.activity.Options.as_dict`` (durations in seconds)."""

    run_id: UUID
    chain_id: UUID
    workflow_id: str
    workflow: str
    seq: int
    activity: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    queue: str
    atomic: bool
    scheduled_at: datetime
    attempt: int = 0  # tries so far
    due_at: datetime | None = None  # None: at once
    tags: Sequence[str] | None = None  # those of the workflow's class
    metadata: Mapping[str, Any] | None = None

    @property
    def local(self) -> bool:
        """Whether the worker that advances the run takes it, whatever its queues and its room."""
        return bool(self.options.get("local"))


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of an update.

    ``status``: accepted, completed, failed, rejected; ``value``: the response, or ``{"code", "message", "type"}``.
    """

    status: str
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A signal that was refused, since its sender lacks the permission of its handler."""

    run_id: UUID
    workflow: str
    workflow_id: str
    at: datetime
    signal: str
    permission: str
    sender: Sender

    @property
    def reason(self) -> str:
        return f"refused: {self.sender} lacks the permission {self.permission}"


@dataclass(slots=True, kw_only=True)
class NewMessage:
    """To another chain (``chain_id``), to the child that ``child`` (run, number) names, or to the newest open run of ``workflow_id``.

    ``ask`` is (chain, run, number) of a sender that waits to hear whether it was stored: the answer is a message of kind ``external``.
    """

    kind: str
    name: str
    body: Any
    chain_id: UUID | None = None
    workflow_id: str | None = None
    run_id: UUID | None = None
    dedupe: str | None = None
    child: tuple[UUID, int] | None = None
    ask: tuple[UUID, UUID, int] | None = None

    def answer(self, reached: Reached) -> tuple[str, dict[str, Any]]:
        """Name and body of what the sender that asked hears."""
        assert self.ask is not None
        body: dict[str, Any] = {"seq": self.ask[2]}
        if reached.chain_id is not None:
            return DELIVERED, body
        if (several := reached.ambiguous) is not None:
            body |= {"type": "AmbiguousId", "message": str(several), "candidates": several.candidates}
        elif reached.known:
            body |= {"type": "WorkflowClosed", "message": f"the run {self.workflow_id!r} is closed"}
        else:
            body |= {
                "type": "WorkflowNotFound",
                "message": f"no run with the id {self.workflow_id!r} was ever started",
            }
        return "ExternalFailed", body


class Reached(NamedTuple):
    """Where a message to an id goes: an open chain, or none; ``known``: there was a run of it; or several could be meant."""

    chain_id: UUID | None
    known: bool = True
    ambiguous: AmbiguousId | None = None


#: Body of the message to a child whose parent closed.
PARENT_CLOSED: Final = {"reason": "its parent closed"}


@dataclass(slots=True, kw_only=True)
class NewChild:
    """A run to start for another one. When its id is taken, the parent gets ``ChildFailed`` with the type AlreadyRunning."""

    workflow: str
    workflow_id: str
    version: int
    queue: str
    scope: str
    args: Any
    seed: int
    at: datetime
    parent: str
    parent_chain: UUID
    parent_run: UUID
    parent_seq: int
    parent_close: str
    execution_timeout: float | None = None
    run_timeout: float | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def expires_at(self) -> datetime | None:
        return None if self.execution_timeout is None else self.at + timedelta(seconds=self.execution_timeout)

    @property
    def deadline(self) -> datetime | None:
        return deadline(self.at, expires_at=self.expires_at, run_timeout=self.run_timeout)

    @property
    def live_key(self) -> str | None:
        return live_key(self.scope, workflow=self.workflow, version=self.version, workflow_id=self.workflow_id)

    def refusal(self, error: TemporalexError | None = None) -> NewMessage:
        """What the parent hears when the id is taken, or cannot be had for another reason."""
        error = error or AlreadyRunning(f"{self.workflow} {self.workflow_id!r} is open already")
        body = {"seq": self.parent_seq, "type": type(error).__name__, "message": str(error)}
        return NewMessage(
            kind="child", name="ChildFailed", body=body, chain_id=self.parent_chain, run_id=self.parent_run
        )


def deadline(started: datetime, *, expires_at: datetime | None, run_timeout: float | None) -> datetime | None:
    """When a run that starts at ``started`` times out."""
    own = None if run_timeout is None else started + timedelta(seconds=run_timeout)
    return min((moment for moment in (own, expires_at) if moment is not None), default=None)


def live_key(scope: str, *, workflow: str, version: int, workflow_id: str) -> str | None:
    """What is unique among open runs (page 3.4)."""
    match scope:
        case "global":
            return f"g:{workflow_id}"
        case "workflow":
            return f"w:{workflow}:{workflow_id}"
        case "version":
            return f"v:{workflow}:{version}:{workflow_id}"
        case _:
            return None


@dataclass(slots=True, kw_only=True)
class NewRun:
    """The next run of a chain after continue-as-new."""

    run_id: UUID
    args: Any
    seed: int
    carried: dict[str, Any] | None = None  # as in ``RunFacts``


@dataclass(slots=True, kw_only=True)
class RunWrite:
    """All that a turn stores for one run. ``state`` keys present are columns to change, absent ones stay.

    ``instance``: status, published (plain value), accepts, waiting_for, started_at, closed_at, closing (attributes of the
    closing event), blocked.
    """

    run: RunState  # with head, length, activations, stamp, due_at … already as they are after the turn
    executed: bool = False  # the code of the run was run, and whoever ran it lives: its crashes are forgotten
    events: list[NewEvent] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)
    cancelled_tasks: list[int] = field(
        default_factory=list
    )  # command numbers of this run: cancelled, or atomic and done
    retried_tasks: dict[int, tuple[int, datetime]] = field(
        default_factory=dict
    )  # atomic ones: number -> (attempt, due)
    drop_tasks: bool = False  # the run closed: no activity of it may start any more
    consumed: list[int] = field(default_factory=list)  # message ids that are in the history now: deleted
    settled: dict[int, Outcome] = field(default_factory=dict)  # message ids kept with their outcome
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by update id, for messages settled in an earlier turn
    waiting: dict[int, int] = field(default_factory=dict)  # message id -> ``after``; no longer fresh, not settled
    parked: list[int] = field(default_factory=list)  # message ids: no longer fresh (paused or blocked run)
    messages: list[NewMessage] = field(default_factory=list)
    children: list[NewChild] = field(default_factory=list)
    close_children: bool = False  # the run closed: open children of it get what their ``parent_close`` says
    instance: dict[str, Any] = field(default_factory=dict)
    next_run: NewRun | None = None
    notes: Sequence[tuple[str, dict[str, Any]]] = ()  # what a graph tells whoever listens
    commands: Sequence[Command] | None = (
        None  # of a recorded activation, for whoever watches; the storage has its events
    )
    refused: list[Refused] = field(default_factory=list)  # signals that are to be audited
    closing: Outcome | None = None  # the chain closed: the answer for its updates that are accepted and unfinished

    @property
    def cut_off(self) -> bool:
        """Whether somebody outside closed the run, whatever its code was doing."""
        if not self.events:
            return False
        last = self.events[-1]
        return last.kind in CLOSED_FROM_OUTSIDE or bool(last.attributes.get("outside"))

    def warn_of_unfinished(self, updates: Collection[str]) -> None:
        """Say that handlers of these updates (names) were still at work when the run was closed from outside (ST-104)."""
        if updates:
            run_id, names = str(self.run.run_id), ", ".join(updates)
            logger.warning(
                "run %s was closed by %s while these updates were in progress, their senders are told: %s",
                *(run_id, self.events[-1].kind, names),
                extra={"run_id": run_id},
            )


class Storage(Protocol):
    """Where runs live. ``claim`` to ``write`` are called inside ``transaction()``."""

    def transaction(self) -> AbstractContextManager[None]: ...

    def savepoint(self) -> AbstractContextManager[None]: ...

    def attempt(self) -> AbstractContextManager[None]:
        """A savepoint for an atomic activity.

        Its end raises what deferred constraints would raise at the commit, where nobody could tell whose fault it is.
        """

    def claim(self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = ()) -> list[RunState]:
        """Lock up to ``limit`` runs that are due or have fresh messages, skipping locked ones; with ``chains`` exactly these."""

    def inbox(self, chains: Collection[UUID], *, waiting: Collection[UUID] = ()) -> dict[UUID, Inbox]:
        """Unsettled messages of locked runs in order; of those ``waiting``, which are only to be parked, fresh ones do.

        Of a long inbox as much as a turn should read: the oldest signals and updates, and everything else that is in it.
        """

    def facts(self, runs: Collection[UUID]) -> dict[UUID, RunFacts]: ...

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        """Events of each run with ``seq`` greater than the given one, in order."""

    def page(self, run_id: UUID, *, after: int, most: int) -> list[HistoryEvent]:
        """The next ``most`` events of one run."""

    def markers(self, run_id: UUID) -> set[str]:
        """Ids of the patches that are marked in the history of a run."""

    def now(self) -> datetime:
        """The storage's clock (after the locks are held)."""

    def new_token(self) -> int:
        """A ``head`` token, never drawn twice."""

    def new_run_id(self) -> UUID:
        """For a run that goes on as new; later ones sort behind earlier ones where the storage sorts by it."""

    def write(self, writes: Sequence[RunWrite]) -> None: ...

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call it after the commit of the outermost open transaction, never after a rollback; what it raises is logged."""

    def transient(self, exc: BaseException) -> bool:
        """Whether the same work may succeed on another try (lock timeout, deadlock, serialization failure, a cancelled statement)."""

    def interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled: in an activity that is its own failure."""

    def lost(self, exc: BaseException) -> bool:
        """Whether the connection is gone: nothing was committed."""

    def decline(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Leave these runs alone for so long, others may take them; nothing is written. 0: no longer."""

    def queue_for(self, chain: UUID, *, patience: float) -> None:
        """Stand in line, each so many seconds, for a chain that others have locked and for the rows that its activities lock."""

    def live_workers_with(self, workflow: str, version: int) -> bool:
        """Whether some live worker has registered that version of the class."""


@dataclass(slots=True, kw_only=True)
class TaskState:
    """A claimed external activity, or an atomic one of a locked run. ``attempt`` counts this one."""

    id: int
    chain_id: UUID
    run_id: UUID
    workflow_id: str
    workflow: str
    seq: int
    activity: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    queue: str
    atomic: bool
    attempt: int
    scheduled_at: datetime
    due_at: datetime
    started_at: datetime | None = None  # of this attempt; None until it has begun
    beat_at: datetime | None = None  # last heartbeat of this attempt
    heartbeat_details: Any = None
    owner: int | None = None  # epoch of the worker that has it
    crashes: int = 0  # workers that ended while they ran it: such a one runs alone


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """The end of one attempt.

    ``outcome`` is ``(history kind, attributes)`` when it was the last, else it is due again at ``retry_at``. Fenced by ``attempt``
    and ``owner``: a late one changes nothing. ``count`` False gives the attempt back, ``waits_for`` says what was lacking here.
    """

    task: TaskState
    outcome: tuple[str, dict[str, Any]] | None = None
    retry_at: datetime | None = None
    body: bytes | None = None  # the attributes as they will be stored, when that is known already
    count: bool = True
    waits_for: str | None = None


class TaskStorage(Protocol):
    """Where scheduled activities live. Each call is one transaction of its own unless it is called inside one."""

    def claim_tasks(self, *, room: Room, queues: Sequence[str], owner: int, atomic: bool = False) -> list[TaskState]:
        """Take due, unowned external activities, oldest due first; the attempt is counted here, and has not begun yet.

        ``atomic``: those as well (environments run them like any other).
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store ends of attempts: the ids of those that were still valid. A final one becomes a message of its chain."""

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        """Activities one of whose timeouts has passed (``expires_at``)."""

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Atomic activities of a locked chain, due ones and those that wait for another try, in order of ``seq``. ``attempt`` counts the one to come; nothing is written."""

    def heartbeat(self, beats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store details (or what they are encoded to) by ``(task id, attempt, owner)``; gives those that are still valid (the others: cancelled)."""
