"""The contract between a turn and the place where runs live. Memory and Django fulfil it; nothing here imports Django.

A turn is one transaction: ``claim`` locks runs, ``inbox``/``facts``/``histories`` read what it needs, ``write`` stores
all that it produced. Values that cross are plain JSON data and aware datetimes; the storage encodes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import CLOSED_FROM_OUTSIDE, HistoryEvent
from temporalex_django.core.history.prefix import PendingMessage
from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.core.senders import Sender
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.engine.capacity import Capacity
from temporalex_django.engine.external_messages import NewChild, NewMessage
from temporalex_django.engine.ids import human_task_id
from temporalex_django.engine.in_hand import FinishedActivity
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.typed_dicts import BlockMark, RowChanges

if TYPE_CHECKING:
    from temporalex_django.engine.taker import EagerClaim
    from temporalex_django.engine.turn_report import ClaimedRuns

logger = logging.getLogger("temporalex_django.engine")


@dataclass(slots=True, kw_only=True)
class RunState:
    """A claimed (locked) chain and its current run; all of it is on the chain's row."""

    chain_id: UUID
    run_id: UUID
    queue: str
    head_token: int | None  # token of the last writing activation; None before the first
    length: int  # events in the history
    activations: int
    activated_at: datetime | None  # of the last activation: time never goes back
    due_at: datetime | None
    deadline: datetime | None
    failed_tries: int = 0  # in a row of the present activation
    crashes: int = 0  # processes in a row that ended while they ran its code: such a run comes alone, and is rebuilt
    closed: bool = False
    paused: bool = False
    atomic_due: datetime | None = None  # when the next atomic activity of the run is to run; None: there is none

    def as_values(self) -> tuple[Any, ...]:
        """All of it, to make it anew from (``from_values``): a turn keeps that of each run, and seldom needs it."""
        return _state_values(self)

    @classmethod
    def from_values(cls, values: tuple[Any, ...]) -> RunState:
        return cls(**dict(zip(_STATE_FIELDS, values, strict=True)))


_STATE_FIELDS = tuple(column.name for column in fields(RunState))
_state_values: Callable[[RunState], tuple[Any, ...]] = attrgetter(*_STATE_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What the row of the run says; read only for runs that are not in the cache."""

    run_id: UUID
    workflow_id: str
    workflow: str
    version: int
    args: Any
    seed: int
    carried_messages: CarriedMessages | None = (
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
    snapshot: dict[str, Any] | None = None  # what it begins with beside its input: see core.four_eyes
    search_attributes: Mapping[str, Any] | None = None  # those that it has at present

    @classmethod
    def from_start(cls, start: RunStart, *, run_id: UUID, started_at: datetime) -> RunRecord:
        """Of the first run of a chain."""
        shared: dict[str, Any] = {name: getattr(start, name) for name in _START_FIELDS}
        return cls(run_id=run_id, expires_at=start.expires_at(started_at), **shared)

    def deadline(self, started_at: datetime) -> datetime | None:
        """When a run that starts now times out."""
        run_deadline = None if self.run_timeout is None else started_at + timedelta(seconds=self.run_timeout)
        return min((moment for moment in (run_deadline, self.expires_at) if moment is not None), default=None)


#: What a start has in common with the row of its run.
_START_FIELDS = frozenset(f.name for f in fields(RunStart)) & frozenset(f.name for f in fields(RunRecord)) - {
    "expires_at"
}


@dataclass(slots=True, kw_only=True)
class InboxMessage:
    """An unsettled message of a chain, oldest first.

    ``kind``: ``signal`` (name, body payload) · ``update`` (name, body args, request_id = update id) · ``REQUEST`` of
    ``core.process`` (name: the event, body: what a process judges, request_id = an id) · ``cancel`` (body reason) ·
    ``activity`` (body: the attributes of ActivityCompleted/Failed/TimedOut, name: that kind) · ``child``, ``external``
    and ``timer`` (which somebody lets fire) likewise. A result may also be ``external`` (name
    ExternalDelivered/ExternalFailed). ``terminate`` (body reason): the parent closed. ``after``: a turn left this
    update behind a busy handler. ``sender``: the person who sent it, if one did.
    """

    id: int
    kind: str
    name: str
    payload: Any
    message_id: str | None = None
    run_id: UUID | None = None  # only for results: the run that asked
    after: int | None = None
    sender: Sender | None = None
    redelivered: bool = False  # by a reset or fork: an update or a request that waits for what takes it
    size: int = 0  # bytes of the body where it is stored, if known


class Inbox(list[InboxMessage]):
    """What a turn reads of the inbox of one chain. ``has_more``: there are messages behind these, for another turn."""

    __slots__ = ("has_more",)

    def __init__(self, messages: Iterable[InboxMessage] = (), *, has_more: bool = False) -> None:
        super().__init__(messages)
        self.has_more = has_more


@dataclass(slots=True, kw_only=True)
class NewEvent:
    """An event to append."""

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: dict[str, Any]
    encoded: bytes | None = None  # the attributes as they are stored, when that is known already


@dataclass(slots=True, kw_only=True)
class NewTask:
    """An activity to run. ``options``: see ``authoring.activity.ActivityOptions.as_dict`` (durations in seconds)."""

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
    failure: AttemptFailure | None = None  # of the last of these tries
    tags: Sequence[str] | None = None  # those of the workflow's class
    metadata: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the worker that advances the run takes it, whatever its queues and its capacity."""
        return bool(self.options.get("local"))

    def as_state(self, number: int, **changes: Any) -> TaskState:
        """The same as a scheduled activity with that id, due at once; ``changes`` is what else is known of it."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in _TASK_FIELDS}
        return TaskState(id=number, **{**shared, "due_at": self.scheduled_at, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """An atomic activity that failed and is tried again: ``attempt`` is the one that failed."""

    attempt: int
    due_at: datetime
    failure: AttemptFailure | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of an update.

    ``status``: accepted, completed, failed, rejected; ``value``: the response, or ``{"code", "message", "type"}``.
    """

    status: str
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskWrite:
    """A human task as it stands after a turn; ``changes``: opened, reminded, escalated, barred, closed."""

    run_id: UUID
    chain_id: UUID
    workflow: str
    workflow_id: str
    changes: tuple[str, ...]
    task: HumanTaskState

    @property
    def id(self) -> UUID:
        return human_task_id(self.run_id, self.task.key)


@dataclass(slots=True, kw_only=True)
class NewRun:
    """The next run of a chain, after continue-as-new or a reset.

    ``source_run_id``: the run that it is, else the present one, whose mark of a pause and stored fields of the state it
    has. ``search_attributes``: those that it begins with.
    """

    run_id: UUID
    args: Any
    seed: int
    carried_messages: CarriedMessages | None = None  # as in ``RunRecord``
    snapshot: dict[str, Any] | None = None
    source_run_id: UUID | None = None
    search_attributes: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class RunWrite:
    """All that a turn stores for one run. ``state`` keys present are columns to change, absent ones stay.

    ``instance``: status, published (plain value), stored, search_attributes, accepts, waiting_for, started_at,
    closed_at, closing (attributes of the closing event), blocked.
    """

    run: RunState  # with head_token, length, activations, activated_at, due_at … already as they are after the turn
    executed: bool = False  # the code of the run was run, or rebuilt
    delivered: bool = False  # something was delivered to it, and whoever ran it lives: its crashes are forgotten
    events: list[NewEvent] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)
    cancelled_tasks: list[int] = field(
        default_factory=list
    )  # command numbers of this run: cancelled, or atomic and done
    retried_tasks: dict[int, Retry] = field(default_factory=dict)  # atomic ones, by number
    drop_tasks: bool = False  # the run closed: no activity of it may start any more
    left_open: bool = False  # its own code closed it while activities were under way
    consumed: list[int] = field(default_factory=list)  # message ids that are in the history now: deleted
    settled: dict[int, Outcome] = field(default_factory=dict)  # message ids kept with their outcome
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by update id, for messages settled in an earlier turn
    waiting: dict[int, int] = field(default_factory=dict)  # message id -> ``after``; no longer fresh, not settled
    parked: list[int] = field(default_factory=list)  # message ids: no longer fresh (paused or blocked run)
    messages: list[NewMessage] = field(default_factory=list)
    children: list[NewChild] = field(default_factory=list)
    close_children: bool = False  # the run closed: open children of it get what their ``parent_close`` says
    instance: RowChanges = field(default_factory=RowChanges)
    next_run: NewRun | None = None
    notes: Sequence[tuple[str, dict[str, Any]]] = ()  # what a process tells whoever listens
    commands: Sequence[Command] | None = (
        None  # of a recorded activation, for whoever watches; the storage has its events
    )
    refused_signals: list[RefusedSignal] = field(default_factory=list)  # signals that are to be audited
    refused_redeliveries: list[RefusedRedelivery] = field(
        default_factory=list
    )  # redelivered messages that are to be audited
    failed_signals: list[FailedSignal] = field(default_factory=list)  # signals that become failed messages
    human_tasks: list[HumanTaskWrite] = field(default_factory=list)  # those that changed
    closing: Outcome | None = None  # the chain closed: the answer for its updates that are accepted and unfinished

    @property
    def is_closed_externally(self) -> bool:
        """Whether somebody outside closed the run, whatever its code was doing."""
        if not self.events:
            return False
        last = self.events[-1]
        return last.kind in CLOSED_FROM_OUTSIDE or bool(last.attributes.get("outside"))

    @property
    def drops_open_activities(self) -> bool:
        """Whether it closes the run while some may be under way: what somebody gave them is to be kept."""
        return self.drop_tasks and (self.is_closed_externally or self.left_open)

    @property
    def cancels_activities(self) -> bool:
        """Whether its code cancels some while it goes on."""
        return bool(self.cancelled_tasks) and any(event.kind == "ActivityCancelled" for event in self.events)

    def add_cancelled_inputs(self, inputs: Mapping[str, Any]) -> None:
        """``inputs`` that people gave to activities: the events that cancel these have them, as an end would."""
        for index, event in enumerate(self.events):
            edited_input = inputs.get(str(event.attributes.get("seq"))) if event.kind == "ActivityCancelled" else None
            if edited_input is not None:
                self.events[index] = replace(event, attributes={**event.attributes, "edited": edited_input})

    def add_edited_inputs(self, inputs: Mapping[str, Any]) -> None:
        """``inputs`` that people gave to activities which are dropped: the closing event has them, as an end would."""
        if inputs:
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "edited": dict(inputs)})

    def add_unread_results(self, inbox: Iterable[InboxMessage]) -> None:
        """The closing event has the results that had come and that the run never read, for who takes it up."""
        results = [message for message in inbox if message.run_id == self.run.run_id]
        if results:
            unread = [{"kind": result.kind, "name": result.name, "body": result.payload} for result in results]
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "unread": unread})

    def warn_unfinished(self, updates: Collection[str]) -> None:
        """Say that handlers of these updates (names) were still at work when the run was closed from outside."""
        if updates:
            run_id, names = str(self.run.run_id), ", ".join(updates)
            logger.warning(
                "run %s was closed by %s while these updates were in progress, their senders are told: %s",
                *(run_id, self.events[-1].kind, names),
                extra={"run_id": run_id},
            )


class RunStorage(Protocol):
    """Where runs live. ``claim`` to ``write`` are called inside ``transaction()``.

    What is given is copied, and what is read is the reader's own. ``tests/contract`` holds every storage to what is
    said here.
    """

    def transaction(self, site: str = "") -> AbstractContextManager[None]:
        """A transaction named in ``core.crash_points``, or a savepoint in an open one. What raises leaves nothing."""

    def savepoint(self) -> AbstractContextManager[None]:
        """A part of a transaction: what raises leaves nothing of itself, the rest of the transaction stays."""

    def checked_savepoint(self) -> AbstractContextManager[None]:
        """A savepoint for an atomic activity.

        Its end raises what deferred constraints would raise at the commit, where nobody could tell whose fault it is.
        """

    def claim(
        self, *, limit: int, queues: Sequence[str], chains: Collection[UUID] = (), first: Collection[UUID] = ()
    ) -> ClaimedRuns:
        """Lock about ``limit`` runs of these queues that are due or have fresh messages; ``first`` ones due or not.

        Skips locked and deferred ones. With ``chains`` exactly these, whatever their queue, due or not. One with
        ``crashes`` is to be taken alone, by its name, by workers only: others get nothing when they name it.
        """

    def inbox(
        self, chains: Collection[UUID], *, waiting: Collection[UUID] = (), page: int | None = None
    ) -> dict[UUID, Inbox]:
        """Unsettled messages of locked runs in order; of those ``waiting``, which are only to be parked, fresh ones do.

        Of a long inbox as much as a turn should read: the oldest signals and updates, about ``page`` of them, and
        everything else.
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
        """``inbox`` of these chains and ``run_records`` of these runs, with one wait."""

    def block_reason(self, run_id: UUID) -> BlockMark | None:
        """Why a run is blocked, and since when; None: it is not."""

    def histories(self, after: Mapping[UUID, int]) -> dict[UUID, list[HistoryEvent]]:
        """Events of each run with ``seq`` greater than the given one, in order."""

    def history_page(self, run_id: UUID, *, after: int, limit: int) -> list[HistoryEvent]:
        """The next ``limit`` events of one run."""

    def patch_markers(self, run_id: UUID) -> set[str]:
        """Ids of the patches that are marked in the history of a run."""

    def now(self) -> datetime:
        """The storage's clock (after the locks are held)."""

    def new_token(self) -> int:
        """A head token, never drawn twice."""

    def new_run_id(self) -> UUID:
        """For a run that goes on as new; later ones sort behind earlier ones where the storage sorts by it."""

    def write(
        self, writes: Sequence[RunWrite], *, eager_claim: EagerClaim | None = None, is_last: bool = False
    ) -> Callable[[], list[TaskState]]:
        """Store what a turn produced, of runs that the open transaction has locked. What is not there is left out.

        Children are started first, so that a message of the same turn finds them. Locks their messages and activities,
        no other run's. With a ``eager_claim`` new activities for which it has capacity may be stored as claimed by it,
        in their first attempt: the answer gives those, behind the commit, before which they must not begin. A storage
        that cannot tell the ids of rows that it inserts takes none. ``is_last``: nothing comes behind it in this
        transaction, so that the commit need not wait for it.
        """

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Put messages at the head of the inbox of a locked chain, in order: those that are there come behind them.

        One with an id takes the place of the message that has it; one that is there and unread is newer, and stays
        alone. ``received``: so many signals are in the history of the run; updates that waited behind later ones are
        new to it.
        """

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """The statuses of messages of a chain, by id: "unread", or that of the outcome. Others are left out."""

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Give a locked chain that never had them those of these messages that are failed messages of another one."""

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        """Put messages that the history of the run has into a locked chain that never had them, with their outcomes.

        When one is sent again, it is not taken twice; no turn reads these.
        """

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call it after the commit of the outermost transaction, never after a rollback; what it raises is logged."""

    def is_transient(self, exc: BaseException) -> bool:
        """Whether another try may succeed: after a lock timeout, a deadlock, a serialization failure, and such."""

    def is_interrupted(self, exc: BaseException) -> bool:
        """Whether a statement was cancelled: in an activity that is its own failure."""

    def is_connection_lost(self, exc: BaseException) -> bool:
        """Whether the connection is gone: nothing was committed."""

    def lock_run(self, chain: UUID, *, wait: float) -> RunState | None:
        """Lock one chain, whatever state it is in, waiting at most so many seconds for it.

        None when that was in vain, or there is no such chain.
        """

    def defer(self, chains: Iterable[UUID], *, seconds: float) -> None:
        """Leave these runs alone for so long, others may take them; nothing is written.

        The last word counts; 0: no longer.
        """

    def wait_for_locks(self, chain: UUID, *, timeout: float) -> None:
        """Stand in line, each so many seconds, for a locked chain and for the rows that its activities lock."""

    def has_live_worker(self, workflow: str, version: int) -> bool:
        """Whether some live worker has registered that version of the class."""


@dataclass(slots=True, kw_only=True)
class TaskState:
    """A claimed external activity, or an atomic one of a locked run. ``attempt`` counts this one."""

    id: int
    chain_id: UUID | None  # None: a lone one, whose ``run_id`` is its own
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

    @property
    def fence(self) -> tuple[int, int, int | None]:
        """Names this attempt where it is stored: ``(id, attempt, owner)``.

        An atomic activity was read, not claimed: its row does not count the attempt that ended.
        """
        return self.id, self.attempt - 1 if self.atomic and self.owner is None else self.attempt, self.owner

    def as_new(self, *, due_at: datetime, failure: AttemptFailure | None) -> NewTask:
        """One that never became a row, and is to be one now: it was tried, and is due again."""
        shared = {name: getattr(self, name) for name in _TASK_FIELDS}
        return NewTask(**shared, attempt=self.attempt, due_at=due_at, failure=failure)


#: What a new activity and a scheduled one have in common, apart from where the latter stands by now.
_TASK_FIELDS = frozenset(f.name for f in fields(NewTask)) & frozenset(f.name for f in fields(TaskState)) - {
    "due_at",
    "attempt",
}


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """The end of one attempt.

    ``outcome`` is ``(history kind, attributes)`` when it was the last, else it is due again at ``retry_at``. Fenced by
    ``attempt`` and ``owner``: a late one changes nothing. ``count`` False gives the attempt back, ``waits_for`` says
    what was lacking here. ``failure`` is why it is due again, kept until it has ended; None: what is kept stays.
    """

    task: TaskState
    outcome: tuple[str, dict[str, Any]] | None = None
    retry_at: datetime | None = None
    failure: AttemptFailure | None = None
    encoded: bytes | None = None  # the attributes as they will be stored, when that is known already
    count: bool = True
    waits_for: str | None = None
    details: bytes | None = None  # of its last heartbeat, as they are stored; None: it gave none
    error_entry: Mapping[str, str] | None = (
        None  # of a lone one: path of the class, and traceback; see ``engine.background_task``
    )


class TaskStorage(Protocol):
    """Where scheduled activities live. Each call is one transaction of its own unless it is called inside one."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        """Take due, unowned external activities, oldest due first; the attempt is counted here, and has not begun yet.

        ``atomic``: those as well (environments run them like any other).
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store ends of attempts: the ids of those that were still valid.

        A final one becomes a message of its chain.
        """

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        """``finish_tasks`` inside a transaction, without the messages: what chains have to hear of comes beside."""

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        """The messages that ``finish_undelivered`` left out, of these."""

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        """Activities one of whose timeouts has passed (``expires_at``)."""

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Atomic activities of a locked chain, due ones and those that wait for another try, in order of ``seq``.

        ``attempt`` counts the one to come; nothing is written.
        """

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Those of a run that have no result yet, in order of ``seq``, as they stand. A plain read."""

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """The activity of that command, whoever has it; None when it is over. Nothing is claimed or locked.

        ``attempt`` of an atomic one that nobody has counts the one to come, as in ``atomic_tasks``.
        """

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        """All of a run that are not over, in order of ``seq``, each as ``find_task`` gives it."""

    def edit_task(self, task: TaskState) -> None:
        """Store the arguments and options of an activity that nobody has; fenced, as ``finish_tasks`` is."""

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store details (or what they are encoded to) by ``(task id, attempt, owner)``.

        Gives those that are still valid (the others: cancelled).
        """
