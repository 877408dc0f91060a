"""Activations: the input of the executor, the events that one leaves, and how a history is split into them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.attributes import (
    ActivationStartedAttributes,
    SignalFailedAttributes,
    WorkflowStartedAttributes,
)
from temporalex_django.core.history.events import (
    DELIVERED,
    ENGINE_VERSION,
    FORMAT,
    INPUTS,
    SUGGEST_CONTINUE_AS_NEW,
    Command,
    HistoryEvent,
    Job,
    is_external_close,
)
from temporalex_django.core.messages.sender import Headers, Sender, headers_attributes
from temporalex_django.core.typed_dicts import CarriedMessages
from temporalex_django.errors import TemporalexError

# --- activation -------------------------------------------------------------------------------------------------------
#
# The border of the core: hosts give it activations, and it returns completions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The parts of a workflow class that the executor needs.

    ``entry(args)`` returns the coroutine of a new run. ``args_type`` is the annotation to which ``args`` is decoded.
    ``version`` is the version of the class that a new run gets.
    """

    name: str
    version: int
    entry: Callable[[Any], Awaitable[Any]]
    args_type: Any = Any
    args_default: Any = None  # the input of a run that is started without one
    result_type: Any = Any  # the annotation to which readers of the result decode it
    unexpected_error: Literal["fail", "block"] | None = None  # None: the setting of the host
    signals: frozenset[str] | None = None  # names that the class declares; None: it declares none and takes any
    tags: tuple[str, ...] | None = None  # tags of its activities, for searches; None if it has none
    metadata: Mapping[str, Any] | None = None
    stored: Mapping[str, type] = field(default_factory=dict)  # fields of the published state that SQL may read
    search_attributes: Mapping[str, Any] = field(default_factory=dict)  # their types, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Facts of a run that never change while it is open.

    ``workflow`` is the name of its class, ``id`` its business id, and ``run_id`` its UUID as text. ``attempt`` is its
    number in its chain, from 1. ``parent`` is the id of the run that started it as a child, or None. ``scheduled_for``
    is the time for which a schedule started the chain, or None. ``headers`` are the headers of its start.
    """

    workflow: str
    id: str
    run_id: str
    version: int
    attempt: int = 1
    parent: str | None = None
    scheduled_for: datetime | None = None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord:
    """The facts about the messages of an activation that a replay must know and that their events do not show.

    A completion has the record of its activation. The host keeps it, and passes it with the activation in a replay.

    - ``refused``: the numbers of buffered signals that a phase refused.
    - ``refused_arrivals``: the positions of signals that were refused on arrival, from 1, among the signals that the
      activation delivered. Carried signals do not count. Hosts that store the history in events do not need them,
      because such a signal has no event and is not delivered again.
    - ``failed``: the attributes of ``SignalFailed`` of each signal whose handler failed, by its number.
    - ``denied``: the ids of accepted updates and requests that waited and whose sender then lacked the permission.
    - ``dispatched``: the number of messages taken from the mailbox before the host had enough; None if it never had.
      The next activation continues with the others, even if nothing is delivered.
    - ``order``: the ids of updates and requests that came between signals, each with the number of signals before it.
      Hosts that store the history in events do not need it.
    """

    refused: tuple[int, ...] = ()
    denied: tuple[str, ...] = ()
    refused_arrivals: tuple[int, ...] = ()
    failed: Mapping[int, SignalFailedAttributes] = field(default_factory=dict)
    dispatched: int | None = None
    order: tuple[tuple[str, int], ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return the record as JSON data, without what is empty."""
        data: dict[str, Any] = self.stamp()
        if self.refused_arrivals:
            data["refused_arrivals"] = list(self.refused_arrivals)
        if self.failed:
            data["failed"] = list(self.failed.values())
        if self.order:
            data["order"] = [list(place) for place in self.order]
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> DeliveryRecord:
        """Return the record that ``to_data`` has written as ``data``."""
        return cls(
            refused=tuple(data.get("refused", ())),
            denied=tuple(data.get("denied", ())),
            refused_arrivals=tuple(data.get("refused_arrivals", ())),
            failed={failure["number"]: failure for failure in data.get("failed", ())},
            dispatched=data.get("dispatched"),
            order=tuple((message_id, after) for message_id, after in data.get("order", ())),
        )

    def stamp(self) -> dict[str, Any]:
        """Return the record as attributes of the event ``ActivationStarted``.

        Failed signals are left out, because each has an event ``SignalFailed``.
        """
        data: dict[str, Any] = {}
        if self.refused:
            data["refused"] = list(self.refused)
        if self.denied:
            data["denied"] = list(self.denied)
        if self.dispatched is not None:
            data["dispatched"] = self.dispatched
        return data


#: The record of an activation about which nothing must be recorded, as most are.
NO_DELIVERY: Final = DeliveryRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Jobs that are delivered together and answered together.

    - ``now``: the time that ``api.now()`` returns throughout.
    - ``jobs``: in the order of delivery: results, a cancel request, messages.
    - ``start`` (first activation only): ``{"args", "seed"}``, with ``snapshot`` for a process that was moved. A run
      that continues another one has ``carried``, the number of its first signals that are in its mailbox when it
      begins. ``search_attributes`` is there if the run has any.
    - ``history_length``: the number of events before this activation.
    - ``suggests_continue_as_new``: True if the history is so long that the run should continue as new. The host decides
      that, and says the same in a replay.
    - ``seed``: the new seed of the random generator after a reset; else None.
    - ``replaying``: True if the activation was executed before. It then only repeats what it did: patches answer as the
      history says (see ``Executor.expect_markers``), nobody is judged, and nothing is logged.
    - ``copied`` (replay only): the mark behind a part that was copied from another run, see ``prefix.build_copy_mark``.
      Nothing is delivered then.
    - ``delivery`` (replay only): the record that its completion had.

    For hosts of other packages, ``consumes_all`` says that the host cannot deliver a message again. What comes behind a
    continue-as-new then goes to the next run (``Completion.carried``).

    These limits exist for such hosts, and are recorded with the activation. ``admit_updates`` accepts an update behind
    a busy handler at once and queues it. ``max_pending`` is the largest number of unresolved calls (activities,
    children, external messages). ``max_calls`` and ``max_bytes`` are the largest number and JSON size of the calls that
    one activation emits; one call is emitted whatever its size, unless ``max_calls`` is 0. Further calls are deferred,
    in their order.
    """

    now: datetime
    jobs: tuple[Job, ...] = ()
    start: Mapping[str, Any] | None = None
    history_length: int = 0
    suggests_continue_as_new: bool = False
    seed: int | None = None
    replaying: bool = False
    copied: Mapping[str, Any] | None = None
    admit_updates: bool = False
    max_pending: int | None = None
    max_calls: int | None = None
    max_bytes: int = 0
    consumes_all: bool = False
    delivery: DeliveryRecord = NO_DELIVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSignal:
    """A signal whose handler failed, or whose payload does not fit the annotation of the handler.

    - ``number`` is its position among the signals of the run, from 1.
    - ``id`` is the id from its sender, or ``<run id>:<number>``.
    - ``failure`` is ``{"type", "message"}``.
    - ``untouched`` is True if the handler had left nothing behind when it failed.
    """

    number: int
    id: str
    name: str
    payload: Any
    sender: Sender | None
    failure: dict[str, Any]
    untouched: bool
    headers: Headers | None = None

    def event_attributes(self) -> dict[str, Any]:
        """Return the attributes of the event ``SignalFailed``.

        They leave out the payload, which ``SignalReceived`` has.
        """
        return {"number": self.number, "id": self.id, "name": self.name, "untouched": self.untouched, **self.failure}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An update whose validator raised because of a bug, so that it is neither accepted nor rejected.

    ``error`` is the exception. The update stays unanswered.
    """

    update_id: str
    name: str
    error: BaseException


class LostMessage(NamedTuple):
    """An update or a request that waited after a reset (``Update.waits``), and that nothing has taken in the end.

    ``kind`` is that of the message in an inbox, and ``code`` that of the error.
    """

    kind: str
    name: str
    sender: Sender | None
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A signal whose sender lacks the permission that its handler requires.

    ``job`` is the delivered job, which must leave no trace in the history, and ``arrival`` its position in
    ``DeliveryRecord.refused_arrivals``. Both are None if the signal came before the phase was open. Then the history
    contains the signal, and has its ``number``.
    """

    name: str
    sender: Sender
    permission: str
    job: Job | None = None
    arrival: int | None = None
    number: int | None = None


@dataclass(slots=True)
class Completion:
    """The answer to an activation.

    - ``jobs``: the inputs that took effect and belong in the history. A late result of a cancelled wait is not one of
      them.
    - ``rejected``: pairs of update id and error, of which nothing is written. They include the updates and requests
      that came behind the close of the run, unless the next run takes them from the inbox.
    - ``granted``: the ids of requests that a process accepted.
    - ``notes``: names and facts of the notices of a process for listeners.
    - ``pending``: pairs ``(update id, after)`` of updates that wait behind a busy handler. The host delivers them again
      with that ``after`` in each later activation until they are judged.
    - ``carried`` (only after a continue-as-new): the messages with which the next run begins. ``signals`` has the
      attributes of ``SignalReceived`` for what is left in the mailbox, and with ``consumes_all`` for what came behind
      the close. ``cancel`` has those of a ``CancelRequested`` that no unit has noticed, or None. The ``after`` of
      pending updates then counts the signals of the mailbox.
    - ``refused``: signals that the permission of a handler kept out.
    - ``lost``: messages that waited after a reset, and that nothing has taken.
    - ``failed``: signals whose handler failed; empty in a replay. ``faults``: updates whose validator failed.
    - ``unapplied``: the number of messages at the end of the jobs that were not applied, because the run had closed or
      the host had enough for one activation.
    - ``delivery``: what a replay must know about the messages. In a replay it is that of the activation.
    - ``changed``: False if nothing needs to be written.
    """

    commands: list[Command] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    rejected: list[tuple[str, TemporalexError]] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pending: list[tuple[str, int]] = field(default_factory=list)
    carried: CarriedMessages | None = None
    refused: list[Refusal] = field(default_factory=list)
    lost: tuple[LostMessage, ...] = ()
    failed: list[FailedSignal] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unapplied: int = 0
    delivery: DeliveryRecord = NO_DELIVERY
    closed: str | None = None
    changed: bool = False


# --- activation events ------------------------------------------------------------------------------------------------
#
# The events that an activation adds to the history of its run. Every host makes them here, from its completion.


def started_attributes(
    info: RunInfo,
    *,
    args: Any,
    seed: int,
    carried: CarriedMessages | None = None,
    snapshot: Mapping[str, Any] | None = None,
    search_attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the attributes of the event ``WorkflowStarted`` of a run, which are ``Activation.start``, too.

    ``carried`` are the messages that the previous run of the chain passed on; None if the run continues no other.
    """
    attributes: dict[str, Any] = {
        "workflow": info.workflow,
        "id": info.id,
        "run_id": info.run_id,
        "version": info.version,
        "args": args,
        "seed": seed,
        "engine": ENGINE_VERSION,
        "format": FORMAT,
        "attempt": info.attempt,
        "parent": info.parent,
    }
    if info.scheduled_for is not None:
        attributes["scheduled_for"] = info.scheduled_for.astimezone(UTC).isoformat()
    if carried is not None:
        attributes["carried"] = len(carried["signals"])
        if failed := carried.get("failed"):
            attributes["failed"] = failed
    if snapshot is not None:
        attributes["snapshot"] = snapshot
    if search_attributes:
        attributes["search_attributes"] = search_attributes
    attributes |= headers_attributes(info.headers)
    return attributes


def activation_events(
    completion: Completion, *, start: dict[str, Any] | None, stamp: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(kind, attributes)`` of each event that an activation adds, in the order of the history.

    ``start`` are the attributes of ``WorkflowStarted``, or None for a run that has started. ``stamp`` has the
    attributes of ``ActivationStarted`` that are the host's: its limits, and what it identifies the activation by. The
    attributes of inputs are those of the jobs themselves. Call this for a completion that has ``changed``.
    """
    if start is not None:
        yield "WorkflowStarted", start
    stamp = dict(stamp)
    if delivered_numbers := [job.attributes["seq"] for job in completion.jobs if job.kind == DELIVERED]:
        stamp["delivered"] = delivered_numbers
    delivery = completion.delivery
    if delivery is not NO_DELIVERY:
        stamp |= delivery.stamp()
    yield "ActivationStarted", stamp
    for job in completion.jobs:
        if job.kind != DELIVERED:
            yield job.kind, job.attributes
    # From the record and not from ``completion.failed``, which is empty in a replay.
    for failed in delivery.failed.values():
        yield "SignalFailed", dict(failed)
    for command in completion.commands:
        yield command.event_kind, command.event_attributes()


# --- split activations ------------------------------------------------------------------------------------------------
#
# A history, split into the activations that wrote it.


@dataclass(slots=True)
class RecordedActivation:
    """One past activation: its input, and its ``outputs``, the events of its commands in order."""

    activation: Activation
    outputs: list[HistoryEvent] = field(default_factory=list)


def split_activations(events: Sequence[HistoryEvent]) -> Iterator[RecordedActivation]:
    """Group ``events``, which begin at an activation boundary, into the activations that the executor takes."""
    group: list[HistoryEvent] = []
    for event in events:
        if is_external_close(event.kind, event.attributes):
            continue
        if group and event.activation != group[0].activation:
            yield _build_activation(group)
            group = []
        group.append(event)
    # A run that was closed before its first turn has a start, but no activation.
    if group and not (len(group) == 1 and group[0].kind == "WorkflowStarted"):
        yield _build_activation(group)


def _build_activation(group: Sequence[HistoryEvent]) -> RecordedActivation:
    start: WorkflowStartedAttributes | None = None
    stamp: ActivationStartedAttributes = {"head": 0}  # until that of the activation is read
    jobs: list[Job] = []
    outputs: list[HistoryEvent] = []
    failed: dict[int, SignalFailedAttributes] = {}
    for event in group:
        match event.kind:
            case "WorkflowStarted":
                start = kinds.WORKFLOW_STARTED.read(event)
            case "ActivationStarted":
                stamp = kinds.ACTIVATION_STARTED.read(event)
                jobs.extend(Job(DELIVERED, {"seq": number}) for number in stamp.get("delivered", ()))
            case "SignalFailed":
                failure = kinds.SIGNAL_FAILED.read(event)
                failed[failure["number"]] = failure
            case kind if kind in INPUTS:
                jobs.append(Job(kind, event.attributes))
            case _:
                outputs.append(event)
    length = group[0].number - 1
    activation = Activation(
        now=group[0].at,
        jobs=tuple(jobs),
        start=start,
        history_length=length,
        suggests_continue_as_new=length >= SUGGEST_CONTINUE_AS_NEW,
        seed=stamp.get("seed"),
        replaying=True,
        copied=stamp.get("copied"),
        admit_updates=stamp.get("admit_updates", False),
        max_pending=stamp.get("max_pending"),
        max_calls=stamp.get("max_calls"),
        max_bytes=stamp.get("max_bytes", 0),
        delivery=_delivery_record(stamp, failed),
    )
    return RecordedActivation(activation, outputs)


def _delivery_record(stamp: ActivationStartedAttributes, failed: dict[int, SignalFailedAttributes]) -> DeliveryRecord:
    refused, denied, dispatched = stamp.get("refused", ()), stamp.get("denied", ()), stamp.get("dispatched")
    if not refused and not denied and not failed and dispatched is None:
        return NO_DELIVERY
    return DeliveryRecord(refused=tuple(refused), denied=tuple(denied), failed=failed, dispatched=dispatched)
