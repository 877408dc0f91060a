"""The history of a run on a cluster in the form of this package, and what the run shows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, Completion, RunInfo
from temporalex_django.core.history.events import CLOSING, DELIVERED, ENGINE_VERSION, FORMAT, HistoryEvent
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.stored_fields import stored_fields
from temporalex_django.core.people.human_tasks import HumanTaskState


class TemporalHistory:
    """The events of one run, made from its activations, and its human tasks."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self.events: list[HistoryEvent] = []
        self.activations = 0
        self._human_tasks: dict[str, HumanTaskState] = {}

    @property
    def length(self) -> int:
        return len(self.events)

    @property
    def closing(self) -> HistoryEvent | None:
        """The event that closed the run, or None."""
        return self.events[-1] if self.events and self.events[-1].kind in CLOSING else None

    def record(self, activation: Activation, completion: Completion, executor: Executor) -> None:
        """Add the events of an activation that had an effect."""
        self.activations += 1
        now = activation.now
        if activation.start is not None:
            self._append("WorkflowStarted", self._started_attributes(activation.start), now)
        stamp: dict[str, Any] = {"head": 0, "admit_updates": True, "max_pending": activation.max_pending}
        if activation.seed is not None:
            stamp["seed"] = activation.seed
        if delivered := [job.attributes["seq"] for job in completion.jobs if job.kind == DELIVERED]:
            stamp["delivered"] = delivered
        if refused := [refusal.number for refusal in completion.refused if refusal.number is not None]:
            stamp["refused"] = refused
        self._append("ActivationStarted", stamp, now)
        for job in completion.jobs:
            if job.kind != DELIVERED:
                self._append(job.kind, job.attributes, now)
        for failed in completion.failed:
            self._append("SignalFailed", failed.event_attributes(), now)
        for command in completion.commands:
            self._append(command.event_kind, command.event_attributes(), now)
        self._note_tasks(executor, now)

    def close(self, kind: str, attributes: dict[str, Any], now: datetime) -> None:
        """Add an event that closes the run without its code."""
        self._append(kind, attributes, now)

    def _append(self, kind: str, attributes: dict[str, Any], now: datetime) -> None:
        number, activation = len(self.events) + 1, max(self.activations, 1)
        self.events.append(HistoryEvent(number, activation, kind, now, attributes))

    def _started_attributes(self, start: Any) -> dict[str, Any]:
        info = self._info
        attributes = {
            "workflow": info.workflow,
            "id": info.id,
            "run_id": info.run_id,
            "version": info.version,
            "args": start["args"],
            "seed": start["seed"],
            "engine": ENGINE_VERSION,
            "format": FORMAT,
            "attempt": info.attempt,
            "parent": info.parent,
        }
        if info.scheduled_for is not None:
            attributes["scheduled_for"] = info.scheduled_for.isoformat()
        optional = ("carried", "failed", "snapshot", "search_attributes")
        return attributes | {
            name: start[name] for name in optional if name in start and (start[name] or name == "carried")
        }

    def _note_tasks(self, executor: Executor, now: datetime) -> None:
        if (tasks := executor.opened_human_tasks) is None:
            return
        self._human_tasks.update((key, change.task) for key, change in tasks.changes.items())
        if executor.closed is not None:
            self._human_tasks.update((key, task.as_closed("run_closed", now)) for key, task in tasks.open_tasks.items())

    def state(self, executor: Executor, *, after: int) -> dict[str, Any]:
        """Return what the run shows, with its events behind the number ``after``, as plain data."""
        closing = self.closing
        status = ("running" if executor.is_busy else "waiting") if closing is None else CLOSING[closing.kind]
        is_open, declared = closing is None, executor.definition.stored
        state = {
            "status": status,
            "waiting_for": executor.waiting_for if is_open else [],
            "waits": executor.wait_infos if is_open else [],
            "accepts": executor.accepts if is_open else {"signals": [], "updates": []},
            "published": executor.published,
            "stored": stored_fields(executor.published, declared) if declared else None,
            "search_attributes": dict(executor.search_attributes),
            "closing": None if closing is None else closing.attributes,
            "version": self._info.version,
            "attempt": self._info.attempt,
            "human_tasks": list(self._human_tasks.values()),
            "events": [[e.number, e.activation, e.kind, e.at, e.attributes] for e in self.events[after:]],
        }
        return codec.to_plain(state, label="the state", limit=10**9)  # type: ignore[no-any-return]
