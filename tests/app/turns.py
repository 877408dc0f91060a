"""Workflows whose code takes its time, for the tests of what a turn may take."""

from __future__ import annotations

import time
from typing import Any

from temporalex_django import Async, NoReply, Ok, Reply, Stop, Workflow, api, update
from tests.app.durable import book


def spins(milliseconds: float) -> int:
    """How many rounds of ``compute`` take that long on this machine, when it has nothing else to do."""

    def computed() -> float:
        began = time.thread_time()
        compute(200_000)
        return time.thread_time() - began

    return max(1, int(200_000 * milliseconds / 1000 / min(computed() for _ in range(3))))


def compute(rounds: int) -> None:
    for _ in range(rounds):
        pass


class Ticking(Workflow):
    """Each signal takes ``spins`` rounds of computing.

    The result is how many came, and how many of them in their place.

    ``late``: its phase opens at the signal ``go``.
    """

    async def run(self, args: dict[str, int]) -> Ok[Any]:
        if args.get("late"):
            await api.wait_for_signal("go")

        def tick(number: int, seen: list[int]) -> NoReply:
            compute(args["spins"])
            return NoReply([seen[0] + 1, seen[1] + (number == seen[0])])

        def so_far(_: Any, seen: list[int]) -> Reply:
            return Reply(seen[0], seen)

        signals = {"tick": tick, "stop": lambda _, s: Stop(s)}
        state = await api.phase([0, 0], signal=signals, update={"so_far": so_far})
        return Ok(state)


class Counting(Workflow):
    """Takes so many signals ``tick`` one by one after ``go``, each with ``spins`` rounds of computing.

    The result is what they said.
    """

    async def run(self, args: dict[str, int]) -> Ok[Any]:
        await api.wait_for_signal("go")
        numbers = []
        for _ in range(args["ticks"]):
            numbers.append(await api.wait_for_signal("tick"))
            compute(args["spins"])
        return Ok(numbers)


class Contested(Workflow):
    """Books one row, again and again, beside updates of callers that have locked it."""

    async def run(self, args: dict[str, Any]) -> Ok[Any]:
        async def book_all() -> None:
            for _ in range(args["times"]):
                await book([args["name"]])

        return Ok(
            await api.phase(
                0,
                signal={"begin": lambda _, n: Async(book_all, n), "stop": lambda _, n: Stop(n)},
                update={"touch": update(lambda _, n: Reply(n + 1, n + 1))},
            )
        )
