"""What becomes of a claimed run in a turn: decided here, purely; ``WorkflowEngine`` does it."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto

from temporalex_django.engine.storage import RunState

#: What the messages of one run may take of a turn that others share, in seconds.
SHARE = 0.010
#: How long a worker leaves a run alone that needs what it lacks and another one has, in seconds.
DEFER_SECONDS = 5.0


class TurnDecision(Enum):
    """What a turn does with a claimed run."""

    ANSWER = auto()  #: its chain is closed: what still came is answered as undelivered
    END = auto()  #: it is closed without running its code: it was terminated, its parent closed, or its time is over
    PARK = auto()  #: it is paused, or blocked and not due: its messages wait without waking anybody
    ATOMIC = auto()  #: an atomic activity of it is due: that takes a transaction of its own
    ACTIVATE = auto()  #: its code goes on


def decide(run: RunState, *, closing: bool, parked: bool, atomic: bool) -> TurnDecision:
    """The fate of one run.

    ``closing``, ``parked`` and ``atomic``: what ``ActivationStep.must_close``, ``parked`` and ``is_due`` say of it.
    """
    if run.closed:
        return TurnDecision.ANSWER
    if closing:
        return TurnDecision.END
    if parked:
        return TurnDecision.PARK
    return TurnDecision.ATOMIC if atomic else TurnDecision.ACTIVATE


def is_parked(run: RunState, now: datetime, *, force: bool) -> bool:
    """Whether it is paused, or blocked and not due: a blocked run is not tried again because a message came.

    ``force`` tries blocked runs although they are not due.
    """
    return not run.closed and bool(run.paused or (run.failed_tries and not force and not is_due(run.due_at, now)))


def is_due(moment: datetime | None, now: datetime) -> bool:
    """Whether a moment, if there is one, has come."""
    return moment is not None and moment <= now
