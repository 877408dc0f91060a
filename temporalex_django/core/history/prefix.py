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
FROM_OUTSIDE: Final = frozenset({"signal", "update", REQUEST})
#: Of ``ActivationStarted``: what is before was copied. Attributes: see ``mark``.
COPIED: Final = "copied"
_ACTIVITY_ENDS: Final = frozenset({"ActivityCompleted", "ActivityFailed", "ActivityTimedOut", "ActivityCancelled"})
_ENDS: Final = _ACTIVITY_ENDS | {"ChildCompleted", "ChildFailed", "ExternalFailed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A message that is in the history, most often behind the point.

    ``kind``: one of ``FROM_OUTSIDE``; ``body`` what was sent. An update has its ``id``, and so has a signal that its
    sender gave one, or that is a failed message.
    """

    kind: str
    name: str
    body: Any
    id: str | None = None
    sender: Sender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityUnderWay:
    """An activity that was scheduled and had not ended.

    ``attributes`` are those of ``ActivityScheduled`` (with the input of whoever edited it), ``key`` is the idempotency
    key that its attempts had. ``edited``: a reset gave it that input (True), or somebody to the activity itself
    (``by``).
    """

    attributes: Mapping[str, Any]
    key: str
    edited: Mapping[str, Any] | bool = False

    def with_input(self, call: Mapping[str, Any], *, key: str = "") -> ActivityUnderWay:
        """With other ``args`` and ``kwargs``, and the ``key`` that goes with them; ``by`` is there as in ``edited``."""
        given = {name: call[name] for name in ("args", "kwargs")}
        edited: Mapping[str, Any] | bool = {"by": call["by"]} if "by" in call else True
        return ActivityUnderWay(attributes={**self.attributes, **given}, key=call.get("key") or key, edited=edited)

    @property
    def last_input(self) -> dict[str, Any] | None:
        """What ``with_input`` made it of, if somebody edited the activity itself: no event says that but its end."""
        if not isinstance(self.edited, Mapping):
            return None
        attributes = self.attributes
        return {"args": attributes["args"], "kwargs": attributes["kwargs"], "key": self.key, **self.edited}


@dataclass(slots=True, kw_only=True)
class Prefix:
    """``events`` of the first ``activation`` activations, with what is open there, by the number of the command.

    ``children``: ids of those that are waited for. ``sent``: messages to other runs that are not confirmed.
    ``answers``: what is known behind the point of those and of the children, as kind and attributes. ``received``
    counts the signals, ``updates`` are those accepted, by id, ``signals`` those that have an id and that the run has
    taken. ``failed`` holds the signals that are failed messages at the point, by id, ``carried`` the ids of those that
    the run has from the one before. ``behind``: messages that came later, in order.
    """

    activation: int
    events: list[HistoryEvent] = field(default_factory=list)
    activities: dict[int, ActivityUnderWay] = field(default_factory=dict)
    children: dict[int, str] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    answers: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    received: int = 0
    updates: dict[str, Behind] = field(default_factory=dict)
    signals: dict[str, Behind] = field(default_factory=dict)
    failed: dict[str, FailedSignal] = field(default_factory=dict)
    carried: set[str] = field(default_factory=set)
    behind: list[Behind] = field(default_factory=list)


def mark(
    *, how: str, of: str, activation: int, run_id: str, id: str, parent: str | None, snapshot: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What stands under ``COPIED``.

    ``how`` (reset or fork) the run ``run_id`` took up the run ``of`` behind that ``activation``; ``id`` and ``parent``
    are its own. ``excluded`` are the people whom its ``snapshot`` shuts out (``core.four_eyes``). ``edited`` is added
    where somebody edited inputs: args and kwargs by the number of the command, with key and ``by`` where that was done
    to the activity itself.
    """
    named = {"how": how, "from": of, "activation": activation, "run_id": run_id, "id": id, "parent": parent}
    return {**named, **four_eyes.marked(snapshot)}


def activations_of(events: Sequence[HistoryEvent]) -> int:
    """How many activations a history has."""
    return sum(event.kind == "ActivationStarted" for event in events)


def closed_itself(events: Sequence[HistoryEvent]) -> bool:
    """Whether its last activation closed the run, so that nothing can go on behind that."""
    return bool(events) and events[-1].kind in CLOSING and not _from_outside(events[-1])


def prefix(events: Sequence[HistoryEvent], activation: int) -> Prefix:
    """The first ``activation`` activations, none of which closed the run. 0: nothing, the run begins."""
    found = Prefix(activation=activation)
    rest: list[HistoryEvent] = []
    closed: list[HistoryEvent] = []
    for event in events:
        if _from_outside(event):
            closed.append(event)
            continue
        if activation and event.activation <= activation:
            found.events.append(event)
        else:
            rest.append(event)
    _read(found)
    _look_behind(found, rest)
    _edit_since(found, [*rest, *closed])
    return found


def _from_outside(event: HistoryEvent) -> bool:
    return event.kind in CLOSED_FROM_OUTSIDE or (event.kind in CLOSING and bool(event.attributes.get("outside")))


def _read(found: Prefix) -> None:
    """What is open at the point."""
    origin = ""
    signals: dict[int, Mapping[str, Any]] = {}
    for event in found.events:
        attributes = event.attributes
        match event.kind:
            case "WorkflowStarted":
                origin = attributes.get("run_id", "")
                found.carried = {message["id"] for message in attributes.get("failed", ())}
            case "ActivationStarted":
                found.sent.difference_update(attributes.get("delivered", ()))
                if (copied := attributes.get(COPIED)) is not None:
                    origin = copied["run_id"]
                    _edit(found, copied.get("edited", {}), origin)
            case "SignalReceived":
                found.received += 1
                signals[found.received] = attributes
                _take(found, attributes)
            case kind if kind == SIGNAL_FAILED:
                found.signals.pop(attributes["id"], None)
                found.failed[attributes["id"]] = _failed(attributes, signals[attributes["number"]])
            case "UpdateAccepted":
                found.updates[attributes["id"]] = _update(attributes)
            case "ActivityScheduled":
                number = attributes["seq"]
                found.activities[number] = ActivityUnderWay(attributes=attributes, key=f"{origin}:{number}")
            case "ChildStarted":
                found.children[attributes["seq"]] = attributes["id"]
            case "ExternalSignalSent" | "ExternalCancelSent":
                found.sent.add(attributes["seq"])
            case kind if kind in _ENDS:
                number = attributes["seq"]
                found.activities.pop(number, None)
                found.children.pop(number, None)
                found.sent.discard(number)


def _take(found: Prefix, signal: Mapping[str, Any]) -> None:
    """A signal with an id: it counts once, and is no failed message any more."""
    known = signal.get("id")
    if known is None:
        return
    found.failed.pop(known, None)
    found.carried.discard(known)
    if signal["name"] != RECORDED_AS:
        found.signals[known] = _signal(signal, None)


def _edit(found: Prefix, edited: Mapping[str, Mapping[str, Any]], origin: str) -> None:
    """A reset before this one gave activities other inputs, and so other keys."""
    for number, call in edited.items():
        if (activity := found.activities.get(int(number))) is not None:
            found.activities[int(number)] = activity.with_input(call, key=f"{origin}:{number}")


def _edit_since(found: Prefix, rest: Iterable[HistoryEvent]) -> None:
    """What somebody did to an activity itself is undone by no reset: it may have taken effect with that input."""
    for event in rest:
        edited: dict[str, Any] = {}
        if event.kind == "ActivationStarted":
            edited = (event.attributes.get(COPIED) or {}).get("edited", {})
        elif event.kind in _ACTIVITY_ENDS and "edited" in event.attributes:
            edited = {event.attributes["seq"]: event.attributes["edited"]}
        elif event.kind in CLOSING:
            edited = event.attributes.get("edited", {})
        for number, call in edited.items():
            if "by" in call and (activity := found.activities.get(int(number))) is not None:
                found.activities[int(number)] = activity.with_input(call)


def _look_behind(found: Prefix, rest: Sequence[HistoryEvent]) -> None:
    """What came later: the messages, and the answers for what is open."""
    received = found.received
    carried = 0
    signals: list[tuple[int, Behind]] = []
    failed = {event.attributes["number"]: event.attributes["id"] for event in rest if event.kind == SIGNAL_FAILED}
    updates: list[tuple[int, Behind]] = []
    open_ones = {*found.children, *found.sent}
    for event in rest:
        attributes = event.attributes
        match event.kind:
            case "WorkflowStarted":
                carried = attributes.get("carried", 0)
            case "ActivationStarted":
                for number in attributes.get("delivered", ()):
                    if number in found.sent:
                        found.answers[number] = "ExternalDelivered", {"seq": number}
            case "SignalReceived":
                received += 1
                if received > carried:  # else the run that begins has it from the one before
                    signals.append((received, _signal(attributes, failed.get(received))))
            case "UpdateAccepted":
                updates.append((attributes["after"], _update(attributes)))
            case "ChildCompleted" | "ChildFailed" | "ExternalFailed":
                if attributes["seq"] in open_ones:
                    found.answers[attributes["seq"]] = event.kind, attributes
    found.behind = delivered_once([*_in_order(signals, updates)])


def delivered_once(messages: Sequence[Behind]) -> list[Behind]:
    """Leave the last one of each id: a signal that failed, and was delivered again, came more than once."""
    last = {message.id: number for number, message in enumerate(messages)}
    return [message for number, message in enumerate(messages) if message.id is None or last[message.id] == number]


def _in_order(signals: Sequence[tuple[int, Behind]], updates: Sequence[tuple[int, Behind]]) -> Iterator[Behind]:
    """As they came: an update stands behind so many signals."""
    waiting = sorted(updates, key=lambda update: update[0])
    for number, signal in signals:
        while waiting and waiting[0][0] < number:
            yield waiting.pop(0)[1]
        yield signal
    for _, update in waiting:
        yield update


def _update(attributes: dict[str, Any]) -> Behind:
    return Behind(
        kind="update",
        name=attributes["name"],
        body=attributes["args"],
        id=attributes["id"],
        sender=senders.of(attributes),
    )


def _failed(failure: Mapping[str, Any], signal: Mapping[str, Any]) -> FailedSignal:
    """A failed message, from its event and that of the signal."""
    return FailedSignal(
        number=failure["number"],
        id=failure["id"],
        name=failure["name"],
        payload=signal.get("payload"),
        sender=senders.of(dict(signal)),
        failure={name: failure[name] for name in ("type", "message")},
        untouched=failure["untouched"],
    )


def _signal(attributes: Mapping[str, Any], failed_as: str | None) -> Behind:
    """A signal that came later; ``failed_as`` is its id as a failed message, whose place it takes."""
    name: str = attributes["name"]
    payload: Any = attributes.get("payload")
    sender = senders.of(dict(attributes))
    if name != RECORDED_AS:
        return Behind(kind="signal", name=name, body=payload, id=attributes.get("id", failed_as), sender=sender)
    # it was let through once: nobody is asked for a role again
    return Behind(
        kind=REQUEST, name=payload["event"], body={**recorded_request(attributes), "again": True}, sender=sender
    )
