"""The history of a run on a cluster in the form of this package, and what the run shows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, Completion, activation_events
from temporalex_django.core.history.events import CLOSING, HistoryEvent
from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.core.payloads import codec


class TemporalHistory:
    """The events of one run, made from its activations, and all its human tasks, open or closed."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self._activations = 0
        self.human_tasks: dict[str, HumanTaskState] = {}

    @property
    def closing(self) -> HistoryEvent | None:
        """The event that closed the run, or None."""
        return self.events[-1] if self.events and self.events[-1].kind in CLOSING else None

    def record(self, activation: Activation, completion: Completion, executor: Executor) -> None:
        """Add the events of the last activation of ``executor``, which has had an effect, to the history."""
        self._activations += 1
        stamp: dict[str, Any] = {"head": 0, "admit_updates": True, "max_pending": activation.max_pending}
        if activation.max_calls is not None:
            stamp |= {"max_calls": activation.max_calls, "max_bytes": activation.max_bytes}
        if activation.seed is not None:
            stamp["seed"] = activation.seed
        start = None if activation.start is None else dict(activation.start)
        for kind, attributes in activation_events(completion, start=start, stamp=stamp):
            self.add(kind, attributes, activation.now)
        self.human_tasks.update((change.task.key, change.task) for change in executor.human_task_changes())

    def add(self, kind: str, attributes: dict[str, Any], now: datetime) -> None:
        """Add an event to the last activation of the history.

        ``record`` calls this for each event of an activation. The run calls it for an event that closes it without its
        code.
        """
        number, activation = len(self.events) + 1, max(self._activations, 1)
        self.events.append(HistoryEvent(number, activation, kind, now, attributes))

    def state(self, executor: Executor, *, after: int) -> dict[str, Any]:
        """Return what people and programs see of the run, and its events after the number ``after``, as plain data."""
        state, closing = executor.visible_state()._asdict(), self.closing
        state["human_tasks"] = list(self.human_tasks.values())
        state["events"] = [[e.number, e.activation, e.kind, e.at, e.attributes] for e in self.events[after:]]
        state["closing"] = None if closing is None else closing.attributes
        if closing is not None:
            state |= {"status": CLOSING[closing.kind], "waiting_for": [], "waits": []}
        plain: dict[str, Any] = codec.to_plain(state, label="the state of a run", limit=_NO_LIMIT)
        return plain


#: A history may be longer than one payload. The server refuses an answer that it cannot carry.
_NO_LIMIT = 10**9
