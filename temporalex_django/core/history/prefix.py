"""A history up to one of its activations: what a run that takes it up has behind it, and what is open there.

Pure. A reset and a fork begin with it, see ``engine.anew``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from temporalex_django.core import four_eyes, senders
from temporalex_django.core.history.activation import FailedSignal
from temporalex_django.core.history.events import CLOSED_FROM_OUTSIDE, CLOSING, SIGNAL_FAILED, HistoryEvent
from temporalex_django.core.process import RECORDED_AS, REQUEST, recorded_request
from temporalex_django.core.senders import Sender

#: Kinds of messages that somebody outside sends to a run, in an order that counts.
EXTERNAL_KINDS: Final = frozenset({"signal", "update", REQUEST})
#: Of ``ActivationStarted``: what is before was copied. Attributes: see ``build_copy_mark``.
COPIED: Final = "copied"
_ACTIVITY_RESULT_KINDS: Final = frozenset(
    {"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"}
)
_RESULT_KINDS: Final = _ACTIVITY_RESULT_KINDS | {"ChildCompleted", "ChildFailed", "ExternalFailed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMessage:
    """A message that is in the history, most often behind the point.

    ``kind``: one of ``EXTERNAL_KINDS``; ``payload`` what was sent. An update has its ``message_id``, and so has a
    signal that its sender gave one, or that is a failed message.
    """

    kind: str
    name: str
    payload: Any
    message_id: str | None = None
    sender: Sender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledActivity:
    """An activity that was scheduled and had not ended.

    ``attributes`` are those of ``ActivityScheduled`` (with the input of whoever edited it), ``key`` is the idempotency
    key that its attempts had. ``edited``: a reset gave it that input (True), or somebody to the activity itself
    (``by``).
    """

    attributes: Mapping[str, Any]
    key: str
    edited: Mapping[str, Any] | bool = False

    def with_input(self, call: Mapping[str, Any], *, key: str = "") -> ScheduledActivity:
        """With other ``args`` and ``kwargs``, and the ``key`` that goes with them; ``by`` is there as in ``edited``."""
        call_input = {name: call[name] for name in ("args", "kwargs")}
        edited: Mapping[str, Any] | bool = {"by": call["by"]} if "by" in call else True
        return ScheduledActivity(
            attributes={**self.attributes, **call_input}, key=call.get("key") or key, edited=edited
        )

    @property
    def edited_input(self) -> dict[str, Any] | None:
        """What ``with_input`` made it of, if somebody edited the activity itself: no event says that but its end."""
        if not isinstance(self.edited, Mapping):
            return None
        attributes = self.attributes
        return {"args": attributes["args"], "kwargs": attributes["kwargs"], "key": self.key, **self.edited}


@dataclass(slots=True, kw_only=True)
class HistoryPrefix:
    """``events`` of the first ``activation`` activations, with what is open there, by the number of the command.

    ``children``: ids of those that are waited for. ``unconfirmed``: messages to other runs that are not confirmed.
    ``later_results``: what is known behind the point of those and of the children, as kind and attributes.
    ``signal_count`` counts the signals, ``updates`` are those accepted, by id, ``signals`` those that have an id and
    that the run has taken. ``failed`` holds the signals that are failed messages at the point, by id, ``carried`` the
    ids of those that the run has from the one before. ``later_messages``: messages that came later, in order.
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
    """What stands under ``COPIED``.

    ``mode`` (reset or fork) the run ``run_id`` took up the run ``source_run_id`` behind that ``activation``; ``id`` and
    ``parent`` are its own. ``excluded`` are the people whom its ``snapshot`` shuts out (``core.four_eyes``). ``edited``
    is added where somebody edited inputs: args and kwargs by the number of the command, with key and ``by`` where that
    was done to the activity itself.
    """
    named = {"how": mode, "from": source_run_id, "activation": activation, "run_id": run_id, "id": id, "parent": parent}
    return {**named, **four_eyes.mark_attributes(snapshot)}


def count_activations(events: Sequence[HistoryEvent]) -> int:
    """How many activations a history has."""
    return sum(event.kind == "ActivationStarted" for event in events)


def is_closed_by_code(events: Sequence[HistoryEvent]) -> bool:
    """Whether its last activation closed the run, so that nothing can go on behind that."""
    return bool(events) and events[-1].kind in CLOSING and not _is_external_close(events[-1])


def read_prefix(events: Sequence[HistoryEvent], activation: int) -> HistoryPrefix:
    """The first ``activation`` activations, none of which closed the run. 0: nothing, the run begins."""
    prefix = HistoryPrefix(activation=activation)
    later_events: list[HistoryEvent] = []
    external_closes: list[HistoryEvent] = []
    for event in events:
        if _is_external_close(event):
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


def _is_external_close(event: HistoryEvent) -> bool:
    return event.kind in CLOSED_FROM_OUTSIDE or (event.kind in CLOSING and bool(event.attributes.get("outside")))


def _apply_events(prefix: HistoryPrefix) -> None:
    """What is open at the point."""
    origin = ""
    signals: dict[int, Mapping[str, Any]] = {}
    for event in prefix.events:
        attributes = event.attributes
        match event.kind:
            case "WorkflowStarted":
                origin = attributes.get("run_id", "")
                prefix.carried = {message["id"] for message in attributes.get("failed", ())}
            case "ActivationStarted":
                prefix.unconfirmed.difference_update(attributes.get("delivered", ()))
                if (copied := attributes.get(COPIED)) is not None:
                    origin = copied["run_id"]
                    _apply_edits(prefix, copied.get("edited", {}), origin)
            case "SignalReceived":
                prefix.signal_count += 1
                signals[prefix.signal_count] = attributes
                _apply_signal(prefix, attributes)
            case kind if kind == SIGNAL_FAILED:
                prefix.signals.pop(attributes["id"], None)
                prefix.failed[attributes["id"]] = _failed_signal(attributes, signals[attributes["number"]])
            case "UpdateAccepted":
                prefix.updates[attributes["id"]] = _update_message(attributes)
            case "ActivityScheduled":
                number = attributes["seq"]
                prefix.activities[number] = ScheduledActivity(attributes=attributes, key=f"{origin}:{number}")
            case "ChildStarted":
                prefix.children[attributes["seq"]] = attributes["id"]
            case "ExternalSignalSent" | "ExternalCancelSent":
                prefix.unconfirmed.add(attributes["seq"])
            case kind if kind in _RESULT_KINDS:
                number = attributes["seq"]
                prefix.activities.pop(number, None)
                prefix.children.pop(number, None)
                prefix.unconfirmed.discard(number)


def _apply_signal(prefix: HistoryPrefix, signal: Mapping[str, Any]) -> None:
    """A signal with an id: it counts once, and is no failed message any more."""
    message_id = signal.get("id")
    if message_id is None:
        return
    prefix.failed.pop(message_id, None)
    prefix.carried.discard(message_id)
    if signal["name"] != RECORDED_AS:
        prefix.signals[message_id] = _signal_message(signal, None)


def _apply_edits(prefix: HistoryPrefix, edited: Mapping[str, Mapping[str, Any]], origin: str) -> None:
    """A reset before this one gave activities other inputs, and so other keys."""
    for number, call in edited.items():
        if (activity := prefix.activities.get(int(number))) is not None:
            prefix.activities[int(number)] = activity.with_input(call, key=f"{origin}:{number}")


def _apply_later_edits(prefix: HistoryPrefix, later_events: Iterable[HistoryEvent]) -> None:
    """What somebody did to an activity itself is undone by no reset: it may have taken effect with that input."""
    for event in later_events:
        edited: dict[str, Any] = {}
        if event.kind == "ActivationStarted":
            edited = (event.attributes.get(COPIED) or {}).get("edited", {})
        elif event.kind in _ACTIVITY_RESULT_KINDS and "edited" in event.attributes:
            edited = {event.attributes["seq"]: event.attributes["edited"]}
        elif event.kind in CLOSING:
            edited = event.attributes.get("edited", {})
        for number, call in edited.items():
            if "by" in call and (activity := prefix.activities.get(int(number))) is not None:
                prefix.activities[int(number)] = activity.with_input(call)


def _read_later_events(prefix: HistoryPrefix, later_events: Sequence[HistoryEvent]) -> None:
    """What came later: the messages, and the answers for what is open."""
    signal_count = prefix.signal_count
    carried = 0
    signals: list[tuple[int, PendingMessage]] = []
    failed = {
        event.attributes["number"]: event.attributes["id"] for event in later_events if event.kind == SIGNAL_FAILED
    }
    updates: list[tuple[int, PendingMessage]] = []
    open_numbers = {*prefix.children, *prefix.unconfirmed}
    for event in later_events:
        attributes = event.attributes
        match event.kind:
            case "WorkflowStarted":
                carried = attributes.get("carried", 0)
            case "ActivationStarted":
                for number in attributes.get("delivered", ()):
                    if number in prefix.unconfirmed:
                        prefix.later_results[number] = "ExternalDelivered", {"seq": number}
            case "SignalReceived":
                signal_count += 1
                if signal_count > carried:  # else the run that begins has it from the one before
                    signals.append((signal_count, _signal_message(attributes, failed.get(signal_count))))
            case "UpdateAccepted":
                updates.append((attributes["after"], _update_message(attributes)))
            case "ChildCompleted" | "ChildFailed" | "ExternalFailed":
                if attributes["seq"] in open_numbers:
                    prefix.later_results[attributes["seq"]] = event.kind, attributes
    prefix.later_messages = deduplicate([*_in_arrival_order(signals, updates)])


def deduplicate(messages: Sequence[PendingMessage]) -> list[PendingMessage]:
    """Leave the last one of each id: a signal that failed, and was delivered again, came more than once."""
    last = {message.message_id: number for number, message in enumerate(messages)}
    return [
        message
        for number, message in enumerate(messages)
        if message.message_id is None or last[message.message_id] == number
    ]


def _in_arrival_order(
    signals: Sequence[tuple[int, PendingMessage]], updates: Sequence[tuple[int, PendingMessage]]
) -> Iterator[PendingMessage]:
    """As they came: an update stands behind so many signals."""
    waiting = sorted(updates, key=lambda update: update[0])
    for number, signal in signals:
        while waiting and waiting[0][0] < number:
            yield waiting.pop(0)[1]
        yield signal
    for _, update in waiting:
        yield update


def _update_message(attributes: dict[str, Any]) -> PendingMessage:
    return PendingMessage(
        kind="update",
        name=attributes["name"],
        payload=attributes["args"],
        message_id=attributes["id"],
        sender=senders.sender_from(attributes),
    )


def _failed_signal(failure: Mapping[str, Any], signal: Mapping[str, Any]) -> FailedSignal:
    """A failed message, from its event and that of the signal."""
    return FailedSignal(
        number=failure["number"],
        id=failure["id"],
        name=failure["name"],
        payload=signal.get("payload"),
        sender=senders.sender_from(dict(signal)),
        failure={name: failure[name] for name in ("type", "message")},
        untouched=failure["untouched"],
    )


def _signal_message(attributes: Mapping[str, Any], failed_as: str | None) -> PendingMessage:
    """A signal that came later; ``failed_as`` is its id as a failed message, whose place it takes."""
    name: str = attributes["name"]
    payload: Any = attributes.get("payload")
    sender = senders.sender_from(dict(attributes))
    if name != RECORDED_AS:
        return PendingMessage(
            kind="signal", name=name, payload=payload, message_id=attributes.get("id", failed_as), sender=sender
        )
    # it was let through once: nobody is asked for a role again
    return PendingMessage(
        kind=REQUEST, name=payload["event"], payload={**recorded_request(attributes), "again": True}, sender=sender
    )
