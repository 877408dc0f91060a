"""The workflows of the benchmarks."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import Any, ClassVar

from temporalex_django import (
    ContinueAsNew,
    Done,
    Event,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    Step,
    Stop,
    Unique,
    Workflow,
    activity,
    api,
)
from temporalex_django.authoring.activity import Activity


@activity
def nothing() -> int:
    return 1


class One(Workflow):
    """One activity that does nothing."""

    async def run(self, args: Any) -> Any:
        return Ok(await nothing())


class Alarm(Workflow):
    """A timer of an hour, then an activity that does nothing."""

    async def run(self, args: Any) -> Any:
        await api.sleep(3600)
        return Ok(await nothing())


class TenInSequence(Workflow):
    """Ten activities that do nothing, one after the other."""

    async def run(self, args: Any) -> Any:
        for _ in range(10):
            await nothing()
        return Ok(None)


@activity(atomic=True)
def enter(number: int) -> int:
    from benchmarks.app.models import Entry

    Entry.objects.create(run="", number=number)
    return number


class TenEntries(Workflow):
    """Ten activities, each of which writes a business row in the transaction that records it."""

    async def run(self, args: Any) -> Any:
        for number in range(10):
            await enter(number)
        return Ok(None)


@activity
def rest(_: int) -> int:
    time.sleep(0.002)
    return 1


class TenRests(Workflow):
    """Ten activities that wait two milliseconds each."""

    async def run(self, args: Any) -> Any:
        for number in range(10):
            await rest(number)
        return Ok(None)


@activity
def effect(run: str) -> int:
    """Write a row in a transaction of its own, like an effect on another system, and return 1."""
    from benchmarks.app.models import Entry

    time.sleep(0.02)
    Entry.objects.create(run=run, number=1)
    return 1


class Effect(Workflow):
    """One activity with an effect, and one that does nothing."""

    async def run(self, args: str) -> Any:
        await effect(args)
        return Ok(await nothing())


class Branches(Workflow):
    """As many activities at the same time as its argument says."""

    async def run(self, args: int) -> Any:
        return Ok(len(await api.parallel([nothing] * args)))


class Greedy(Workflow):
    """Ten activities that do nothing; many runs of this class make a crowd."""

    async def run(self, args: Any) -> Any:
        for _ in range(10):
            await nothing()
        return Ok(None)


@activity
async def nap() -> None:
    await asyncio.sleep(1)


class Naps(Workflow):
    """As many naps at the same time as its argument says."""

    async def run(self, args: int) -> Any:
        await api.parallel([nap] * args, raise_errors=True)
        return Ok(None)


class Again(Workflow):
    """Continues as new as many times as its argument says."""

    async def run(self, args: int) -> Any:
        return ContinueAsNew(args - 1) if args > 1 else Ok(None)


@activity
def drop() -> None:
    """Do nothing; ``Drip`` calls it many times, one call after the other."""


class Drip(Workflow):
    """So many activities, one after the other, for as long as the measurement lasts."""

    async def run(self, args: int) -> Any:
        for _ in range(args):
            await drop()
        return Ok(None)


class Signals(Workflow):
    """One phase that takes signals forever."""

    async def run(self, args: Any) -> Any:
        signals = {"seen": lambda _, state: NoReply(state + 1), "stop": lambda _, state: Stop(state)}
        return Ok(await api.phase(0, signal=signals))


class TenSignals(Workflow):
    """One phase that ends with the tenth signal."""

    async def run(self, args: Any) -> Any:
        seen = {"seen": lambda _, state: Stop(state + 1) if state == 9 else NoReply(state + 1)}
        return Ok(await api.phase(0, signal=seen))


class FiveUpdates(Workflow):
    """One phase that ends with the fifth update."""

    async def run(self, args: Any) -> Any:
        def add(number: int, state: int) -> Any:
            total = state + number
            return Stop(total, total) if total >= 5 else Reply(total, total)

        return Ok(await api.phase(0, update={"add": add}))


class Sleeper(Workflow):
    """Sleeps for as many seconds as its argument says."""

    async def run(self, args: float) -> Any:
        await api.sleep(args)
        return Ok(None)


class Waker(Workflow):
    """Sleeps until a moment, in seconds since 1970."""

    async def run(self, args: float) -> Any:
        await api.sleep(max(args - api.now().timestamp(), 0.0))
        return Ok(None)


def _count(args: int, state: int) -> Reply:
    return Reply(state + args, state + args)


class Parked(Workflow):
    """Waits in a phase for updates."""

    stored: ClassVar = {"phase": str, "total": Decimal}
    search_attributes: ClassVar = {"customer": str, "total": Decimal}

    async def run(self, args: Any) -> Any:
        signals = {"stop": lambda _, state: Stop(state), "seen": lambda _, state: NoReply(state)}
        return Ok(await api.phase(0, update={"count": _count}, signal=signals))


def _step(name: str, *, reads: bool = False) -> type[Step]:
    """Create a step that does next to nothing; one that ``reads`` looks at its context, which is in the history."""

    def execute(self: Any, instance: Any, config: Any, context: Any) -> Event:
        return Event("ok", {"n": len(context.steps)} if reads else {"n": 1})

    return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__})


def _graph(name: str, initial: Any, transitions: dict[Any, Any]) -> type[GraphWorkflow]:
    body = {"unique": Unique(key=name.lower()), "initial": initial, "transitions": transitions, "__module__": __name__}
    return type(name, (GraphWorkflow,), body)


def _ten(name: str, *, reads: bool) -> type[GraphWorkflow]:
    """Create a graph of ten steps with a fan-out of three."""
    s = [_step(f"{name}{n}", reads=reads) for n in range(10)]
    line = {(s[n], "ok"): s[n + 1] for n in (0, 1, 2, 6, 7, 8)}
    fan: dict[Any, Any] = {(s[2], "ok"): [s[3], s[4], s[5]], **{(s[n], "ok"): s[6] for n in (3, 4, 5)}}
    return _graph(name, s[0], {**line, **fan, (s[9], "ok"): Done})


def _chain(name: str, length: int) -> type[GraphWorkflow]:
    s = [_step(f"{name}x{n}") for n in range(length)]
    return _graph(name, s[0], {**{(s[n], "ok"): s[n + 1] for n in range(length - 1)}, (s[-1], "ok"): Done})


def _fan(name: str, width: int) -> type[GraphWorkflow]:
    first, last = _step(f"{name}First"), _step(f"{name}Last")
    s = [_step(f"{name}x{n}") for n in range(width)]
    return _graph(name, first, {(first, "ok"): s, **{(step, "ok"): last for step in s}, (last, "ok"): Done})


Ten, TenReading = _ten("Ten", reads=False), _ten("TenReading", reads=True)
CHAINS = {length: _chain(f"Chain{length}", length) for length in (10, 100, 1000)}
FANS = {width: _fan(f"Fan{width}", width) for width in (10, 100, 1000)}


def _call(name: str) -> Activity[[], dict[str, int]]:
    def call() -> dict[str, int]:
        return {"n": 1}

    call.__qualname__ = call.__name__ = name
    return activity(call)


CALLS = [_call(f"call{n}") for n in range(10)]


class TenCalls(Workflow):
    """The ten steps of the graph as a function."""

    unique = Unique(key="tencalls")

    async def run(self, args: Any) -> Any:
        for call in CALLS[:3]:
            await call()
        await api.parallel(CALLS[3:6], raise_errors=True)
        for call in CALLS[6:]:
            await call()
        return Ok(None)
