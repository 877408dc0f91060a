"""The pause of a run, a mark beside its status. Pure.

A paused run is not due, so no claim finds it: messages and results queue up, timers and deadlines wait. A turn that
claims it all the same, for a message, parks the message (``ActivationStep.park``).
"""

from __future__ import annotations

from datetime import datetime

from temporalex_django.core.messages.sender import Sender
from temporalex_django.engine.blocked import CRASH
from temporalex_django.engine.contracts.run_storage import RunState, RunWrite
from temporalex_django.engine.contracts.typed_dicts import BlockMark, PauseMark


def pause_run(run: RunState, *, reason: str, sender: Sender | None, now: datetime) -> RunWrite:
    """Pause a locked run; ``sender`` None means that code paused it."""
    run.paused = True
    run.due_at = None
    mark: PauseMark = {"since": now.isoformat(), "reason": reason, "by": None if sender is None else sender.as_dict()}
    return RunWrite(run=run, instance={"paused": mark})


def unpause_run(run: RunState, *, blocked: BlockMark | None, now: datetime) -> RunWrite:
    """End the pause: the run is due and reads all that came meanwhile.

    A run that is ``blocked`` because it ended processes is not made due. That would be a try that nobody asked for (see
    decision 22).
    """
    run.paused = False
    run.due_at = run.deadline if blocked is not None and blocked["code"] == CRASH else now
    return RunWrite(run=run, instance={"paused": None})
