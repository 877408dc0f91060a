"""Events of a history: their kinds, what they deliver, and how a replay matches its commands with them."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from temporalex_django.core import names as aliases
from temporalex_django.core.history import attributes as a
from temporalex_django.core.payloads import codec
from temporalex_django.errors import NondeterminismError, PayloadError

# --- kinds ------------------------------------------------------------------------------------------------------------
#
# The table of the kinds of events, with their traits and the types of their attributes.
#
# Every other collection of kinds is derived from it; see ``events``. Jobs and commands have no rows of their own: they
# share the attributes of the events that they become, except for the few jobs that ``events.Job`` names.


A_co = TypeVar("A_co", covariant=True)
#: Things that begin with one event and end with another.
Thing = Literal["activity", "timer", "child", "external", "update"]


class _Entry(Protocol):
    """A job, command or event, as far as its attributes are read."""

    @property
    def attributes(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventKind(Generic[A_co]):
    """One row of the table of kinds.

    - ``attributes`` is the type of its attributes, and ``meaning`` a text for readers of the documentation.
    - ``command`` is the kind of the command that produces it, and ``second_command`` another one. An event without one
      was delivered to the code, or recorded before the code ran, or is ``from_outside``: a person or a timeout closed
      the run.
    - ``resolves`` is True if it answers a command, whose number it has.
    - ``thing`` is what it is about. ``ends_as`` is the state of that thing after it; None if the thing begins with it.
    - ``closes_as`` is the status of the run after it; None if it leaves the run open.
    - ``name_attribute`` is the attribute that names the activity, message or run. A replay compares its value.
    - ``inputs`` are the attributes that are inputs, and ``duration`` one that is a time. A replay reports differences.
    """

    name: str
    attributes: type[A_co]
    meaning: str
    command: str | None = None
    second_command: str | None = None
    from_outside: bool = False
    resolves: bool = False
    thing: Thing | None = None
    ends_as: str | None = None
    closes_as: str | None = None
    name_attribute: str | None = None
    inputs: Sequence[str] = ()
    duration: str | None = None

    @property
    def has_input(self) -> bool:
        """True if events of this kind have an input or a duration, whose differences a replay reports."""
        return bool(self.inputs) or self.duration is not None

    def read(self, entry: _Entry) -> A_co:
        """Return the attributes of ``entry`` with their type.

        ``entry`` is an event of this kind, or its job or command.
        """
        return cast("A_co", entry.attributes)


WORKFLOW_STARTED: Final = EventKind(
    name="WorkflowStarted",
    attributes=a.WorkflowStartedAttributes,
    meaning="the run started: its input, class, version, seed, engine number",
)
ACTIVATION_STARTED: Final = EventKind(
    name="ActivationStarted",
    attributes=a.ActivationStartedAttributes,
    meaning="an activation began; everything up to the next one belongs to one moment and one transaction",
)
ACTIVITY_COMPLETED: Final = EventKind(
    name="ActivityCompleted",
    attributes=a.ActivityCompletedAttributes,
    meaning="an activity completed with a result",
    resolves=True,
    thing="activity",
    ends_as="done",
)
ACTIVITY_FAILED: Final = EventKind(
    name="ActivityFailed",
    attributes=a.ActivityFailedAttributes,
    meaning="an activity failed for good: type, message, attempts",
    resolves=True,
    thing="activity",
    ends_as="failed",
)
ACTIVITY_TIMED_OUT: Final = EventKind(
    name="ActivityTimedOut",
    attributes=a.ActivityFailedAttributes,
    meaning="a timeout of an activity passed, and there is no further attempt",
    resolves=True,
    thing="activity",
    ends_as="timed_out",
)
TIMER_FIRED: Final = EventKind(
    name="TimerFired",
    attributes=a.TimerFiredAttributes,
    meaning="a timer became due, or somebody skipped it",
    resolves=True,
    thing="timer",
    ends_as="fired",
)
CHILD_COMPLETED: Final = EventKind(
    name="ChildCompleted",
    attributes=a.ChildCompletedAttributes,
    meaning="a child completed with a result",
    resolves=True,
    thing="child",
    ends_as="done",
)
CHILD_FAILED: Final = EventKind(
    name="ChildFailed",
    attributes=a.ChildFailedAttributes,
    meaning="a child closed without a result, or could not be started",
    resolves=True,
    thing="child",
    ends_as="failed",
)
EXTERNAL_FAILED: Final = EventKind(
    name="ExternalFailed",
    attributes=a.ExternalFailedAttributes,
    meaning="a message to another run found no open run, or a run that does not declare the signal",
    resolves=True,
    thing="external",
    ends_as="failed",
)
CANCEL_REQUESTED: Final = EventKind(
    name="CancelRequested",
    attributes=a.CancelRequestedAttributes,
    meaning="somebody asked to cancel the run",
)
SIGNAL_RECEIVED: Final = EventKind(
    name="SignalReceived",
    attributes=a.SignalReceivedAttributes,
    meaning="a signal was delivered: name, payload, sender",
)
SIGNAL_FAILED: Final = EventKind(
    name="SignalFailed",
    attributes=a.SignalFailedAttributes,
    meaning="the handler of a signal failed, and the signal is a failed message: number, id, name, type, message",
)
ACTIVITY_SCHEDULED: Final = EventKind(
    name="ActivityScheduled",
    attributes=a.ActivityScheduledAttributes,
    meaning="code called an activity: its name, arguments, options",
    command="ScheduleActivity",
    thing="activity",
    name_attribute="activity",
    inputs=("args", "kwargs"),
)
ACTIVITY_CANCELLED: Final = EventKind(
    name="ActivityCancelled",
    attributes=a.ActivityEnd,
    meaning="the code no longer waits for the activity",
    command="CancelActivity",
    thing="activity",
    ends_as="cancelled",
)
TIMER_STARTED: Final = EventKind(
    name="TimerStarted",
    attributes=a.TimerStartedAttributes,
    meaning="code sleeps, or waits with a timeout",
    command="StartTimer",
    thing="timer",
    duration="duration",
)
TIMER_CANCELLED: Final = EventKind(
    name="TimerCancelled",
    attributes=a.SequenceAttributes,
    meaning="the code no longer waits for the timer",
    command="CancelTimer",
    thing="timer",
    ends_as="cancelled",
)
PATCH_MARKED: Final = EventKind(
    name="PatchMarked",
    attributes=a.PatchMarkedAttributes,
    meaning="code called `api.patched`, and took the new path",
    command="SetPatchMarker",
    name_attribute="id",
)
UPDATE_ACCEPTED: Final = EventKind(
    name="UpdateAccepted",
    attributes=a.UpdateAcceptedAttributes,
    meaning="the validator accepted an update; its handler runs",
    command="AcceptUpdate",
    thing="update",
    name_attribute="id",
)
UPDATE_COMPLETED: Final = EventKind(
    name="UpdateCompleted",
    attributes=a.UpdateCompletedAttributes,
    meaning="an update was answered",
    command="CompleteUpdate",
    thing="update",
    ends_as="done",
    name_attribute="id",
)
UPDATE_FAILED: Final = EventKind(
    name="UpdateFailed",
    attributes=a.UpdateFailedAttributes,
    meaning="the handler of an update raised",
    command="FailUpdate",
    thing="update",
    ends_as="failed",
    name_attribute="id",
)
CHILD_STARTED: Final = EventKind(
    name="ChildStarted",
    attributes=a.ChildStartedAttributes,
    meaning="code started a child",
    command="StartChild",
    thing="child",
    name_attribute="workflow",
    inputs=("args",),
)
EXTERNAL_SIGNAL_SENT: Final = EventKind(
    name="ExternalSignalSent",
    attributes=a.ExternalSignalSentAttributes,
    meaning="code sent a signal to another run",
    command="SignalExternal",
    thing="external",
    name_attribute="name",
)
EXTERNAL_CANCEL_SENT: Final = EventKind(
    name="ExternalCancelSent",
    attributes=a.ExternalCancelSentAttributes,
    meaning="code asked to cancel another run",
    command="CancelExternal",
    second_command="CancelChild",
    thing="external",
    name_attribute="id",
)
WORKFLOW_COMPLETED: Final = EventKind(
    name="WorkflowCompleted",
    attributes=a.WorkflowCompletedAttributes,
    meaning="`run` returned `Ok` or a value; closes the run",
    command="CompleteWorkflow",
    closes_as="completed",
)
WORKFLOW_FAILED: Final = EventKind(
    name="WorkflowFailed",
    attributes=a.WorkflowFailedAttributes,
    meaning="`run` raised or returned `Err`; closes the run",
    command="FailWorkflow",
    closes_as="failed",
)
WORKFLOW_CANCELLED: Final = EventKind(
    name="WorkflowCancelled",
    attributes=a.WorkflowCancelledAttributes,
    meaning="a cancel request ended the code; closes the run",
    command="CancelWorkflow",
    closes_as="cancelled",
)
WORKFLOW_CONTINUED_AS_NEW: Final = EventKind(
    name="WorkflowContinuedAsNew",
    attributes=a.WorkflowContinuedAsNewAttributes,
    meaning="`run` returned `ContinueAsNew`; closes the run, and the next run of its chain starts",
    command="ContinueAsNew",
    closes_as="continued_as_new",
)
WORKFLOW_TERMINATED: Final = EventKind(
    name="WorkflowTerminated",
    attributes=a.WorkflowTerminatedAttributes,
    meaning="somebody terminated the run",
    from_outside=True,
    closes_as="terminated",
)
WORKFLOW_TIMED_OUT: Final = EventKind(
    name="WorkflowTimedOut",
    attributes=a.WorkflowTimedOutAttributes,
    meaning="`execution_timeout` or `run_timeout` passed",
    from_outside=True,
    closes_as="timed_out",
)

#: All kinds of events in a history, by name.
KINDS: Final[Mapping[str, EventKind[Any]]] = {
    kind.name: kind
    for kind in (
        WORKFLOW_STARTED,
        ACTIVATION_STARTED,
        ACTIVITY_COMPLETED,
        ACTIVITY_FAILED,
        ACTIVITY_TIMED_OUT,
        TIMER_FIRED,
        CHILD_COMPLETED,
        CHILD_FAILED,
        EXTERNAL_FAILED,
        CANCEL_REQUESTED,
        SIGNAL_RECEIVED,
        SIGNAL_FAILED,
        ACTIVITY_SCHEDULED,
        ACTIVITY_CANCELLED,
        TIMER_STARTED,
        TIMER_CANCELLED,
        PATCH_MARKED,
        UPDATE_ACCEPTED,
        UPDATE_COMPLETED,
        UPDATE_FAILED,
        CHILD_STARTED,
        EXTERNAL_SIGNAL_SENT,
        EXTERNAL_CANCEL_SENT,
        WORKFLOW_COMPLETED,
        WORKFLOW_FAILED,
        WORKFLOW_CANCELLED,
        WORKFLOW_CONTINUED_AS_NEW,
        WORKFLOW_TERMINATED,
        WORKFLOW_TIMED_OUT,
    )
}


# --- events -----------------------------------------------------------------------------------------------------------
#
# History events, and the jobs that become events. See decision 8.
#
# The history of a run is the list of its events in the order of their numbers (1, 2, …). It consists of activations.
# Each begins with ``ActivationStarted``; the first has ``WorkflowStarted`` before that. Then come the delivered jobs
# (``INPUTS``) and the answers of the workflow (``OUTPUT_OF``). A job is an input that is not written yet, so jobs and
# events share names and attributes.
#
# The collections of kinds are derived from the table in ``kinds``.


#: Incremented when the behaviour of the engine on replay changes. Each run records the number with which it started,
#: and continues with no other.
ENGINE_VERSION: Final = 2
#: Format of the stored events.
FORMAT: Final = 1

#: Number of events from which on our hosts suggest that a run continues as new, because a longer history slows every
#: rebuild. It belongs to the format: no event records the suggestion, so a replay computes it again.
SUGGEST_CONTINUE_AS_NEW: Final = 10_000

RESOLUTIONS: Final = frozenset(name for name, kind in KINDS.items() if kind.resolves)
#: Job: a message to another run was stored in its inbox. The history has no event of this kind. ``ActivationStarted``
#: lists the numbers under ``delivered``, and these jobs come first when a history is read back.
DELIVERED: Final = "ExternalDelivered"
#: Kinds of jobs that answer a command.
ANSWERS: Final = RESOLUTIONS | {DELIVERED}
INPUTS: Final = frozenset(name for name, kind in KINDS.items() if kind.command is None and not kind.from_outside)
#: Closing events without a command.
CLOSED_FROM_OUTSIDE: Final = frozenset(name for name, kind in KINDS.items() if kind.from_outside)
#: Kinds of output events, by the kind of the command that produces them.
OUTPUT_OF: Final = {
    command: name
    for name, kind in KINDS.items()
    for command in (kind.command, kind.second_command)
    if command is not None
}
#: Status of a run after a closing event, by the kind of the event.
CLOSING: Final = {name: kind.closes_as for name, kind in KINDS.items() if kind.closes_as is not None}
CLOSED_STATUSES: Final = frozenset(CLOSING.values())


def kinds_of(*things: Thing) -> frozenset[str]:
    """Return the kinds of the events that are about one of these things, such as "activity" or "timer"."""
    return frozenset(name for name, kind in KINDS.items() if kind.thing in things)


def end_kinds_of(*things: Thing) -> frozenset[str]:
    """Return the kinds of the events with which one of these things, such as "activity" or "timer", ends."""
    return frozenset(name for name in kinds_of(*things) if KINDS[name].ends_as is not None)


def is_external_close(kind: str, attributes: Mapping[str, Any]) -> bool:
    """Return True for an event with which somebody outside the code, or a timeout, closed the run.

    ``kind`` and ``attributes`` are those of the event.
    """
    return kind in CLOSED_FROM_OUTSIDE or (kind in CLOSING and bool(attributes.get("outside")))


class Job(NamedTuple):
    """One thing that an activation delivers.

    ``kind`` is the kind of the event that it becomes. There are two exceptions. ``UpdateRequested`` becomes
    ``UpdateAccepted`` if it is accepted. ``process.REQUESTED`` becomes ``SignalReceived`` if the process accepts it.

    Attributes by kind:

    - ``SignalReceived``: name, payload, and id if its sender gave one;
    - ``UpdateRequested``: id, name, args, after (None for a new update);
    - ``process.REQUESTED``: id, request;
    - ``ActivityCompleted``: seq, result;
    - ``ActivityFailed`` and ``ActivityTimedOut``: seq, type, message, attempts, timeout;
    - ``ChildCompleted``: seq, result;
    - ``ChildFailed``: seq, type, message, status;
    - ``ExternalFailed``: seq, type, message, and candidates or known for the types that have them;
    - ``ExternalDelivered``: seq;
    - ``TimerFired``: seq;
    - ``CancelRequested``: reason.

    The first three also have sender (``sender.sender_attributes``) if a person sent the message. The second and third
    also have redelivered if a reset or fork delivers them again, and accepted if the history has accepted them: nobody
    judges them then, in a replay or not. Hosts that must answer in the activation that delivers them use waits in place
    of redelivered (``Update.waits``).
    """

    kind: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a history.

    ``number`` counts the events from 1 without gaps, and ``activation`` is the number of the activation that wrote it.
    ``at`` is the aware time of that activation. ``attributes`` is plain JSON data; its ``seq`` is the number of the
    command to which the event belongs.
    """

    number: int
    activation: int
    kind: str
    at: datetime
    attributes: dict[str, Any]
    size: int = field(default=0, compare=False, repr=False)  # stored size of the attributes in bytes, if known


class Command(NamedTuple):
    """One request of workflow code to the engine.

    ``seq`` numbers the activities, timers, children and external messages of a run from 1. ``CancelActivity`` and
    ``CancelTimer`` have the number of the command that they cancel. ``CancelChild`` has a number of its own, although
    no answer is needed. Other commands have None. ``attributes`` is plain JSON data.
    """

    kind: str
    seq: int | None
    attributes: dict[str, Any]

    @property
    def event_kind(self) -> str:
        """The kind of the event that this command becomes."""
        return OUTPUT_OF[self.kind]

    def event_attributes(self) -> dict[str, Any]:
        """Return the attributes of the event that this command becomes, with its number as ``seq``."""
        return self.attributes if self.seq is None else {"seq": self.seq, **self.attributes}


# --- inputs -----------------------------------------------------------------------------------------------------------
#
# The comparison of inputs with the history: does the code still pass what the run passed?
#
# It covers the inputs of activities and children, as they are recorded (before the codec). If the plain data differs,
# both sides are decoded with the present annotations and encoded again. So a new field or parameter with a default is
# no difference. The history keeps the input of the code even if somebody edited it later. Durations may change; their
# differences are only listed.


DifferenceKind = Literal["input", "duration"]
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class InputReading:
    """An input of an activity or a child as its receiver reads it.

    ``data`` is plain data by the name of the parameter. ``hints`` has the types of the parameters.
    """

    data: Mapping[str, Any]
    hints: Mapping[str, Any]


def to_reading(decoded: Mapping[str, Any], hints: Mapping[str, Any]) -> InputReading:
    """Return an input as its receiver reads it, from arguments that were decoded to their annotations.

    ``hints`` are these annotations, by the name of the parameter. Raises ``PayloadError``.
    """
    return InputReading({name: _fill_defaults(value) for name, value in decoded.items()}, hints)


def _fill_defaults(value: Any) -> Any:
    """Include fields with a default that were absent when ``value`` was decoded."""
    kind = type(value)
    if is_dataclass(kind):
        return {member.name: _fill_defaults(getattr(value, member.name)) for member in fields(kind)}
    if kind is list or kind is tuple:
        return [_fill_defaults(part) for part in value]
    if kind is dict and all(isinstance(key, str) for key in value):
        return {key: _fill_defaults(part) for key, part in value.items()}
    return codec.to_plain(value)


#: Reads the attributes of a command or event as the present code does. Raises ``PayloadError``.
Reader = Callable[[Mapping[str, Any]], InputReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """An input or a duration of the code that differs from the history.

    - ``event`` is the number of the history event, and ``command`` describes the command.
    - ``path`` is the place of the difference in the input. It consists of names that the code declares, with ``…`` for
      keys that may be data.
    - ``place`` is the file and line of the code (``path:line``), if it is known.
    - ``recorded`` and ``produced`` are the two values at that path.
    - ``keys`` are the steps of the path in the input. They are payload, like the values.
    """

    kind: DifferenceKind
    event: int
    command: str
    path: str
    place: str | None = None
    recorded: Any = field(default=None, repr=False)
    produced: Any = field(default=None, repr=False)
    keys: Sequence[str | int] = field(default=(), repr=False)

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place is not None else ""
        return f"event {self.event}, {self.command}: {self.path} differs{at}"


def input_difference(
    event: HistoryEvent, command: Command, *, command_text: str, reader: Reader | None, place: Callable[[], str | None]
) -> ReplayDifference | None:
    """Return the first difference between an event and the present command of the same kind and name, or None.

    ``command_text`` describes the command in the result. ``reader`` decodes both inputs as their receiver does; None
    compares plain data. ``place()`` returns the file and line of the code, if they are known.
    """
    recorded, produced = event.attributes, command.attributes
    event_kind = KINDS[event.kind]
    name = event_kind.duration
    if name is not None and recorded.get(name) != produced.get(name):
        kind, path = "duration", name
        keys: Sequence[str | int] = (name,)
        values: tuple[Any, Any] = recorded.get(name), produced.get(name)
    elif any(recorded.get(name) != produced.get(name) for name in event_kind.inputs):
        first = _find_difference(recorded, produced, event_kind.inputs, reader)
        if first is None:
            return None
        kind, (path, keys, values) = "input", first
    else:
        return None
    return ReplayDifference(
        kind=typing.cast("DifferenceKind", kind),
        event=event.number,
        command=command_text,
        path=path,
        place=place(),
        recorded=values[0],
        produced=values[1],
        keys=keys,
    )


def _find_difference(
    recorded: Mapping[str, Any], produced: Mapping[str, Any], names: Sequence[str], reader: Reader | None
) -> tuple[str, Sequence[str | int], tuple[Any, Any]] | None:
    """Return ``(path in words, path, (recorded, produced))``, or None if ``reader`` reads the same inputs."""
    hints: Mapping[str, Any] = {}
    before: Any = {name: recorded[name] for name in names if recorded.get(name)}
    after: Any = {name: produced[name] for name in names if produced.get(name)}
    if reader is not None:
        try:
            recorded_input, produced_input = reader(recorded), reader(produced)
        except PayloadError:  # the recorded input does not fit any more, so the plain data is compared
            pass
        else:
            before, after, hints = recorded_input.data, produced_input.data, produced_input.hints
            if before == after:
                return None
    else:
        hints = dict.fromkeys(names, Any)
    first = first_difference(before, after)
    if first is None:
        return None
    keys, values = first
    return _describe_path(keys, hints or dict.fromkeys(names, Any)), keys, values


def first_difference(before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    """Return the first difference between two plain values, or None if they are equal.

    The result has the path, as a tuple of keys and indexes, and the pair of both values there.
    """
    if type(before) is type(after) is dict:
        for key in (*before, *(key for key in after if key not in before)):
            if (location := _prefix_step(key, before.get(key, _MISSING), after.get(key, _MISSING))) is not None:
                return location
        return None
    if type(before) is type(after) is list:
        for index in range(max(len(before), len(after))):
            pair = (side[index] if index < len(side) else _MISSING for side in (before, after))
            if (location := _prefix_step(index, *pair)) is not None:
                return location
        return None
    # Types count as well: 1, 1.0 and True are equal in Python but differ in JSON.
    same = before == after and type(before) is type(after)
    return None if same else ((), (_value_or_none(before), _value_or_none(after)))


def _prefix_step(step: str | int, before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    """Return ``(path that begins with step, (value before, value after))`` of the first difference."""
    location = first_difference(before, after)
    return None if location is None else ((step, *location[0]), location[1])


def _value_or_none(value: Any) -> Any:
    return None if value is _MISSING else value


def _describe_path(path: Sequence[str | int], hints: Mapping[str, Any]) -> str:
    """Return the path, with ``…`` for a key that no type declares: it may be data, which must not go into a log."""
    text, annotation = "", typing.cast("Any", None)
    for step in path:
        declared = hints if not text else _field_types(annotation)
        if isinstance(step, int):
            text += f"[{step}]"
            annotation = _element_type(annotation)
        elif step in declared:
            text += f".{step}" if text else step
            annotation = declared[step]
        else:
            text += ".…"
            annotation = _element_type(annotation)
    return codec.shorten_path(text) or "the input"


def _field_types(annotation: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass, TypedDict, struct or model, or of all members of a union."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _field_types(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return {name: hint for member in typing.get_args(annotation) for name, hint in _field_types(member).items()}
    kind = origin or annotation
    if not isinstance(kind, type) or kind.__module__ == "builtins":
        return {}
    return codec.resolve_hints(kind)


def _element_type(annotation: Any) -> Any:
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    return arguments[-1] if arguments else Any


# --- matching ---------------------------------------------------------------------------------------------------------
#
# The comparison of commands with the history: does the code still do what the run did? See decision 16.
#
# It compares kind, command number and name, in order. A difference in these is nondeterminism. Differences of inputs
# and durations are reported separately; see ``inputs``. Results, options and closing events without a command are not
# compared.


def check_commands(
    recorded: Sequence[HistoryEvent],
    produced: Sequence[Command],
    *,
    run: str,
    place_of: Callable[[int | None], str | None],
    readers: MutableMapping[int, Reader],
) -> list[ReplayDifference]:
    """Compare recorded events with produced commands, and return the inputs and durations that differ.

    Raises ``NondeterminismError`` if kind, number or name differ. A deprecated marker that the code does not produce
    any more is no difference.

    - ``run`` names the run in errors.
    - ``place_of(index)`` returns the place where the code issued that command, or None. For the index None it returns
      the place where the code is suspended.
    - ``readers`` read inputs as the present code does, by the number of the command; used ones are removed.
    """
    index = 0
    differences: list[ReplayDifference] = []
    for event in recorded:
        command = produced[index] if index < len(produced) else None
        if command is not None and _matches(event, command):
            if KINDS[event.kind].has_input:
                input_change = input_difference(
                    event,
                    command,
                    command_text=_describe(command.event_kind, command.event_attributes()),
                    reader=readers.pop(command.seq or 0, None),
                    place=partial(place_of, index),
                )
                differences += [] if input_change is None else [input_change]
            index += 1
        # The index stays: the same command is compared with the next event.
        elif event.kind != "PatchMarked" or not PATCH_MARKED.read(event).get("deprecated"):
            raise _mismatch_error(run, event, command, place_of(None if command is None else index))
    if index < len(produced):
        raise _mismatch_error(run, None, produced[index], place_of(index))
    return differences


def input_error(run: str, change: ReplayDifference) -> NondeterminismError:
    """Return the error for an input that differs, for callers that treat a difference as an error.

    ``run`` names the run in the message.
    """
    at = f" ({change.place})" if change.place is not None else ""
    return NondeterminismError(
        f"{run}: the input of the code differs from the history at history event {change.event}{at}: "
        f"{change.command}, {change.path} differs. Does it come from iterating over a set, from hash() or id()? "
        "Sort it, or draw it from api. If you want the change, give new fields and parameters defaults, or keep the old "
        "input for old runs with api.patched()",
        recorded=change.command,
        produced=f"{change.command}, with a different {change.path}",
        place=change.place,
        event=change.event,
    )


def _matches(event: HistoryEvent, command: Command) -> bool:
    if event.kind != command.event_kind or event.attributes.get("seq") != command.seq:
        return False
    name = KINDS[event.kind].name_attribute
    return name is None or aliases.is_same_name(name, event.attributes.get(name), command.attributes.get(name))


def _mismatch_error(
    run: str, event: HistoryEvent | None, command: Command | None, place: str | None
) -> NondeterminismError:
    """Return the error. The event or the command is None if it is missing."""
    recorded = None if event is None else _describe(event.kind, event.attributes)
    produced = None if command is None else _describe(command.event_kind, command.event_attributes())
    seq = command.seq if command is not None else None
    if event is not None:
        seq = event.attributes.get("seq") if event.attributes.get("seq") is not None else event.number
    at = f" at history event {event.number}" if event is not None else ""
    at += f" ({place})" if place is not None else ""
    return NondeterminismError(
        f"{run}: the code does not match the history{at}: recorded {recorded or 'nothing'}, produced "
        f"{produced or 'nothing'}{_payload_error_text(command)}. Restore the old code, or keep the old path for old "
        f"runs with api.patched(){_alias_advice(event, command)}",
        seq=seq,
        recorded=recorded or "nothing",
        produced=produced or "nothing",
        place=place,
        event=None if event is None else event.number,
    )


def _payload_error_text(command: Command | None) -> str:
    """Return the message of a refused payload in brackets. Messages of other exceptions may contain data."""
    attributes = {} if command is None else command.event_attributes()
    refused = command is not None and command.event_kind == "WorkflowFailed"
    return f" ({attributes.get('message')})" if refused and attributes.get("type") == PayloadError.__name__ else ""


def _alias_advice(event: HistoryEvent | None, command: Command | None) -> str:
    """Return advice about a rename, if one activity or class is in the place of another; else an empty text."""
    if event is None or command is None or event.kind != command.event_kind:
        return ""
    if event.kind == "ActivityScheduled":
        activity = ACTIVITY_SCHEDULED.read(event)["activity"]
        return f"; if the activity was renamed, keep its old name: @activity(aliases=[{activity!r}])"
    if event.kind == "ChildStarted":
        workflow = CHILD_STARTED.read(event)["workflow"]
        return f"; if the class was renamed, keep its old name: aliases = ({workflow!r},)"
    return ""


def _describe(kind: str, attributes: dict[str, Any]) -> str:
    parts = [kind]
    if attributes.get("seq") is not None:
        parts.append(f"seq {attributes['seq']}")
    if kind == "WorkflowFailed" and attributes.get("type"):
        parts.append(str(attributes["type"]))
    name = KINDS[kind].name_attribute if kind in KINDS else None
    if name is not None:
        parts.append(f"{name} {attributes.get(name)}")
    return ", ".join(parts)
