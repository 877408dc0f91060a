"""A run that somebody paused: a mark beside its status. Pure.

A paused run is not due, so no claim looks at it: messages and results queue, timers and deadlines wait. Whoever claims
it all the same, for a message, parks that (``ActivationStep.park``).
"""

from __future__ import annotations

from datetime import datetime

from temporalex_django.core.senders import Sender
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.storage import RunState, RunWrite
from temporalex_django.engine.typed_dicts import BlockMark, PauseMark


def pause_run(run: RunState, *, reason: str, sender: Sender | None, now: datetime) -> RunWrite:
    """Put the mark on a locked run. ``sender`` None: code."""
    run.paused = True
    run.due_at = None
    mark: PauseMark = {"since": now.isoformat(), "reason": reason, "by": None if sender is None else sender.as_dict()}
    return RunWrite(run=run, instance={"paused": mark})


def unpause_run(run: RunState, *, blocked: BlockMark | None, now: datetime) -> RunWrite:
    """Take it off: the run is due, and finds all that came meanwhile.

    One that is ``blocked`` because it ended processes is not due: that would be a try nobody asked for.
    """
    run.paused = False
    run.due_at = run.deadline if blocked is not None and blocked["code"] == CRASH else now
    return RunWrite(run=run, instance={"paused": None})
