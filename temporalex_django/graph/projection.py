"""Projections: instances of graphs, computed from the events of their runs.

An instance has the context and the execution history, which are stored nowhere else.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from temporalex_django.core.history import events as kinds
from temporalex_django.core.history.events import CLOSING, RESOLUTIONS, HistoryEvent, Job
from temporalex_django.core.process import RECORDED_AS
from temporalex_django.errors import TemporalexError
from temporalex_django.graph import engine
from temporalex_django.graph import instance as snapshot
from temporalex_django.graph.durable_run import parse_resume, step_result
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Progress, Result, TimerEvent
from temporalex_django.graph.steps import timer_event_of

#: The most bytes of step data in the cache, as JSON. Python's objects take about ten times as much.
_MAX_BYTES = 8_000_000


class Projection:
    """The instance of one run of a graph, computed from the history events that ``feed`` gets.

    ``activity_instances`` maps the command number of each open activity to the instance at the time when the activity
    was scheduled. ``head`` is the random token of the last activation, by which a history that was rolled back is
    noticed, ``head_at`` the number of its first event, and ``length`` the number of events so far.
    """

    def __init__(self, workflow: Any) -> None:
        self.workflow = workflow
        self.progress: Progress | None = None
        self.activity_instances: dict[int, Instance] = {}
        self.head: int | None = None
        self.head_at = 0
        self.length = 0
        self._step_of: dict[int, int] = {}  # step number by command number
        self._due_by_step: dict[int, str] = {}  # due times of open timers, by step number

    @property
    def instance(self) -> Instance:
        """The current instance. Raises ``TemporalexError`` for a run that has not started."""
        if self.progress is None:
            raise TemporalexError("the run has not started")
        return self.progress.instance

    def due_times(self, new_keys: Mapping[str, str]) -> dict[str, str]:
        """Return the due times (ISO texts) of the timers of waiting steps, by step key.

        A key in ``new_keys`` is replaced by its value, for a step that has another key in the next version.
        """
        instance = self.instance
        keys = instance.graph.keys
        return {
            new_keys.get(keys[i], keys[i]): due for i, due in self._due_by_step.items() if instance.waiting >> i & 1
        }

    def feed(self, events: Sequence[HistoryEvent]) -> None:
        """Apply further history events to the instance. They must end with the last event of an activation."""
        start = 0
        for index in range(1, len(events) + 1):
            if index == len(events) or events[index].activation != events[start].activation:
                self._apply_activation(events[start:index])
                start = index

    def _apply_activation(self, events: Sequence[HistoryEvent]) -> None:
        """Apply the events of one activation in the order in which the live run applied them."""
        now = events[0].at
        results: list[tuple[int, Result]] = []
        resumes: list[dict[str, Any]] = []
        for event in events:
            match event.kind:
                case "WorkflowStarted":
                    start = kinds.WORKFLOW_STARTED.read(event)
                    # No limit: data in the history was accepted under the limit of its time.
                    self.progress = Progress(initial_instance(self.workflow, start), limit=sys.maxsize)
                case "ActivationStarted":
                    self._apply_activation_start(event)
                case "SignalReceived":
                    signal = kinds.SIGNAL_RECEIVED.read(event)
                    if signal["name"] == RECORDED_AS:
                        resumes.append(signal["payload"])
                case kind if kind in RESOLUTIONS and event.attributes["seq"] in self._step_of:
                    results.append(self._pop_result(Job(kind, event.attributes)))
        progress = self.progress
        if progress is None:
            raise TemporalexError(f"a history begins with WorkflowStarted, not with {events[0].kind}")
        waiting_mask = (
            progress.instance.waiting
        )  # steps that waited at some time of this activation: a resume may come as soon as a step waits
        # The order within an activation (see decision 9): all results at once, then the messages one by one.
        if results:
            progress.fold(results, now)
            waiting_mask |= progress.instance.waiting
        for payload in resumes:
            progress.fold([parse_resume(progress.instance, payload)], now)
            waiting_mask |= progress.instance.waiting
        for event in events:
            self._apply_command(event, progress, waiting_mask)
        # The live run went on, so the graph of today decides otherwise than the one that made the history.
        if progress.failure is not None and events[-1].kind not in CLOSING:
            failure = progress.failure
            raise self._mismatch_error(
                f"step {failure['step']!r} fails there: {failure['message'] or failure['reason']}"
            )
        self.length = events[-1].number

    def _apply_activation_start(self, event: HistoryEvent) -> None:
        stamp = kinds.ACTIVATION_STARTED.read(event)
        progress, copied = self.progress, stamp.get("copied")
        if progress is not None and not self.head_at:
            progress.begin(event.at)
        # A reset or fork copies the events of the source run, which has another id.
        if progress is not None and copied is not None:
            progress.instance = progress.instance.changed(id=copied["id"])
        self.head, self.head_at = stamp.get("head"), event.number

    def _pop_result(self, job: Job) -> tuple[int, Result]:
        """Return ``(step number, result)``. The command no longer counts as open afterwards."""
        command = job.attributes["seq"]
        number = self._step_of.pop(command)
        self.activity_instances.pop(command, None)
        assert self.progress is not None
        if job.kind == "TimerFired":
            timer_event = timer_event_of(self.progress.instance.graph.steps[number])
            if timer_event is None:
                raise TemporalexError(f"step {self.progress.instance.graph.keys[number]!r} no longer has a timer")
            return number, TimerEvent(timer_event)
        return number, step_result(job)

    def _apply_command(self, event: HistoryEvent, progress: Progress, waiting_mask: int) -> None:
        """Raise ``TemporalexError`` if the event does not fit. ``waiting_mask`` has steps that waited at some time."""
        match event.kind:
            case "ActivityScheduled":
                activity = kinds.ACTIVITY_SCHEDULED.read(event)
                number = self._step_of[activity["seq"]] = self._step_number(activity["args"][0])
                if not progress.instance.active >> number & 1 and not progress.instance.closed:
                    raise self._mismatch_error(f"step {activity['args'][0]!r} was started, but is not active there")
                self.activity_instances[activity["seq"]] = progress.instance
            case "TimerStarted" if "step" in event.attributes:  # other timers belong to human tasks
                timer = kinds.TIMER_STARTED.read(event)
                number = self._step_of[timer["seq"]] = self._step_number(timer["step"])
                if not waiting_mask >> number & 1 and not progress.instance.closed:
                    raise self._mismatch_error(f"step {timer['step']!r} had a timer, but does not wait there")
                self._due_by_step[number] = timer["due"]
            case "TimerCancelled":
                self._step_of.pop(kinds.TIMER_CANCELLED.read(event)["seq"], None)
            case "WorkflowFailed" | "WorkflowTimedOut" if (
                not progress.instance.closed
            ):  # the run failed, but no step did: its class had an error, for example
                attributes = event.attributes
                progress.instance = progress.instance.changed(
                    status="failed", reason=attributes.get("message") or attributes.get("timeout"), **engine.NO_STEPS
                )
            case kind if kind in CLOSING and not progress.instance.closed:
                progress.instance = engine.cancel(progress.instance)

    def _mismatch_error(self, reason: str) -> TemporalexError:
        return TemporalexError(
            f"the history does not match the graph {self.workflow.__name__} as it is now: {reason}. Restore the "
            "code, or run the old code as a separate version"
        )

    def _step_number(self, key: str) -> int:
        assert self.progress is not None
        graph = self.progress.instance.graph
        step = graph.by_key.get(key)
        if step is None:
            raise TemporalexError(f"{self.workflow.__name__} no longer has a step {key!r}")
        return graph.number[step]


def initial_instance(workflow: Any, attributes: Mapping[str, Any]) -> Instance:
    """Return the instance that a run starts with, from the attributes of ``WorkflowStarted``."""
    return snapshot.new_instance(
        workflow,
        id=attributes["id"],
        version=attributes["version"],
        args=attributes.get("args"),
        data=attributes.get("snapshot"),
    )


def project(workflow: Any, history: Sequence[HistoryEvent]) -> Instance:
    """Return the instance at the end of ``history``, the whole history of a run of that workflow."""
    projection = Projection(workflow)
    projection.feed(history)
    return projection.instance


class Projections:
    """A thread-safe cache of projections (instances computed from histories) of the runs that were read last.

    ``events(run_id, after)`` reads the events of a run whose number is higher than ``after``. ``limit`` is the largest
    number of runs in the cache. ``get`` adds the newest events to a cached projection. A projection may hold events
    that were rolled back since; its ``head`` then differs from the history, and it is computed anew.
    """

    def __init__(self, events: Callable[[UUID, int], Sequence[HistoryEvent]], *, limit: int = 500) -> None:
        self._events = events
        self._limit = limit
        self._cached: OrderedDict[UUID, Projection] = OrderedDict()
        self._sizes: dict[UUID, int] = {}  # sizes at the time of storing, to subtract the same later
        self._size = 0
        self._lock = threading.Lock()

    def get(self, run_id: UUID, workflow: Any) -> Projection:
        """Return the projection of a run of the class ``workflow``.

        Raises ``TemporalexError`` if the history does not fit the class.
        """
        with self._lock:
            # Take it out while it is fed: no other thread may read it halfway, and an error leaves no broken one
            # behind.
            cached_projection = self._remove(run_id)
        if cached_projection is not None and cached_projection.workflow is workflow:
            # Read the last known activation again: if its head differs, it was rolled back (see decision 5).
            new_events = self._events(run_id, cached_projection.head_at - 1)
            if new_events and new_events[0].attributes.get("head") == cached_projection.head:
                cached_projection.feed([event for event in new_events if event.number > cached_projection.length])
                return self._store(run_id, cached_projection)
        projection = Projection(workflow)
        projection.feed(self._events(run_id, 0))
        return self._store(run_id, projection)

    def _store(self, run_id: UUID, projection: Projection) -> Projection:
        # A closed run gets no more events, so keeping its projection would save nothing but this one read.
        if projection.instance.closed:
            return projection
        with self._lock:
            self._remove(run_id)  # another thread may have stored its own
            self._cached[run_id] = projection
            self._sizes[run_id] = projection.instance.size
            self._size += projection.instance.size
            while len(self._cached) > self._limit or (self._size > _MAX_BYTES and len(self._cached) > 1):
                self._remove(next(iter(self._cached)))
        return projection

    def _remove(self, run_id: UUID) -> Projection | None:
        """Remove the projection. The caller holds the lock."""
        self._size -= self._sizes.pop(run_id, 0)
        return self._cached.pop(run_id, None)
