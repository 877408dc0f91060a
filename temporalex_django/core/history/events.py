"""History events, and the jobs that become events. See decision 8.

The history of a run is the list of its events in the order of their numbers (1, 2, …). It consists of activations. Each
begins with ``ActivationStarted``; the first has ``WorkflowStarted`` before that. Then come the delivered jobs
(``INPUTS``) and the answers of the workflow (``OUTPUT_OF``). A job is an input that is not written yet, so jobs and
events share names and attributes.

The collections of kinds are derived from the table in ``kinds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from temporalex_django.core.history.kinds import KINDS, Thing

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
    judges them then, in a replay or not.
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
