"""What becomes of a claimed run in a turn: decided here, purely; ``WorkflowEngine`` does it."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto

from temporalex_django.engine.storage import RunState

#: What the messages of one run may take of a turn that others share, in seconds.
SHARE = 0.010
#: How long a worker leaves a run alone that needs what it lacks and another one has, in seconds.
LEFT_FOR = 5.0


class Fate(Enum):
    """What a turn does with a claimed run."""

    ANSWER = auto()  #: its chain is closed: what still came is answered as undelivered
    END = auto()  #: it is closed without running its code: it was terminated, its parent closed, or its time is over
    PARK = auto()  #: it is paused, or blocked and not due: its messages wait without waking anybody
    ATOMIC = auto()  #: an atomic activity of it is due: that takes a transaction of its own
    ACTIVATE = auto()  #: its code goes on


def fate_of(run: RunState, *, ends: bool, waits: bool, atomic: bool) -> Fate:
    """The fate of one run.

    ``ends``, ``waits`` and ``atomic``: what ``Advance.ends``, ``waits`` and ``due`` say of it.
    """
    if run.closed:
        return Fate.ANSWER
    if ends:
        return Fate.END
    if waits:
        return Fate.PARK
    return Fate.ATOMIC if atomic else Fate.ACTIVATE


def waits(run: RunState, now: datetime, *, force: bool) -> bool:
    """Whether it is paused, or blocked and not due: a blocked run is not tried again because a message came.

    ``force`` tries blocked runs although they are not due.
    """
    return not run.closed and bool(run.paused or (run.failed_tries and not force and not due(run.due_at, now)))


def due(moment: datetime | None, now: datetime) -> bool:
    """Whether a moment, if there is one, has come."""
    return moment is not None and moment <= now
