"""The decision of a turn about a claimed run, without I/O; ``WorkflowEngine`` carries it out."""

from __future__ import annotations

from datetime import datetime
from enum import Enum, auto

from temporalex_django.core.names import BEFORE_ALL
from temporalex_django.engine.contracts.records import RunState


class TurnDecision(Enum):
    """The actions that a turn can take on a run that it has claimed."""

    #: The chain is closed: late messages are answered as undelivered.
    ANSWER = auto()
    #: The run is closed without running its code: it was terminated, its parent closed, or its time is over.
    END = auto()
    #: The run is paused, or blocked and not due, or begins later: its messages wait and make nothing due.
    PARK = auto()
    #: An atomic activity of the run is due, which takes a transaction of its own (see decision 4).
    ATOMIC = auto()
    #: The code of the run continues.
    ACTIVATE = auto()


def decide(run: RunState, *, closing: bool, parked: bool, atomic: bool, early: bool = False) -> TurnDecision:
    """Return the action that a turn takes on a claimed run.

    ``closing`` is True if the run must be closed without running its code. ``parked`` is True if its code may not run
    now, because the run is paused, or blocked and not due. ``atomic`` is True if an atomic activity of the run is due,
    and ``early`` if the run begins later.
    """
    if run.closed:
        return TurnDecision.ANSWER
    if closing:
        return TurnDecision.END
    if parked or early:
        return TurnDecision.PARK
    if atomic:
        return TurnDecision.ATOMIC
    return TurnDecision.ACTIVATE


def is_parked(run: RunState, now: datetime, *, force: bool) -> bool:
    """Return True if the run is paused, or blocked and not due; its messages then wait, and its code does not run.

    A message does not make a blocked run try again. With ``force``, a blocked run that is not due does not count.
    """
    return not run.closed and bool(run.paused or (run.failed_tries and not force and not is_due(run.due_at, now)))


def is_unstarted(run: RunState) -> bool:
    """Return True if the run has not executed any of its code: it has had no turn, and no turn of it has failed."""
    return run.head_token is None and not run.closed and not run.failed_tries


def may_begin_later(run: RunState, now: datetime) -> bool:
    """Return True if the run has had no turn, is not paused and is due later than ``now``.

    Read the record of such a run to see if its start was delayed. If it was not, a clock was set back, or the run waits
    after a crash.
    """
    return is_unstarted(run) and not run.paused and run.due_at is not None and run.due_at > now


def begins_later(run: RunState, starts_at: datetime | None, now: datetime) -> bool:
    """Return True if the run has had no turn, and begins at ``starts_at``, which is later than ``now``."""
    return is_unstarted(run) and starts_at is not None and starts_at > now


def is_due(moment: datetime | None, now: datetime) -> bool:
    """Return True if ``moment`` is set and has come."""
    return moment is not None and moment <= now


def has_come(moment: datetime | None, now: datetime) -> bool:
    """Return True if ``moment`` is set, has come, and is not in place of a time that cannot be read.

    It is for times that decide about a run. ``is_due`` is for the time that only wakes it.
    """
    return moment is not None and BEFORE_ALL < moment <= now
