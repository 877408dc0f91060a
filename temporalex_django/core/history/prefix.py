"""The prefix of a history, up to one of its activations: the events that a new run copies, and what is open there.

All functions are pure. The resets and forks of the engine begin with a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from temporalex_django.core import human_tasks
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.attributes import (
    ActivityScheduledAttributes,
    EditedInput,
    SignalFailedAttributes,
    SignalReceivedAttributes,
    UpdateAcceptedAttributes,
)
from temporalex_django.core.history.events import CLOSING, DELIVERED, HistoryEvent, end_kinds_of, is_external_close
from temporalex_django.core.messages import sender as senders
from temporalex_django.core.messages.sender import Headers, Sender, headers_from
from temporalex_django.core.process import RECORDED_AS, REQUEST, recorded_request

#: Kinds of messages that are sent to a run from outside and whose order must be kept.
EXTERNAL_KINDS: Final = frozenset({"signal", "update", REQUEST})
#: Attribute of ``ActivationStarted``: the events before it were copied. For its value see ``build_copy_mark``.
COPIED: Final = "copied"
_ACTIVITY_ENDS: Final = end_kinds_of("activity")
_ENDS: Final = end_kinds_of("activity", "child", "external")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMessage:
    """A message of a history that a new run may have to get again. Most often it came after the end of the prefix.

    ``kind`` is one of ``EXTERNAL_KINDS``, and ``payload`` is what was sent. ``message_id`` is set for an update, for a
    signal whose sender gave an id, and for a failed message.
    """

    kind: str
    name: str
    payload: Any
    message_id: str | None = None
    sender: Sender | None = None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledActivity:
    """An activity that was scheduled and had not ended.

    ``attributes`` are the attributes of ``ActivityScheduled``; if a person edited the input, they have the edited one.
    ``key`` is the idempotency key that its attempts had. ``edited`` is True if a reset gave it that input. It is a
    mapping with ``by`` if somebody edited the activity itself.
    """

    attributes: ActivityScheduledAttributes
    key: str
    edited: Mapping[str, Any] | bool = False

    def with_input(self, call: Mapping[str, Any], *, key: str = "") -> ScheduledActivity:
        """Return a copy with other ``args`` and ``kwargs``, and the ``key`` that belongs to them.

        ``call`` may contain ``by``, which has the same meaning as in ``edited``.
        """
        attributes: ActivityScheduledAttributes = {
            **self.attributes,
            "args": call["args"],
            "kwargs": call["kwargs"],
        }
        edited: Mapping[str, Any] | bool = {"by": call["by"]} if "by" in call else True
        return ScheduledActivity(attributes=attributes, key=call.get("key") or key, edited=edited)

    @property
    def edited_input(self) -> dict[str, Any] | None:
        """The input after ``with_input``, if somebody edited the activity itself; else None.

        No event records such an edit before the activity ends.
        """
        if not isinstance(self.edited, Mapping):
            return None
        attributes = self.attributes
        return {"args": attributes["args"], "kwargs": attributes["kwargs"], "key": self.key, **self.edited}


@dataclass(slots=True, kw_only=True)
class HistoryPrefix:
    """The ``events`` of the first ``activation`` activations, and everything that is open at their end (the point).

    Mappings by number have the number of the command as key.

    - ``activities``: activities that had not ended, by number.
    - ``children``: ids of children that a unit waits for, by number.
    - ``unconfirmed``: the numbers of messages to other runs that are not confirmed.
    - ``later_results``: results of these messages and children that came after the point, as kind and attributes.
    - ``signal_count``: the number of signals up to the point.
    - ``updates``: accepted updates by id. ``signals``: signals with an id that the run has taken.
    - ``failed``: signals that are failed messages at the point, by id.
    - ``carried``: ids of failed messages that the run has from the previous one.
    - ``later_messages``: messages that came after the point, in order.
    """

    activation: int
    events: list[HistoryEvent] = field(default_factory=list)
    activities: dict[int, ScheduledActivity] = field(default_factory=dict)
    children: dict[int, str] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)
    later_results: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    signal_count: int = 0
    updates: dict[str, PendingMessage] = field(default_factory=dict)
    signals: dict[str, PendingMessage] = field(default_factory=dict)
    failed: dict[str, FailedSignal] = field(default_factory=dict)
    carried: set[str] = field(default_factory=set)
    later_messages: list[PendingMessage] = field(default_factory=list)


def build_copy_mark(
    *,
    mode: str,
    source_run_id: str,
    activation: int,
    run_id: str,
    id: str,
    parent: str | None,
    snapshot: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the value of the attribute ``COPIED``, which marks the end of copied events in a history.

    ``mode`` is "reset" or "fork". The run ``run_id`` continues the run ``source_run_id`` after its activation
    ``activation``; ``id`` and ``parent`` are those of the new run. If ``snapshot`` excludes users
    (``core.human_tasks``), the mark has them under "excluded".

    If somebody edited inputs, the caller adds "edited": a dict by command number whose values are ``EditedInput``.
    """
    named = {"how": mode, "from": source_run_id, "activation": activation, "run_id": run_id, "id": id, "parent": parent}
    return {**named, **human_tasks.mark_attributes(snapshot)}


def count_activations(events: Sequence[HistoryEvent]) -> int:
    """Return the number of activations of a history."""
    return sum(event.kind == "ActivationStarted" for event in events)


def is_closed_by_code(events: Sequence[HistoryEvent]) -> bool:
    """Return True if workflow code closed the run in the last activation, so that no run can continue after it."""
    if not events:
        return False
    last = events[-1]
    return last.kind in CLOSING and not is_external_close(last.kind, last.attributes)


def read_prefix(events: Sequence[HistoryEvent], activation: int) -> HistoryPrefix:
    """Read the first ``activation`` activations, none of which may have closed the run. With 0, the run begins anew."""
    prefix = HistoryPrefix(activation=activation)
    later_events: list[HistoryEvent] = []
    external_closes: list[HistoryEvent] = []
    for event in events:
        if is_external_close(event.kind, event.attributes):
            external_closes.append(event)
            continue
        if activation and event.activation <= activation:
            prefix.events.append(event)
        else:
            later_events.append(event)
    _apply_events(prefix)
    _read_later_events(prefix, later_events)
    _apply_later_edits(prefix, [*later_events, *external_closes])
    return prefix


def _apply_events(prefix: HistoryPrefix) -> None:
    """Collect in ``prefix`` what is open after its events."""
    origin = ""
    signals: dict[int, SignalReceivedAttributes] = {}
    for event in prefix.events:
        match event.kind:
            case "WorkflowStarted":
                start = kinds.WORKFLOW_STARTED.read(event)
                origin = start.get("run_id", "")
                prefix.carried = {message["id"] for message in start.get("failed", ())}
            case "ActivationStarted":
                stamp = kinds.ACTIVATION_STARTED.read(event)
                # A delivered message to another run has no event of its own; see ``events.DELIVERED``.
                prefix.unconfirmed.difference_update(stamp.get("delivered", ()))
                if (copied := stamp.get("copied")) is not None:
                    origin = copied["run_id"]
                    _apply_edits(prefix, copied.get("edited", {}), origin)
            case "SignalReceived":
                signal = kinds.SIGNAL_RECEIVED.read(event)
                prefix.signal_count += 1
                signals[prefix.signal_count] = signal
                _apply_signal(prefix, signal)
            case "SignalFailed":
                failure = kinds.SIGNAL_FAILED.read(event)
                prefix.signals.pop(failure["id"], None)
                prefix.failed[failure["id"]] = _failed_signal(failure, signals[failure["number"]])
            case "UpdateAccepted":
                update = kinds.UPDATE_ACCEPTED.read(event)
                prefix.updates[update["id"]] = _update_message(update)
            case "ActivityScheduled":
                activity = kinds.ACTIVITY_SCHEDULED.read(event)
                number = activity["seq"]
                prefix.activities[number] = ScheduledActivity(attributes=activity, key=f"{origin}:{number}")
            case "ChildStarted":
                child = kinds.CHILD_STARTED.read(event)
                prefix.children[child["seq"]] = child["id"]
            case "ExternalSignalSent" | "ExternalCancelSent":
                prefix.unconfirmed.add(event.attributes["seq"])
            case kind if kind in _ENDS:
                number = event.attributes["seq"]
                prefix.activities.pop(number, None)
                prefix.children.pop(number, None)
                prefix.unconfirmed.discard(number)


def _apply_signal(prefix: HistoryPrefix, signal: SignalReceivedAttributes) -> None:
    """Note a signal that has an id: it counts once, and is no failed message any more."""
    message_id = signal.get("id")
    if message_id is None:
        return
    prefix.failed.pop(message_id, None)
    prefix.carried.discard(message_id)
    if signal["name"] != RECORDED_AS:
        prefix.signals[message_id] = _signal_message(signal, None)


def _apply_edits(prefix: HistoryPrefix, edited: Mapping[str, EditedInput], origin: str) -> None:
    """Apply the inputs of an earlier reset by command number. Idempotency keys begin with the run id ``origin``."""
    for number, call in edited.items():
        if (activity := prefix.activities.get(int(number))) is not None:
            prefix.activities[int(number)] = activity.with_input(call, key=f"{origin}:{number}")


def _apply_later_edits(prefix: HistoryPrefix, later_events: Iterable[HistoryEvent]) -> None:
    """Apply edits made to activities themselves after the prefix. They stay: an activity may have taken effect."""
    for event in later_events:
        edited: Mapping[str, EditedInput] = {}
        if event.kind == "ActivationStarted":
            mark = kinds.ACTIVATION_STARTED.read(event).get("copied")
            edited = {} if mark is None else mark.get("edited", {})
        elif event.kind in _ACTIVITY_ENDS and "edited" in event.attributes:
            edited = {event.attributes["seq"]: event.attributes["edited"]}
        elif event.kind in CLOSING:
            edited = event.attributes.get("edited", {})
        for number, call in edited.items():
            if "by" in call and (activity := prefix.activities.get(int(number))) is not None:
                prefix.activities[int(number)] = activity.with_input(call)


def _read_later_events(prefix: HistoryPrefix, later_events: Sequence[HistoryEvent]) -> None:
    """Collect the messages, and the results of what is open at the end of the prefix."""
    signal_count = prefix.signal_count
    carried = 0
    signals: list[tuple[int, PendingMessage]] = []
    failures = [kinds.SIGNAL_FAILED.read(event) for event in later_events if event.kind == "SignalFailed"]
    failed = {failure["number"]: failure["id"] for failure in failures}
    updates: list[tuple[int, PendingMessage]] = []
    open_numbers = {*prefix.children, *prefix.unconfirmed}
    for event in later_events:
        match event.kind:
            case "WorkflowStarted":
                carried = kinds.WORKFLOW_STARTED.read(event).get("carried", 0)
            case "ActivationStarted":
                for number in kinds.ACTIVATION_STARTED.read(event).get("delivered", ()):
                    if number in prefix.unconfirmed:
                        prefix.later_results[number] = DELIVERED, {"seq": number}
            case "SignalReceived":
                signal_count += 1
                if signal_count > carried:  # a carried signal comes with the start of the new run
                    signal = kinds.SIGNAL_RECEIVED.read(event)
                    signals.append((signal_count, _signal_message(signal, failed.get(signal_count))))
            case "UpdateAccepted":
                update = kinds.UPDATE_ACCEPTED.read(event)
                updates.append((update["after"], _update_message(update)))
            case kind if kind in _ENDS:
                number = event.attributes["seq"]
                if number in open_numbers:
                    prefix.later_results[number] = event.kind, event.attributes
    prefix.later_messages = deduplicate([*_in_arrival_order(signals, updates)])


def deduplicate(messages: Sequence[PendingMessage]) -> list[PendingMessage]:
    """Return the messages with only the last one of each id.

    A signal that failed and that a person delivered again is in the list more than once.
    """
    last = {message.message_id: number for number, message in enumerate(messages)}
    return [
        message
        for number, message in enumerate(messages)
        if message.message_id is None or last[message.message_id] == number
    ]


def _in_arrival_order(
    signals: Sequence[tuple[int, PendingMessage]], updates: Sequence[tuple[int, PendingMessage]]
) -> Iterator[PendingMessage]:
    """Yield in order of arrival: signals with their number, updates with the number of signals before them."""
    waiting = sorted(updates, key=lambda update: update[0])
    for number, signal in signals:
        while waiting and waiting[0][0] < number:
            yield waiting.pop(0)[1]
        yield signal
    for _, update in waiting:
        yield update


def _update_message(attributes: UpdateAcceptedAttributes) -> PendingMessage:
    return PendingMessage(
        kind="update",
        name=attributes["name"],
        payload=attributes["args"],
        message_id=attributes["id"],
        sender=senders.sender_from(attributes),
        headers=headers_from(attributes),
    )


def _failed_signal(failure: SignalFailedAttributes, signal: SignalReceivedAttributes) -> FailedSignal:
    return FailedSignal(
        number=failure["number"],
        id=failure["id"],
        name=failure["name"],
        payload=signal.get("payload"),
        sender=senders.sender_from(signal),
        failure={"type": failure["type"], "message": failure["message"]},
        untouched=failure["untouched"],
        headers=headers_from(signal),
    )


def _signal_message(attributes: SignalReceivedAttributes, failed_as: str | None) -> PendingMessage:
    """Make a recorded request a request again. ``failed_as`` is the id of a failed message whose sender gave none."""
    name: str = attributes["name"]
    payload: Any = attributes.get("payload")
    origin: dict[str, Any] = {"sender": senders.sender_from(attributes), "headers": headers_from(attributes)}
    if name != RECORDED_AS:
        return PendingMessage(
            kind="signal", name=name, payload=payload, message_id=attributes.get("id", failed_as), **origin
        )
    # The request was accepted once, so the permission of its sender is not judged again. See decision 43.
    return PendingMessage(
        kind=REQUEST, name=payload["event"], payload={**recorded_request(attributes), "again": True}, **origin
    )
