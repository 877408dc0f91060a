"""Workflows and activities of the tests of queues: many of them at a time, of several tenants."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from decimal import Decimal
from typing import Any

from temporalex_django import Ok, RetryPolicy, Workflow, activity, activity_context, api, errors
from tests.app.durable import held_by, note

_AGAIN = RetryPolicy(max_attempts=5, initial_interval=0.05)


@activity(queue="crowd", retry=_AGAIN)
def visit(path: str, tenant: str, seconds: float) -> None:
    """Notes when it came and when it went."""
    note(path, f"+ {tenant} {time.monotonic():.6f} {activity_context().attempt}")
    time.sleep(seconds)
    note(path, f"- {tenant} {time.monotonic():.6f}")


@activity(concurrency=2, concurrency_per_key=1)
def seldom(n: int) -> int:
    return n


@activity
def often(n: int) -> int:
    return n


_asleep: list[asyncio.Future[int]] = []


@activity
async def nap(together: int) -> int:
    """Until so many are asleep."""
    mine: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _asleep.append(mine)
    if len(_asleep) == together:
        for one in _asleep:
            one.set_result(together)
    return await mine


@activity(lane="process")
def compute(path: str, n: int) -> list[int]:
    print("what it prints is no answer")
    activity_context().heartbeat({"at": n})
    held_by(path)
    return [os.getpid(), sum(range(n))]


@activity(lane="process")
def weighs():  # it does not say what it gives
    return Decimal("1.10")


@activity(lane="process", retry=RetryPolicy(max_attempts=2, initial_interval=0.05))
def dies_once() -> int:
    if activity_context().attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return activity_context().attempt


@activity(lane="process", retry=RetryPolicy(max_attempts=5, non_retryable=["LookupError"]))
def misses() -> None:
    {}["nothing"]


@activity(lane="process", retry=RetryPolicy(max_attempts=5))
def declines() -> None:
    raise errors.ApplicationError("stolen", type="Declined", details={"code": 7}, non_retryable=True)


@activity(lane="process", heartbeat=30)
def spins(path: str) -> None:
    note(path, f"spins {os.getpid()}")
    while True:
        pass


@activity(lane="process")
def grinds(path: str) -> None:
    """In C, which keeps the interpreter to itself."""
    note(path, f"grinds {os.getpid()}")
    re.match("(a+)+$", "a" * 60 + "b")


@activity(lane="process")
def watches(path: str) -> None:
    note(path, "watches")
    while not activity_context().is_cancelled():
        time.sleep(0.01)
    note(path, "saw it")


class Laned(Workflow):
    """Activities that have processes; the last two until somebody has enough of them."""

    async def run(self, args: Any) -> Any:
        found = [await compute(args["hold"], 10), await dies_once()]
        for one in (misses, weighs, declines):
            try:
                await one()
            except errors.ActivityFailure as exc:
                found.append([exc.type, exc.attempts, exc.details if one is declines else exc.cause])
        await api.race(spins(args["log"]), watches(args["log"]), api.wait_for_signal("enough"))
        return Ok(found)


class Grinding(Workflow):
    """Until its process is ended."""

    async def run(self, args: Any) -> Any:
        await grinds(args["log"])
        return Ok(None)


class Crowd(Workflow):
    """``tenants`` are those of its visitors, ``path`` where they note it."""

    async def run(self, args: Any) -> Any:
        visits = [
            visit.options(concurrency_key=tenant)(args["path"], tenant, args["seconds"]) for tenant in args["tenants"]
        ]
        await api.parallel(visits, raise_errors=True)
        return Ok(len(visits))


class Mixture(Workflow):
    """``calls``: names of activities, each with a key or None."""

    async def run(self, args: Any) -> Any:
        known = {"seldom": seldom, "often": often}
        calls = [
            (known[name] if key is None else known[name].options(concurrency_key=key))(n)
            for n, (name, key) in enumerate(args["calls"])
        ]
        return Ok(await api.parallel(calls))


class Napping(Workflow):
    """Many at once do nothing until all do."""

    async def run(self, args: Any) -> Any:
        return Ok(sum(await api.parallel([nap(args["n"]) for _ in range(args["n"])])))


class StepByStep(Workflow):
    """A few activities, one behind the other."""

    async def run(self, args: Any) -> Any:
        total = 0
        for n in range(args["n"]):
            total += await often(n)
        return Ok(total)
