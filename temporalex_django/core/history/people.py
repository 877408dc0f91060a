"""The people of a history, as far as four eyes need them. Pure; for hosts without an executor of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.history.prefix import COPIED
from temporalex_django.core.people import four_eyes
from temporalex_django.core.process import RECORDED_AS


def next_run_snapshot(events: Iterable[HistoryEvent]) -> dict[str, Any]:
    """Return the part of a snapshot that is about people, for a run that continues after these events."""
    snapshot: dict[str, Any] | None = None
    deciders: dict[str, None] = {}
    for event in events:
        attributes = event.attributes
        if event.kind == "WorkflowStarted":
            snapshot = attributes.get("snapshot")
        elif event.kind == "ActivationStarted" and COPIED in attributes:
            snapshot = four_eyes.snapshot_after_mark(snapshot, attributes[COPIED])
        elif event.kind == "SignalReceived" and attributes["name"] == RECORDED_AS and "question" in attributes:
            deciders[attributes["payload"].get("by_key", "")] = None
    deciders.pop("", None)  # decisions of code have no key
    return four_eyes.next_run_snapshot(snapshot, deciders) or {}
