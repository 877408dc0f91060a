"""The contract between a turn and the place where runs live, which memory and Django fulfil.

Nothing here imports Django. A turn is one transaction: ``claim`` locks runs, ``inbox``, ``run_records`` and
``histories`` read what it needs, ``write`` stores all that it produced. Values that cross are plain JSON data and aware
datetimes; the storage encodes them.
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
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.people.human_tasks import HumanTaskState
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.engine.contracts.typed_dicts import BlockMark, RowChanges
from temporalex_django.engine.external_messages import NewChild, NewMessage
from temporalex_django.engine.ids import human_task_id
from temporalex_django.engine.in_hand import FinishedActivity
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.engine.run_start import RunStart
from temporalex_django.engine.scheduling.capacity import Capacity

if TYPE_CHECKING:
    from temporalex_django.engine.scheduling.eager_claim import EagerClaim
    from temporalex_django.engine.turn_report import ClaimedRuns

logger = logging.getLogger("temporalex_django.engine")


@dataclass(slots=True, kw_only=True)
class RunState:
    """A claimed (locked) chain and its current run; all fields are columns of the chain's row."""

    chain_id: UUID
    run_id: UUID
    queue: str
    head_token: int | None  # token of the last writing activation; None before the first
    length: int  # events in the history
    activations: int
    activated_at: datetime | None  # of the last activation; time never goes back
    due_at: datetime | None
    deadline: datetime | None
    failed_tries: int = 0  # of the present activation, in a row
    # Processes in a row that ended while they ran its code. Such a run is claimed alone, and rebuilt (decision 22).
    crashes: int = 0
    closed: bool = False
    paused: bool = False
    atomic_due: datetime | None = None  # when the next atomic activity is due; None: there is none

    def as_values(self) -> tuple[Any, ...]:
        """Return all fields as a tuple for ``from_values``: a turn keeps one of each run, and seldom needs it."""
        return _state_values(self)

    @classmethod
    def from_values(cls, values: tuple[Any, ...]) -> RunState:
        return cls(**dict(zip(_STATE_FIELDS, values, strict=True)))


_STATE_FIELDS = tuple(column.name for column in fields(RunState))
_state_values: Callable[[RunState], tuple[Any, ...]] = attrgetter(*_STATE_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The row of a run, which is read only for runs that are not in the cache."""

    run_id: UUID
    workflow_id: str
    workflow: str
    version: int
    args: Any
    seed: int
    # From the run before it in the chain (``Completion.carried``); None: there is none.
    carried_messages: CarriedMessages | None = None
    attempt: int = 1
    parent: str | None = None
    parent_chain: UUID | None = None
    parent_seq: int | None = None
    parent_run: UUID | None = None
    parent_close: str | None = None
    expires_at: datetime | None = None  # when the whole chain times out
    run_timeout: float | None = None  # seconds for each run of the chain
    started_at: datetime | None = None
    snapshot: dict[str, Any] | None = None  # data that it starts with beside its input: see core.four_eyes
    search_attributes: Mapping[str, Any] | None = None  # its present ones

    @classmethod
    def from_start(cls, start: RunStart, *, run_id: UUID, started_at: datetime) -> RunRecord:
        """Return the record of the first run of a chain."""
        shared: dict[str, Any] = {name: getattr(start, name) for name in _START_FIELDS}
        return cls(run_id=run_id, expires_at=start.expires_at(started_at), **shared)

    def deadline(self, started_at: datetime) -> datetime | None:
        """Return when a run that starts at ``started_at`` times out."""
        run_deadline = None if self.run_timeout is None else started_at + timedelta(seconds=self.run_timeout)
        return min((moment for moment in (run_deadline, self.expires_at) if moment is not None), default=None)


#: Fields that a start shares with the row of its run.
_START_FIELDS = frozenset(f.name for f in fields(RunStart)) & frozenset(f.name for f in fields(RunRecord)) - {
    "expires_at"
}


@dataclass(slots=True, kw_only=True)
class InboxMessage:
    """An unsettled message of a chain; an inbox lists them oldest first.

    ``kind`` is one of these:

    - ``signal``: ``payload`` is that of the signal.
    - ``update``: ``payload`` holds the arguments, ``message_id`` is the update id.
    - ``REQUEST`` of ``core.process``: ``name`` is the event, ``payload`` what the process judges, ``message_id`` an id.
    - ``cancel`` and ``terminate`` (the parent closed): ``payload`` holds the reason.
    - ``activity``, ``child``, ``external`` and ``timer`` (one that somebody skips): ``name`` is the kind of the event,
      such as ActivityCompleted or ExternalDelivered, and ``payload`` holds its attributes.

    ``after`` says that a turn left this update behind a busy handler. ``sender`` is the person who sent the message.
    """

    id: int
    kind: str
    name: str
    payload: Any
    message_id: str | None = None
    run_id: UUID | None = None  # only for results: the run that waits for it
    after: int | None = None
    sender: Sender | None = None
    redelivered: bool = False  # by a reset or fork: an update or a request waits until code takes it
    size: int = 0  # bytes of the payload as it is stored, if known


class Inbox(list[InboxMessage]):
    """The messages that a turn reads of one chain; with ``has_more``, others follow that are left for another turn."""

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
    encoded: bytes | None = None  # the attributes as they are stored, if known already


@dataclass(slots=True, kw_only=True)
class NewTask:
    """An activity to run; for ``options`` see ``authoring.activity.ActivityOptions.as_dict`` (durations in seconds)."""

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
    attempt: int = 0  # attempts so far
    due_at: datetime | None = None  # None: at once
    failure: AttemptFailure | None = None  # of the last of these attempts
    tags: Sequence[str] | None = None  # those of the workflow's class
    metadata: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """True if the worker that advances the run takes it, whatever its queues and its capacity."""
        return bool(self.options.get("local"))

    def as_state(self, number: int, **changes: Any) -> TaskState:
        """Return the scheduled activity with the id ``number``, due at once; ``changes`` set other fields."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in _TASK_FIELDS}
        return TaskState(id=number, **{**shared, "due_at": self.scheduled_at, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """An atomic activity that failed and is tried again; ``attempt`` is the one that failed."""

    attempt: int
    due_at: datetime
    failure: AttemptFailure | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a message.

    ``status`` of an update is accepted, completed, failed or rejected. ``value`` is the response, or ``{"code",
    "message", "type"}``.
    """

    status: str
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskWrite:
    """A human task after a turn; ``changes`` are among opened, reminded, escalated, barred and closed."""

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

    ``source_run_id`` is the run that it repeats. Without one it follows the present run, and keeps the mark of its
    pause and the stored fields of its state. ``search_attributes`` are those that it starts with.
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
    """All that a turn stores for one run.

    ``instance`` holds columns of the run's row to change, and absent keys stay as they are. In it, ``published`` is a
    plain value and ``closing`` holds the attributes of the closing event.
    """

    run: RunState  # as it is after the turn
    executed: bool = False  # its code was run, or it was rebuilt
    # Something was delivered to it and this process lives, so its crashes are forgiven (see decision 22).
    delivered: bool = False
    events: list[NewEvent] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)
    # Command numbers of activities that were cancelled, or atomic ones that are done.
    cancelled_tasks: list[int] = field(default_factory=list)
    retried_tasks: dict[int, Retry] = field(default_factory=dict)  # atomic ones, by command number
    drop_tasks: bool = False  # the run closed: none of its activities may start any more
    left_open: bool = False  # its own code closed it while activities were running
    consumed: list[int] = field(default_factory=list)  # numbers of messages that the history has now: deleted
    settled: dict[int, Outcome] = field(default_factory=dict)  # numbers of messages that stay with their outcome
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by update id, for messages settled in an earlier turn
    waiting: dict[int, int] = field(default_factory=dict)  # ``after`` by number: not fresh any more, not settled
    parked: list[int] = field(default_factory=list)  # numbers: not fresh any more (paused or blocked run)
    messages: list[NewMessage] = field(default_factory=list)
    children: list[NewChild] = field(default_factory=list)
    close_children: bool = False  # the run closed: ``parent_close`` decides about its open children
    instance: RowChanges = field(default_factory=RowChanges)
    next_run: NewRun | None = None
    notes: Sequence[tuple[str, dict[str, Any]]] = ()  # names and fields of what a process reports to its listeners
    # Commands of a recorded activation, for test environments; the storage needs only the events.
    commands: Sequence[Command] | None = None
    refused_signals: list[RefusedSignal] = field(default_factory=list)  # signals to audit
    refused_redeliveries: list[RefusedRedelivery] = field(default_factory=list)  # redelivered messages to audit
    failed_signals: list[FailedSignal] = field(default_factory=list)  # signals that become failed messages
    human_tasks: list[HumanTaskWrite] = field(default_factory=list)  # those that changed
    # The chain closed: this is the answer to its updates that are accepted and unfinished.
    closing: Outcome | None = None

    @property
    def is_closed_externally(self) -> bool:
        """True if the run was closed from outside, whatever its code was doing."""
        if not self.events:
            return False
        last = self.events[-1]
        return last.kind in CLOSED_FROM_OUTSIDE or bool(last.attributes.get("outside"))

    @property
    def drops_open_activities(self) -> bool:
        """True if it closes the run while activities may be running; inputs that people gave them must be kept."""
        return self.drop_tasks and (self.is_closed_externally or self.left_open)

    @property
    def cancels_activities(self) -> bool:
        """True if its code cancels activities and continues."""
        return bool(self.cancelled_tasks) and any(event.kind == "ActivityCancelled" for event in self.events)

    def add_cancelled_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Add the ``inputs`` that people gave to cancelled activities to the events that cancel them.

        A result of the activity would carry its input in the same way.
        """
        for index, event in enumerate(self.events):
            edited_input = inputs.get(str(event.attributes.get("seq"))) if event.kind == "ActivityCancelled" else None
            if edited_input is not None:
                self.events[index] = replace(event, attributes={**event.attributes, "edited": edited_input})

    def add_edited_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Add the ``inputs`` that people gave to dropped activities to the closing event, as results would."""
        if inputs:
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "edited": dict(inputs)})

    def add_unread_results(self, inbox: Iterable[InboxMessage]) -> None:
        """Add results that came and were never read to the closing event, for a reset or fork of the run."""
        results = [message for message in inbox if message.run_id == self.run.run_id]
        if results:
            unread = [{"kind": result.kind, "name": result.name, "body": result.payload} for result in results]
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "unread": unread})

    def warn_unfinished(self, updates: Collection[str]) -> None:
        """Log that handlers of these updates (names) were still working when the run was closed from outside."""
        if updates:
            run_id, names = str(self.run.run_id), ", ".join(updates)
            logger.warning(
                "run %s was closed by %s while updates were in progress; their senders get an error: %s",
                *(run_id, self.events[-1].kind, names),
                extra={"run_id": run_id},
            )


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


@dataclass(slots=True, kw_only=True)
class TaskState:
    """A claimed external activity, or an atomic one of a locked run; ``attempt`` counts this attempt."""

    id: int
    chain_id: UUID | None  # None: a background task, whose ``run_id`` is its own
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
    started_at: datetime | None = None  # of this attempt; None until it has started
    beat_at: datetime | None = None  # last heartbeat of this attempt
    heartbeat_details: Any = None
    owner: int | None = None  # epoch of the worker that owns it
    crashes: int = 0  # workers that ended while they ran it: such an activity runs alone

    @property
    def fence(self) -> tuple[int, int, int | None]:
        """The identity of this attempt in the storage: ``(id, attempt, owner)``.

        An atomic activity was read, not claimed, so its row does not count the attempt that ended.
        """
        return self.id, self.attempt - 1 if self.atomic and self.owner is None else self.attempt, self.owner

    def as_new(self, *, due_at: datetime, failure: AttemptFailure | None) -> NewTask:
        """Return a new activity for one that never became a row: it was tried and is due again."""
        shared = {name: getattr(self, name) for name in _TASK_FIELDS}
        return NewTask(**shared, attempt=self.attempt, due_at=due_at, failure=failure)


#: Fields that a new activity and a scheduled one share, without those that change between attempts.
_TASK_FIELDS = frozenset(f.name for f in fields(NewTask)) & frozenset(f.name for f in fields(TaskState)) - {
    "due_at",
    "attempt",
}


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """The end of one attempt.

    ``outcome`` is ``(history kind, attributes)`` if it was the last one; else the activity is due again at
    ``retry_at``. ``attempt`` and ``owner`` fence it: a late result changes nothing. ``count`` False gives the attempt
    back, and ``waits_for`` names what was missing here. ``failure`` is the reason for the retry, and is kept until the
    activity has ended; None leaves the stored one.
    """

    task: TaskState
    outcome: tuple[str, dict[str, Any]] | None = None
    retry_at: datetime | None = None
    failure: AttemptFailure | None = None
    encoded: bytes | None = None  # the attributes as they will be stored, if known already
    count: bool = True
    waits_for: str | None = None
    details: bytes | None = None  # of its last heartbeat, as they are stored; None: there were none
    # Of a background task: the path of the exception class and the traceback, see engine.background_task.
    error_entry: Mapping[str, str] | None = None


class TaskStorage(Protocol):
    """The place where scheduled activities live; each call is a transaction of its own, unless it is inside one."""

    def claim_tasks(
        self, *, capacity: Capacity, queues: Sequence[str], owner: int, atomic: bool = False
    ) -> list[TaskState]:
        """Claim external activities that are due and have no owner, the longest due first.

        The claim counts the attempt, although nothing has started yet. With ``atomic`` it also claims atomic
        activities, which test environments run like any other.
        """

    def finish_tasks(self, results: Sequence[TaskResult]) -> list[int]:
        """Store the ends of attempts, final ones as messages of their chains; return the ids that were still valid."""

    def finish_undelivered(self, results: Sequence[TaskResult]) -> tuple[list[int], list[FinishedActivity]]:
        """Store the ends of attempts as ``finish_tasks`` does, but send nothing to the chains.

        Call it inside a transaction. Returns the ids that were still valid, and the messages for the chains, which
        ``deliver`` sends.
        """

    def deliver(self, activities: Sequence[FinishedActivity]) -> None:
        """Send the messages that ``finish_undelivered`` returned to their chains."""

    def expired_tasks(self, *, limit: int) -> list[TaskState]:
        """Return activities that have exceeded one of their timeouts (``expires_at``)."""

    def atomic_tasks(self, chain_id: UUID) -> list[TaskState]:
        """Return the atomic activities of a locked chain, due or waiting for another try, in order of ``seq``.

        ``attempt`` counts the one to come; nothing is written.
        """

    def open_activities(self, run_id: UUID, *, limit: int) -> list[OpenActivity]:
        """Return the activities of a run that have no result yet, as they are, in order of ``seq``. A plain read."""

    def find_task(self, run_id: UUID, seq: int) -> TaskState | None:
        """Return the activity that command ``seq`` of the run scheduled, or None if it has ended.

        It may have an owner. Nothing is claimed or locked. For an atomic activity without an owner, ``attempt`` already
        counts the next attempt, as in ``atomic_tasks``.
        """

    def tasks_of_run(self, run_id: UUID) -> list[TaskState]:
        """Return all activities of a run that are not over, in order of ``seq``, each as ``find_task`` does."""

    def edit_task(self, task: TaskState) -> None:
        """Store the arguments and options of an activity that nobody owns; fenced as in ``finish_tasks``."""

    def record_heartbeats(self, heartbeats: Mapping[tuple[int, int, int], Any]) -> set[tuple[int, int, int]]:
        """Store heartbeats by ``(task id, attempt, owner)``, and return the keys that are still valid.

        The values are details, which may be encoded already. The attempts of the other keys were cancelled.
        """
