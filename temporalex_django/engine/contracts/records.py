"""Records that travel between the engine and a storage: what was read, and what is to be written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final, NotRequired, TypedDict
from uuid import UUID

from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.history.activation import FailedSignal, RunInfo
from temporalex_django.core.history.events import Command, is_external_close
from temporalex_django.core.history.prefix import EXTERNAL_KINDS
from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.core.messages.sender import Headers, Sender
from temporalex_django.core.names import BEFORE_ALL, FIRST_YEAR, LAST_YEAR
from temporalex_django.core.typed_dicts import AcceptedNames, CarriedMessages, WaitInfo
from temporalex_django.engine.external_messages import NewChild, NewMessage
from temporalex_django.engine.ids import human_task_id
from temporalex_django.engine.refusals import RefusedRedelivery, RefusedSignal
from temporalex_django.engine.run_start import RunStart

# --- typed dicts ------------------------------------------------------------------------------------------------------
#
# Dictionaries with known keys: JSON data, or changes, in which an absent key leaves its value as it is.


class BlockMark(TypedDict):
    """The data that say why a run is blocked, and since when; the column ``blocked`` of its row.

    ``code`` is a short name of the cause, and ``error`` says it in words. ``attempt`` is the number of failed tries in
    a row, ``since`` the time of the first and ``last`` that of the last. ``waits_for`` names the code or key that no
    worker has. ``place`` is the file and line of the code, and ``function`` the name of its function. If the code
    differs from the history, ``event`` is the number of the event, ``recorded`` what it says and ``produced`` what the
    code does.
    """

    code: str
    error: str
    since: str
    attempt: int
    last: NotRequired[str]
    waits_for: NotRequired[str]
    place: NotRequired[str]
    function: NotRequired[str]
    event: NotRequired[int]
    recorded: NotRequired[str]
    produced: NotRequired[str]


class PauseMark(TypedDict):
    """The data that say since when, why and by whom a run is paused; the column ``paused`` of its row.

    ``by`` is None if code paused it.
    """

    since: str
    reason: str
    by: dict[str, str] | None


class RowChanges(TypedDict, total=False):
    """The changes that a turn makes to the columns of a run's row; columns without a key stay as they are."""

    status: str
    waiting_for: list[str]
    waits: list[WaitInfo]
    accepts: AcceptedNames
    published: Any
    published_at: datetime | None
    stored: dict[str, Any]
    search_attributes: Mapping[str, Any] | None
    blocked: BlockMark | None
    paused: PauseMark | None
    closing: dict[str, Any] | None
    cause: str | None
    fault: str | None
    started_at: datetime
    closed_at: datetime | None
    mirrored_at: datetime
    cluster_task_at: datetime


logger = logging.getLogger("temporalex_django.engine")


@dataclass(slots=True, kw_only=True)
class RunState:
    """The row of a locked chain, with the facts about its current run that change from turn to turn."""

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

    def next_moment(self, now: datetime) -> datetime:
        """Return ``now``, or the time of the last activation if that is later: time never goes back in a history."""
        if self.activated_at is None:
            return now
        return max(now, self.activated_at)

    def is_overdue(self, now: datetime) -> bool:
        """Return True if the deadline has passed. One that cannot be read has not."""
        return self.deadline is not None and BEFORE_ALL < self.deadline <= now

    def unreadable_time(self) -> str | None:
        """Return the name of a time that stands in place of one that cannot be read, or None if there is none.

        ``due_at`` does not count, since each turn replaces it.
        """
        times = (("activated_at", self.activated_at), ("deadline", self.deadline), ("atomic_due", self.atomic_due))
        for name, at in times:
            if at is not None and not FIRST_YEAR <= at.year <= LAST_YEAR:  # is_readable_time(), for each turn of a run
                return name
        return None

    def as_values(self) -> tuple[Any, ...]:
        """Return all fields as a tuple, from which ``from_values`` makes an equal object. It takes less memory."""
        return _state_values(self)

    @classmethod
    def from_values(cls, values: tuple[Any, ...]) -> RunState:
        return cls(**dict(zip(_STATE_FIELDS, values, strict=True)))


_STATE_FIELDS = tuple(column.name for column in fields(RunState))
_state_values: Callable[[RunState], tuple[Any, ...]] = attrgetter(*_STATE_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The facts of a run that do not change from turn to turn, such as its workflow, input and seed.

    It is read only for runs that are not in the cache.
    """

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
    scheduled_for: datetime | None = None  # the slot of the schedule that started the chain
    expires_at: datetime | None = None  # when the whole chain times out
    run_timeout: float | None = None  # seconds for each run of the chain
    started_at: datetime | None = None
    snapshot: dict[str, Any] | None = None  # data that it starts with beside its input: see core.four_eyes
    search_attributes: Mapping[str, Any] | None = None  # its present ones
    starts_at: datetime | None = None  # when it begins, if its caller named a time
    start_before: datetime | None = None  # it is timed out if it has not begun by then
    headers: Headers | None = None  # those of its start

    @classmethod
    def from_start(cls, start: RunStart, *, run_id: UUID, now: datetime) -> RunRecord:
        """Return the record of the first run of a chain, from the values of its start at the time ``now``.

        ``run_id`` is the id of that run.
        """
        shared: dict[str, Any] = {name: getattr(start, name) for name in _START_FIELDS}
        return cls(run_id=run_id, expires_at=start.expires_at(now), starts_at=start.starts_at(now), **shared)

    @property
    def info(self) -> RunInfo:
        """The facts of the run that its code can read by ``api.info()``, for its executor."""
        return RunInfo(
            workflow=self.workflow,
            id=self.workflow_id,
            run_id=str(self.run_id),
            version=self.version,
            attempt=self.attempt,
            parent=self.parent,
            scheduled_for=self.scheduled_for,
            headers=self.headers,
        )

    def successor(self, run_id: UUID, *, seed: int, **values: Any) -> RunRecord:
        """Return the record of the next run of the chain, with other ``values`` of the fields that a run determines.

        Without a value it has the present input and search attributes, and nothing else of the run.
        """
        own = {"carried_messages": None, "snapshot": None, **values}
        return replace(self, run_id=run_id, seed=seed, started_at=None, starts_at=None, start_before=None, **own)

    def deadline(self, started_at: datetime) -> datetime | None:
        """Return when a run that starts at ``started_at`` times out, or None if it has no timeout."""
        run_deadline = None
        if self.run_timeout is not None:
            run_deadline = started_at + timedelta(seconds=self.run_timeout)
        return min((moment for moment in (run_deadline, self.expires_at) if moment is not None), default=None)


#: Fields that a start shares with the row of its run.
_START_FIELDS = frozenset(f.name for f in fields(RunStart)) & frozenset(f.name for f in fields(RunRecord)) - {
    "expires_at",
    "starts_at",
}


#: Kinds of messages that bring a run a result which it waits for.
RESULT_KINDS: Final = frozenset({"activity", "child", "external", "timer"})
#: Kinds of all messages of an inbox.
INBOX_KINDS: Final = EXTERNAL_KINDS | RESULT_KINDS | {"cancel", "terminate"}


@dataclass(slots=True, kw_only=True)
class InboxMessage:
    """An unsettled message of a chain; an inbox lists them oldest first. ``id`` is the primary key of its row.

    ``kind`` is one of these:

    - ``signal``: ``payload`` is that of the signal.
    - ``update``: ``payload`` holds the arguments, ``message_id`` is the update id.
    - ``REQUEST`` of ``core.process``: ``name`` is the event, ``payload`` what the process judges, ``message_id`` an id.
    - ``cancel`` and ``terminate`` (the parent closed): ``payload`` holds the reason.
    - ``activity``, ``child``, ``external`` and ``timer`` (one that somebody skips): ``name`` is the kind of the event,
      such as ActivityCompleted or ExternalDelivered, and ``payload`` holds its attributes.

    ``after`` is set for an update that a turn left behind a busy handler: the number of signals that came before it.
    ``sender`` is the person who sent the message.
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
    headers: Headers | None = None


class Inbox(list[InboxMessage]):
    """The messages of one chain that a turn reads; ``has_more`` is True if others are left for another turn."""

    __slots__ = ("has_more",)

    def __init__(self, messages: Iterable[InboxMessage] = (), *, has_more: bool = False) -> None:
        super().__init__(messages)
        self.has_more = has_more


@dataclass(slots=True, kw_only=True)
class NewEvent:
    """An event to append to the history of a run.

    ``number`` is its position in the history, from 1, and ``activation`` the number of the activation that wrote it.
    """

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: dict[str, Any]
    encoded: bytes | None = None  # the attributes as they are stored, if known already


@dataclass(slots=True, kw_only=True)
class NewTask:
    """An activity to schedule; ``seq`` is the number of the command that schedules it.

    ``options`` are those of ``authoring.activity.ActivityOptions.as_dict``; durations are in seconds.
    """

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
    headers: Headers | None = None  # those of its run, with what interceptors add
    tags: Sequence[str] | None = None  # those of the workflow's class
    metadata: Mapping[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """True for a local activity: the worker that advances the run also runs it, whatever its queues are."""
        return bool(self.options.get("local"))

    def as_state(self, number: int, **changes: Any) -> TaskState:
        """Return the activity as a stored row with the id ``number``, due when it was scheduled.

        ``changes`` set other fields of the row.
        """
        shared: dict[str, Any] = {name: getattr(self, name) for name in _TASK_FIELDS}
        return TaskState(id=number, **{**shared, "due_at": self.scheduled_at, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """An atomic activity that failed and is tried again at ``due_at``.

    ``attempt`` is the number of attempts that count, and ``failure`` the error of the last one; None keeps the stored
    one.
    """

    attempt: int
    due_at: datetime
    failure: AttemptFailure | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a message: what became of it, and the answer for its sender.

    The ``status`` of an update is accepted, completed, failed or rejected. ``value`` is the response of an update, or
    ``{"code", "message", "type"}`` of an error.
    """

    status: str
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskWrite:
    """A human task that a turn has changed, as it is to be stored.

    ``changes`` names what the turn did to it, among ``opened``, ``reminded``, ``escalated``, ``barred`` (a user was
    excluded) and ``closed``.
    """

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
class RunWrite:
    """All that a turn stores for one run.

    ``instance`` holds the columns of the run's row to change; columns without a key stay as they are. In it,
    ``published`` is a plain value, not encoded, and ``closing`` holds the attributes of the closing event.
    """

    run: RunState  # as it is after the turn
    executed: bool = False  # its code was run, or it was rebuilt
    seconds: float | None = None  # that the activation took, if metrics are recorded
    # The activities whose last attempts it read, each as (name, outcome), for metrics.
    attempt_outcomes: list[tuple[str, str]] = field(default_factory=list)
    # Something was delivered to it and this process lives, so its crashes are forgiven (see decision 22).
    delivered: bool = False
    events: list[NewEvent] = field(default_factory=list)
    tasks: list[NewTask] = field(default_factory=list)
    # Command numbers of activities that were cancelled, or atomic ones that are done.
    cancelled_tasks: list[int] = field(default_factory=list)
    retried_tasks: dict[int, Retry] = field(default_factory=dict)  # atomic ones, by command number
    failed_attempts: Sequence[TaskResult] = ()  # of atomic activities, which ran in this transaction
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
    # The next run of the chain, after continue-as-new, a move or a reset. It keeps the pause and the stored fields of
    # the present run, unless a reset starts it from the history of the run ``reset_run_id``.
    next_run: RunRecord | None = None
    reset_run_id: UUID | None = None
    notes: Sequence[tuple[str, dict[str, Any]]] = ()  # names and fields of what a process reports to its listeners
    # Commands of a recorded activation, for test environments; the storage needs only the events.
    commands: Sequence[Command] | None = None
    refused_signals: list[RefusedSignal] = field(default_factory=list)  # signals to audit
    refused_redeliveries: list[RefusedRedelivery] = field(default_factory=list)  # redelivered messages to audit
    failed_signals: list[FailedSignal] = field(default_factory=list)  # signals that become failed messages
    human_tasks: list[HumanTaskWrite] = field(default_factory=list)  # those that changed
    # The chain closed: this is the answer to its updates that are accepted and unfinished.
    closing: Outcome | None = None
    # False if the chain closed and none of its messages waits for an answer.
    leaves_messages: bool = True
    # The run lives elsewhere, and its rows only mirror it: no turn of these tables is due.
    mirrored: bool = False

    def next_state(self) -> RunState:
        """Return the state of the chain as it has to be after the turn: that of the next run, if there is one."""
        run = self.run
        # The chain continues with a run that has no history yet. Its time does not go back.
        if self.next_run is not None:
            new: dict[str, Any] = {
                "head_token": None,
                "length": 0,
                "activations": 0,
                "failed_tries": 0,
                "atomic_due": None,
                "crashes": 0,
            }
            due_at = None if self.mirrored else run.due_at or run.activated_at
            return replace(run, run_id=self.next_run.run_id, due_at=due_at, closed=False, **new)
        # A run is forgiven once something was delivered to it and its process lives (decision 22).
        crashes = 0 if self.delivered else run.crashes
        if run.closed and (run.due_at or run.deadline):
            return replace(run, due_at=None, deadline=None, crashes=crashes)
        return run if crashes == run.crashes else replace(run, crashes=crashes)

    @property
    def is_closed_externally(self) -> bool:
        """True if the run was closed without running its code: by an operator, its parent or a timeout."""
        if not self.events:
            return False
        last = self.events[-1]
        return is_external_close(last.kind, last.attributes)

    @property
    def drops_open_activities(self) -> bool:
        """True if the run is closed while its activities may be running.

        Inputs that people gave to these activities must then be recorded with the close.
        """
        return self.drop_tasks and (self.is_closed_externally or self.left_open)

    @property
    def cancels_activities(self) -> bool:
        """True if the code of the run has cancelled activities and the run continues."""
        return bool(self.cancelled_tasks) and any(event.kind == "ActivityCancelled" for event in self.events)

    @property
    def loses_activities(self) -> bool:
        """True if activities are dropped or cancelled, whose inputs may have been edited."""
        return self.drops_open_activities or self.cancels_activities

    def add_lost_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Add the ``inputs`` that people gave to activities to the events that cancel these, or that close the run.

        ``inputs`` has them by command number. Without a result, no other event would record them.
        """
        for index, event in enumerate(self.events):
            edited_input = None
            if event.kind == "ActivityCancelled":
                edited_input = inputs.get(str(event.attributes.get("seq")))
            if edited_input is not None:
                self.events[index] = replace(event, attributes={**event.attributes, "edited": edited_input})
        if inputs and self.drops_open_activities:
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "edited": dict(inputs)})

    def add_unread_results(self, inbox: Iterable[InboxMessage]) -> None:
        """Add the results that the run never read to the event that closes it; a reset or a fork uses them."""
        results = [message for message in inbox if message.run_id == self.run.run_id]
        if results:
            unread = [{"kind": result.kind, "name": result.name, "body": result.payload} for result in results]
            last = self.events[-1]
            self.events[-1] = replace(last, attributes={**last.attributes, "unread": unread})

    def warn_unfinished(self, updates: Collection[str]) -> None:
        """Log that handlers of these updates (names) had not finished when the run was closed from outside."""
        if updates:
            run_id, names = str(self.run.run_id), ", ".join(updates)
            logger.warning(
                "run %s was closed by %s while updates were in progress; their senders get an error: %s",
                *(run_id, self.events[-1].kind, names),
                extra={"run_id": run_id},
            )


@dataclass(slots=True, kw_only=True)
class TaskState:
    """The row of a scheduled activity: an external one that a worker has claimed, or an atomic one of a locked run.

    ``seq`` is the number of the command that scheduled it, and ``attempt`` the number of the attempt that starts now.
    """

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
    previous_failure: Any = None  # of the last attempt, as ``AttemptFailure.payload`` gives it
    headers: Headers | None = None
    cancelled_at: datetime | None = None  # of a background task: somebody asked it to end while it was running

    @property
    def fence(self) -> tuple[int, int, int | None]:
        """The values that identify this attempt in the storage: ``(id of the row, attempt, epoch of the worker)``.

        An atomic activity was read and not claimed, so ``attempt`` is one less: its row does not count the attempt yet.
        """
        return self.id, self.attempt - 1 if self.atomic and self.owner is None else self.attempt, self.owner

    def as_new(self, *, due_at: datetime, failure: AttemptFailure | None, attempt: int) -> NewTask:
        """Return the activity as a new one to schedule at ``due_at``; it was attempted before it was stored as a row.

        ``attempt`` is the number of attempts that count, and ``failure`` the error of the last one.
        """
        shared = {name: getattr(self, name) for name in _TASK_FIELDS}
        return NewTask(**shared, attempt=attempt, due_at=due_at, failure=failure)


#: Fields that a new activity and a scheduled one share, without those that change between attempts.
_TASK_FIELDS = frozenset(f.name for f in fields(NewTask)) & frozenset(f.name for f in fields(TaskState)) - {
    "due_at",
    "attempt",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A request of an attempt to keep back the activities of a queue, or those of its concurrency key, for a while.

    ``key`` is None for the whole queue. ``since`` and ``until`` are times, ``activity`` is the name of the activity
    that asked for it by raising ``RetryLater``. ``reason`` is the message of that error, which may quote payloads.
    """

    queue: str
    key: str | None
    since: datetime
    until: datetime
    activity: str
    reason: str


@dataclass(slots=True, kw_only=True)
class TaskResult:
    """The end of one attempt of an activity.

    ``outcome`` is ``(kind of event, attributes)`` of a final result. With None the activity is due again at
    ``retry_at``, and ``failure`` says why; None keeps the failure that is stored. If the row has another attempt or
    owner by now, because this one was lost, the result changes nothing. With ``count`` False the attempt does not
    count, and ``waits_for`` names the code or key that this process lacked. ``hold`` is what the attempt asked to keep
    back, or None.
    """

    task: TaskState
    outcome: tuple[str, dict[str, Any]] | None = None
    retry_at: datetime | None = None
    failure: AttemptFailure | None = None
    encoded: bytes | None = None  # the attributes as they will be stored, if known already
    count: bool = True
    waits_for: str | None = None
    hold: Hold | None = None
    details: bytes | None = None  # of its last heartbeat, as they are stored; None: there were none
    # Of a background task: the path of the exception class and the traceback, see engine.background_task.
    error_entry: Mapping[str, str] | None = None
    seconds: float | None = None  # from its start to its end, as far as that was measured
    error: BaseException | None = None  # that it raised in this process, if interceptors report it

    @property
    def is_failure(self) -> bool:
        """True if the attempt failed or timed out, whether or not it is retried."""
        return self.failure is not None or (self.outcome is not None and self.outcome[0] != "ActivityCompleted")
