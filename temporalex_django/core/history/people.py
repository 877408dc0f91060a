"""The people in a history who matter for four eyes (a different person must decide).

The function is pure, for hosts without an executor of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from temporalex_django.core import human_tasks
from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.process import RECORDED_AS


def next_run_snapshot(events: Iterable[HistoryEvent]) -> dict[str, Any]:
    """Return who started a chain and who may not decide in it, for the run that continues after these events.

    The result is a part of the snapshot: the data with which the next run starts besides its input. See
    ``core.human_tasks``.
    """
    snapshot: dict[str, Any] | None = None
    deciders: dict[str, None] = {}
    for event in events:
        match event.kind:
            case "WorkflowStarted":
                snapshot = kinds.WORKFLOW_STARTED.read(event).get("snapshot")
            case "ActivationStarted":
                if (mark := kinds.ACTIVATION_STARTED.read(event).get("copied")) is not None:
                    snapshot = human_tasks.snapshot_after_mark(snapshot, mark)
            case "SignalReceived":
                signal = kinds.SIGNAL_RECEIVED.read(event)
                if signal["name"] == RECORDED_AS and "question" in signal:
                    deciders[signal["payload"].get("by_key", "")] = None
    deciders.pop("", None)  # decisions of code have no key
    return human_tasks.next_run_snapshot(snapshot, deciders) or {}
