"""Workflows and activities that end the process that runs them, or hang it, as long as a file is there.

No workflow may do such things; that C code calls C code (``map`` a function that is not written in Python) hides it
from the determinism guard, also from that of Python 3.11.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from pathlib import Path
from typing import Any

from temporalex_django import Ok, Reply, RetryPolicy, Stop, Workflow, activity, activity_context, api, query
from tests.app.durable import double, note

_HOPELESS = ("(a+)+$", "a" * 60 + "b")


def is_there(path: str) -> bool:
    return next(map(os.access, [path], [os.F_OK]))


def segfault_if(path: str) -> None:
    if is_there(path):
        list(map(ctypes.string_at, [0]))


def hang_in_c_if(path: str) -> None:
    """A regular expression keeps the interpreter to itself."""
    if is_there(path):
        re.match(*_HOPELESS)


def end_process(path: str) -> None:
    """End this process; with a path the test is asked to end the whole container, as a limit of its memory does."""
    if path:
        list(map(os.mkdir, [path]))
        re.match(*_HOPELESS)
    list(map(ctypes.string_at, [0]))


class Poison(Workflow):
    """Ends whoever activates it, every time."""

    async def run(self, args: Any) -> Any:
        end_process(args["path"])
        return Ok()


class DeadlyToReplay(Workflow):
    """Ends whoever activates or rebuilds it while the file is there; what it does then is recorded long ago."""

    async def run(self, args: Any) -> Any:
        n = await double(1)
        segfault_if(args["path"])
        await api.wait_for_signal("go")
        return Ok(n)


class HangingToReplay(Workflow):
    """Keeps whoever rebuilds it busy while the file is there; what it does then is recorded long ago."""

    async def run(self, args: Any) -> Any:
        n = await double(1)
        hang_in_c_if(args["path"])
        await api.wait_for_signal("go")
        return Ok(n)


class DeadlyToAsk(Workflow):
    """Ends whoever asks it or updates it while the file is there."""

    @query("ask")
    @staticmethod
    def ask(state: str) -> str:
        segfault_if(state)
        return "harmless"

    async def run(self, args: Any) -> Any:
        api.publish_state(args["path"])
        state = await api.phase(
            args["path"],
            update={"poke": lambda args, s: (segfault_if(s), Reply(1, s))[1]},
            signal={"stop": lambda _, s: Stop(s)},
        )
        return Ok(state)


class Hanging(Workflow):
    """Hangs while the file is there: ``in_c``, or in a loop that catches everything."""

    async def run(self, args: Any) -> Any:
        if args["in_c"]:
            hang_in_c_if(args["path"])
        while is_there(args["path"]):
            try:
                while True:
                    pass
            except BaseException:
                pass
        return Ok("done")


class BusyWhile(Workflow):
    """Computes while the file is there, and comes to waits all the time."""

    async def run(self, args: Any) -> Any:
        while is_there(args["path"]):
            await api.wait_condition(lambda: True)
        return Ok("done")


@activity
def deadly(path: str, name: str = "deadly") -> None:
    """Ends its worker, every time."""
    note(path, f"{name} {activity_context().attempt}")
    os._exit(139)


@activity
def poisonous(path: str) -> None:
    """Ends its worker, every time."""
    end_process(path)


@activity(retry=RetryPolicy(max_attempts=0))
def patient(path: str, hold: str, name: str) -> str:
    """An innocent one that takes a while."""
    note(path, f"{name} {activity_context().attempt}")
    deadline = time.monotonic() + 30
    while Path(hold).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return name


@activity
def hopeless(path: str) -> None:
    """Keeps the interpreter to itself for ever."""
    note(path, str(activity_context().attempt))
    re.match(*_HOPELESS)


class DeadlyActivity(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await deadly(args["path"]))


class PoisonousActivity(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await poisonous(args["path"]))


class Patient(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await patient(args["path"], args["hold"], args["name"]))


class HopelessActivity(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await hopeless(args["path"]))
