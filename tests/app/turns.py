"""Workflows whose code takes its time, for the tests of what a turn may take."""

from __future__ import annotations

import time
from typing import Any

from temporalex_django import (
    Async,
    Done,
    Event,
    GraphWorkflow,
    NoReply,
    Ok,
    Reply,
    Step,
    Stop,
    Unique,
    WaitForEvent,
    Workflow,
    activity,
    api,
    update,
)
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


def serve(name: str) -> str:
    """One business row for each that is served, however often it is tried."""
    from django.contrib.auth import get_user_model

    get_user_model().objects.get_or_create(username=name)
    return name


@activity(atomic=True)
def serve_atomically(name: str) -> str:
    from django.contrib.auth import get_user_model

    return str(get_user_model().objects.create(username=name).username)


@activity
def serve_in_a_worker(name: str) -> str:
    return serve(name)


@activity(local=True)
def serve_in_the_turn(name: str) -> str:
    return serve(name)


SERVICES = {"atomic": serve_atomically, "external": serve_in_a_worker, "local": serve_in_the_turn}


class Counter(Workflow):
    """Serves one after the other by an activity of the kind that ``args`` names, as often as its handler says."""

    name = "test.ServingCounter"

    async def run(self, args: dict[str, Any]) -> Ok[Any]:
        service = SERVICES[args["kind"]]

        async def take(name: str, served: list[str]) -> Reply:
            for part in range(args.get("parts", 1)):
                await service(f"{name}.{part}")
            return Reply(len(served), [*served, name])

        return Ok(await api.phase([], update={"take": take}, signal={"stop": lambda _, served: Stop(served)}))


CUSTOMERS = [f"c{number}" for number in range(12)]


def _served(name: str) -> type[Step]:
    def execute(self: Any, instance: Any, config: Any, context: Any) -> Event:
        return Event("ok", serve_atomically.__wrapped__(name))

    return type(
        f"Serve{name.upper()}", (Step,), {"events": ("ok",), "atomic": True, "execute": execute, "__module__": __name__}
    )


class Opening(Step):
    events = ("open",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("open")


class Closing(Opening):
    """Joins what ``Opening`` forked."""


_waits = {name: WaitForEvent("take", key=name) for name in CUSTOMERS}
_steps = {name: _served(name) for name in CUSTOMERS}


class GraphCounter(GraphWorkflow):
    """Waits for all customers side by side, and serves each in an atomic step."""

    name = "test.GraphCounter"
    unique = Unique(key="counter")
    initial = Opening
    transitions = {
        (Opening, "open"): list(_waits.values()),
        **{(_waits[name], "take"): _steps[name] for name in CUSTOMERS},
        **{(_steps[name], "ok"): Closing for name in CUSTOMERS},
        (Closing, "open"): Done,
    }
