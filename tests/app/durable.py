"""Workflows and activities that the tests of storage, workers and faults start in real processes.

What activities do to the world is a line in a file: it survives whatever is killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from temporalex_django import (
    ContinueAsNew,
    Err,
    Ok,
    RetryPolicy,
    Stop,
    Workflow,
    activity,
    activity_context,
    api,
    update,
)
from temporalex_django.core.results import Reply
from temporalex_django.errors import ActivityFailure

PATIENCE = 30.0


def note(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


def held_by(path: str) -> None:
    """Wait until the test removes the file."""
    deadline = time.monotonic() + PATIENCE
    while Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@activity
def double(n: int) -> int:
    return 2 * n


@activity(local=True)
def double_here(n: int) -> int:
    return 2 * n


@activity
async def double_async(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


@activity(retry=RetryPolicy(max_attempts=4, initial_interval=0.05))
def recorded(path: str, hold: str | None = None) -> str:
    context = activity_context()
    note(path, f"{context.attempt} {context.idempotency_key} {os.getpid()}")
    if hold is not None:
        held_by(hold)
    return context.idempotency_key


@activity(retry=RetryPolicy(max_attempts=1))
def once(path: str, hold: str) -> None:
    recorded.__wrapped__(path, hold)


@activity(retry=RetryPolicy(max_attempts=3, initial_interval=0.05))
def flaky(path: str, failures: int) -> int:
    attempt = activity_context().attempt
    note(path, str(attempt))
    if attempt <= failures:
        raise ValueError(f"attempt {attempt}")
    return attempt


@activity(heartbeat=2.0, retry=RetryPolicy(max_attempts=2, initial_interval=0.05))
def silent(path: str, hold: str) -> Any:
    context = activity_context()
    note(path, f"{context.attempt} {context.heartbeat_details}")
    if context.attempt > 1:
        return context.heartbeat_details
    context.heartbeat({"at": 7})
    held_by(hold)
    return "too late"


@activity(heartbeat=20.0, retry=RetryPolicy(max_attempts=40, initial_interval=0.05))
def beating(hold: str) -> None:
    activity_context().heartbeat({"at": 7})
    held_by(hold)


@activity(start_to_close=0.3, retry=RetryPolicy(max_attempts=1))
def slow(hold: str) -> None:
    held_by(hold)


@activity
def asks(hold: str) -> int:
    """Holds a connection while it waits."""
    from django.contrib.auth import get_user_model

    found = get_user_model().objects.count()
    held_by(hold)
    return int(found)


@activity
async def asks_async(hold: str) -> int:
    from django.contrib.auth import get_user_model

    found = await get_user_model().objects.acount()
    await asyncio.to_thread(held_by, hold)
    return int(found)


@activity(atomic=True)
def write_user(name: str, path: str | None = None, hold: str | None = None, seconds: float = 0.0) -> int:
    """One business row, in the transaction of its run."""
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.create(username=name)
    if path is not None:
        note(path, str(os.getpid()))
    if hold is not None:
        held_by(hold)
    time.sleep(seconds)  # it computes for so long
    return int(user.pk)


@activity(atomic=True, retry=RetryPolicy(max_attempts=1))
def book(names: list[str]) -> None:
    """Lock business rows one after the other, in the given order."""
    from django.contrib.auth import get_user_model

    for name in names:
        user = get_user_model().objects.select_for_update().get(username=name)
        user.last_name = str(int(user.last_name or 0) + 1)
        user.save(update_fields=["last_name"])
        time.sleep(0.002)


@activity(atomic=True)
def pay(who: str, amount: int) -> None:
    """Onto an account, which is the last name of a user."""
    from django.contrib.auth import get_user_model

    user = get_user_model().objects.select_for_update().get(username=who)
    user.last_name = str(int(user.last_name or 0) + amount)
    user.save(update_fields=["last_name"])


class Transfer(Workflow):
    """Money leaves one account, an external effect, it comes onto another one."""

    async def run(self, args: Any) -> Any:
        await pay(args["source"], -args["amount"])
        key = await recorded(args["path"])
        await pay(args["target"], args["amount"])
        return Ok(key)


class Crosswise(Workflow):
    """Books the same rows as its rivals, in another order."""

    async def run(self, args: Any) -> Any:
        for _ in range(args["times"]):
            await book(args["names"])
        return Ok(None)


class Doubling(Workflow):
    """One activity."""

    async def run(self, args: Any) -> Any:
        return Ok(await double(args["n"]))


class LocalDoubling(Workflow):
    """Activities that skip the queue, then one that does not."""

    async def run(self, args: dict[str, int]) -> Ok[int]:
        n = args["n"]
        for _ in range(3):
            n = await double_here(n)
        return Ok(await double(n))


class AsyncDoubling(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.parallel([lambda n=n: double_async(n) for n in range(args["n"])]))


class Asking(Workflow):
    """So many activities of each kind that ask the database, all at once."""

    async def run(self, args: Any) -> Any:
        each = [asks, asks_async]
        return Ok(await api.parallel([lambda one=one: one(args["hold"]) for one in each * args["n"]]))


class Recording(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await recorded(args["path"], args.get("hold")))


class AtMostOnce(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            await once(args["path"], args["hold"])
        except ActivityFailure as exc:
            return Err(exc.type)
        return Ok("done")


class Flaky(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            return Ok(await flaky(args["path"], args["failures"]))
        except ActivityFailure as exc:
            return Err([exc.type, exc.attempts])


class Silent(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await silent(args["path"], args["hold"]))


class Beating(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await beating(args["hold"]))


class Slow(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            await slow(args["hold"])
        except ActivityFailure as exc:
            return Err(exc.timeout)
        return Ok("in time")


class Sleeping(Workflow):
    async def run(self, args: Any) -> Any:
        await api.sleep(args["seconds"])
        return Ok("awake")


class Booking(Workflow):
    """An atomic activity between two ordinary ones."""

    async def run(self, args: Any) -> Any:
        n = await double(1)
        user = await write_user(args["name"], args.get("path"), args.get("hold"), args.get("seconds", 0.0))
        return Ok([n, user])


class Tally(Workflow):
    """Counts by updates and signals until it is told to stop."""

    async def run(self, args: Any) -> Any:
        state = await api.phase(
            {"n": 0},
            update={"add": update(lambda n, s: Reply(s["n"] + n, {"n": s["n"] + n}))},
            signal={"stop": lambda _, s: Stop(s)},
        )
        return Ok(state["n"])


class Deadly(Workflow):
    """Kills whoever activates it, as often as the file has lines to give."""

    async def run(self, args: Any) -> Any:
        path = args["path"]
        # no workflow may do this; that `map` makes the calls hides them from the determinism guard
        count = next(map(os.stat, [path])).st_size
        if count < args["times"]:
            list(map(os.truncate, [path], [count + 1]))
            list(map(os._exit, [137]))
        return Ok(count)


class Stuck(Workflow):
    """Waits for a signal of a name that it is given."""

    async def run(self, args: Any) -> Any:
        await api.wait_for_signal(args.get("name", "go"))
        return Ok(None)


class Fleeting(Workflow):
    """Deleted a second after it has closed."""

    retention = 1

    async def run(self, args: Any) -> Ok:
        return Ok(args)


class Remembered(Workflow):
    """Deleted an hour after it has closed."""

    retention = 3600

    async def run(self, args: Any) -> Ok:
        return Ok(args)


class Entity(Workflow):
    """Goes on as a new run for ever, once a signal; what is an hour old is forgotten."""

    chain_retention = 3600

    async def run(self, args: Any) -> Any:
        count = args or 0
        if await api.wait_for_signal("next") == "stop":
            return Ok(count)
        return ContinueAsNew(count + 1)
