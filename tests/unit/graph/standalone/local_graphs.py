"""Graphs on an engine in memory whose time tests move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalex_django import Done, Event, GraphWorkflow, Step, Unique
from temporalex_django.graph import Engine, Instance, LocalRunner
from tests.support.waiting import wait_for

START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Later:
    due: datetime
    fn: Callable[[], None] | None

    def cancel(self) -> None:
        self.fn = None


@dataclass
class Time:
    """Clock and timers of a runner; nothing passes by itself."""

    now: datetime = START
    started: list[Later] = field(default_factory=list)

    def clock(self) -> datetime:
        return self.now

    def start(self, seconds: float, fn: Callable[[], None]) -> Later:
        later = Later(self.now + timedelta(seconds=seconds), fn)
        self.started.append(later)
        return later

    def stop(self) -> None:
        self.started.clear()

    @property
    def pending(self) -> list[float]:
        return sorted((later.due - self.now).total_seconds() for later in self.started if later.fn is not None)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for later in [one for one in self.started if one.due <= self.now]:
            self.started.remove(later)
            if later.fn is not None:
                later.fn()


@contextmanager
def running(storage: Any = None, *, name: str = "local", **options: Any) -> Iterator[tuple[Engine, Time]]:
    time = Time()
    made = Engine(name, storage, (LocalRunner, {"clock": time.clock, "timers": time, **options}))
    with made:
        yield made, time


def step(name: str, *events: str, does: Any = None, **more: Any) -> type[Step]:
    def execute(self: Any, instance: Any, config: Any, context: Any) -> Any:
        return Event(self.events[0], {"config": config}) if does is None else does(instance, config, context)

    return type(name, (Step,), {"events": events or ("ok",), "execute": execute, "__module__": __name__, **more})


def line(*steps: Any, **more: Any) -> type[GraphWorkflow]:
    """One behind the other, by the first event of each; its other events end it."""
    transitions: dict[Any, Any] = {}
    for this, following in zip(steps, [*steps[1:], Done], strict=True):
        transitions |= {(this, event): Done for event in this.events}
        transitions[this, this.events[0]] = following
    body = {"unique": Unique(key="line"), "initial": steps[0], "transitions": transitions, "engine": "local"}
    return type("Line", (GraphWorkflow,), {**body, "__module__": __name__, **more})


First, Second, Left, Right, Join = (step(name) for name in ("First", "Second", "Left", "Right", "Join"))


def parked(handle: Any) -> Instance:
    return wait_for(lambda: (found := handle.instance()).status == "waiting" and found, what="it waits")
