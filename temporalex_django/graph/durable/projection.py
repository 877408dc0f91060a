"""A history as an instance: context and execution history are computed from the events when somebody reads them."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from temporalex_django.core.history.events import CLOSING, RESOLUTIONS, HistoryEvent, Job
from temporalex_django.core.history.prefix import COPIED
from temporalex_django.core.process import RECORDED_AS
from temporalex_django.errors import TemporalexError
from temporalex_django.graph import engine, snapshot
from temporalex_django.graph.durable.run import result_of, resumption
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import Fired, Progress, Result
from temporalex_django.graph.steps import timer_of

#: Of all that the steps of the runs in memory gave, as JSON; Python's objects take about ten times as much.
_BYTES = 8_000_000


class Projection:
    """Follows one run.

    ``begun[number]`` is the instance as it was when that activity, which is still open, was scheduled.
    """

    def __init__(self, workflow: Any) -> None:
        self.workflow = workflow
        self.progress: Progress | None = None
        self.begun: dict[int, Instance] = {}
        self.head: int | None = None
        self.head_at = 0
        self.length = 0
        self._step_of: dict[int, int] = {}  # number of the step by number of the command
        self._due: dict[int, str] = {}  # of open timers, by number of the step

    @property
    def instance(self) -> Instance:
        """Raises ``TemporalexError`` for a run that has done nothing yet."""
        if self.progress is None:
            raise TemporalexError("the run has not begun")
        return self.progress.instance

    def due(self, names: Mapping[str, str]) -> dict[str, str]:
        """When the timers of the steps that wait are due, by key; ``names`` maps keys to others."""
        instance = self.instance
        keys = instance.graph.keys
        return {names.get(keys[i], keys[i]): due for i, due in self._due.items() if instance.waiting >> i & 1}

    def feed(self, events: Sequence[HistoryEvent]) -> None:
        """Go on through further events, which end at the end of an activation."""
        start = 0
        for index in range(1, len(events) + 1):
            if index == len(events) or events[index].activation != events[start].activation:
                self._activation(events[start:index])
                start = index

    def _activation(self, events: Sequence[HistoryEvent]) -> None:
        now = events[0].at
        ended: list[tuple[int, Result]] = []
        resumes: list[dict[str, Any]] = []
        for event in events:
            attributes = event.attributes
            match event.kind:
                case "WorkflowStarted":
                    # what is in the history was accepted, whatever the limit was then
                    self.progress = Progress(started(self.workflow, attributes), limit=sys.maxsize)
                case "ActivationStarted":
                    self._began(event)
                case "SignalReceived" if attributes["name"] == RECORDED_AS:
                    resumes.append(attributes["payload"])
                case kind if kind in RESOLUTIONS and attributes["seq"] in self._step_of:
                    ended.append(self._ended(Job(kind, attributes)))
        progress = self.progress
        if progress is None:
            raise TemporalexError(f"a history begins with WorkflowStarted, not with {events[0].kind}")
        waited = progress.instance.waiting  # at some time of the activation: a resume may come as soon as a step waits
        if ended:
            progress.fold(ended, now)
            waited |= progress.instance.waiting
        for payload in resumes:
            progress.fold([resumption(progress.instance, payload)], now)
            waited |= progress.instance.waiting
        for event in events:
            self._command(event, progress, waited)
        if progress.failed is not None and events[-1].kind not in CLOSING:
            facts = progress.failed
            raise self._parted(f"step {facts['step']!r} fails in it: {facts['message'] or facts['reason']}")
        self.length = events[-1].number

    def _began(self, event: HistoryEvent) -> None:
        """An activation: the first one, one in which a run took up another one, or any other."""
        progress, copied = self.progress, event.attributes.get(COPIED)
        if progress is not None and not self.head_at:
            progress.begin(event.at)
        if progress is not None and copied is not None:
            progress.instance = progress.instance.changed(id=copied["id"])
        self.head, self.head_at = event.attributes.get("head"), event.number

    def _ended(self, job: Job) -> tuple[int, Result]:
        command = job.attributes["seq"]
        number = self._step_of.pop(command)
        self.begun.pop(command, None)
        assert self.progress is not None
        if job.kind == "TimerFired":
            timer = timer_of(self.progress.instance.graph.steps[number])
            if timer is None:
                raise TemporalexError(f"step {self.progress.instance.graph.keys[number]!r} has no timer any more")
            return number, Fired(timer[1])
        return number, result_of(job)

    def _command(self, event: HistoryEvent, progress: Progress, waited: int) -> None:
        attributes = event.attributes
        match event.kind:
            case "ActivityScheduled":
                number = self._step_of[attributes["seq"]] = self._number(attributes["args"][0])
                if not progress.instance.active >> number & 1 and not progress.instance.closed:
                    raise self._parted(f"step {attributes['args'][0]!r} was begun, and is not active in it")
                self.begun[attributes["seq"]] = progress.instance
            case "TimerStarted" if "step" in attributes:  # others are of human tasks
                number = self._step_of[attributes["seq"]] = self._number(attributes["step"])
                if not waited >> number & 1 and not progress.instance.closed:
                    raise self._parted(f"step {attributes['step']!r} had a timer, and does not wait in it")
                self._due[number] = attributes["due"]
            case "TimerCancelled":
                self._step_of.pop(attributes["seq"], None)
            case "WorkflowFailed" | "WorkflowTimedOut" if (
                not progress.instance.closed
            ):  # not by a step: its class was wrong, say
                progress.instance = progress.instance.changed(
                    status="failed", reason=attributes.get("message") or attributes.get("timeout"), **engine.NONE
                )
            case kind if kind in CLOSING and not progress.instance.closed:
                progress.instance = engine.cancel(progress.instance)

    def _parted(self, why: str) -> TemporalexError:
        return TemporalexError(
            f"the history does not fit the graph {self.workflow.__name__} as it is now: {why}. Put the code back, or run the old one "
            "as a version of its own"
        )

    def _number(self, key: str) -> int:
        assert self.progress is not None
        graph = self.progress.instance.graph
        step = graph.by_key.get(key)
        if step is None:
            raise TemporalexError(f"{self.workflow.__name__} has no step {key!r} any more")
        return graph.number[step]


def started(workflow: Any, attributes: Mapping[str, Any]) -> Instance:
    """The instance with which a run begins, from the attributes of ``WorkflowStarted``."""
    return snapshot.begun(
        workflow,
        id=attributes["id"],
        version=attributes["version"],
        args=attributes.get("args"),
        data=attributes.get("snapshot"),
    )


def project(workflow: Any, history: Sequence[HistoryEvent]) -> Instance:
    """The instance that a whole history comes to."""
    projection = Projection(workflow)
    projection.feed(history)
    return projection.instance


class Projections:
    """Those of the runs that were read last, brought up to date when they are asked for. Thread-safe.

    ``events(run, after)`` reads a history behind a ``seq``. One that followed events which were rolled back is known by
    its head.
    """

    def __init__(self, events: Callable[[UUID, int], Sequence[HistoryEvent]], *, most: int = 500) -> None:
        self._events = events
        self._most = most
        self._kept: OrderedDict[UUID, Projection] = OrderedDict()
        self._sizes: dict[UUID, int] = {}  # as they were when they were kept
        self._size = 0
        self._lock = threading.Lock()

    def of(self, run_id: UUID, workflow: Any) -> Projection:
        """Raises ``TemporalexError`` when the history does not fit the class."""
        with self._lock:
            kept = self._dropped(run_id)
        if kept is not None and kept.workflow is workflow:
            newer = self._events(run_id, kept.head_at - 1)
            if newer and newer[0].attributes.get("head") == kept.head:
                kept.feed([event for event in newer if event.number > kept.length])
                return self._keep(run_id, kept)
        fresh = Projection(workflow)
        fresh.feed(self._events(run_id, 0))
        return self._keep(run_id, fresh)

    def _keep(self, run_id: UUID, projection: Projection) -> Projection:
        if projection.instance.closed:  # nobody will bring it up to date
            return projection
        with self._lock:
            self._dropped(run_id)  # another thread may have kept its own
            self._kept[run_id] = projection
            self._sizes[run_id] = projection.instance.size
            self._size += projection.instance.size
            while len(self._kept) > self._most or (self._size > _BYTES and len(self._kept) > 1):
                self._dropped(next(iter(self._kept)))
        return projection

    def _dropped(self, run_id: UUID) -> Projection | None:
        self._size -= self._sizes.pop(run_id, 0)
        return self._kept.pop(run_id, None)
