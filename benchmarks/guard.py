"""``guard``: the cost of the determinism guard for the pure executor, in rounds with it on and off in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any

from temporalex_django.core.determinism import guard
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.core.history.events import Job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: These flows are compiled twice, since code that was instrumented once stays so.
FLOWS = """
from temporalex_django import Ok, Workflow, activity

@activity
def double(value: int) -> int:
    return 2 * value

class Steps(Workflow):
    async def run(self, args):
        total = 0
        for number in range(args):
            total += await double(number)
        return Ok(total)

class Suspect(Workflow):
    async def run(self, args):
        total, add = 0, max
        for number in range(args):
            total = add(total, await double(number))
        return Ok(total)

class Busy(Workflow):
    def part(self, number):
        return min(number, 10)

    async def run(self, args):
        seen = []
        for number in range(args):
            seen.append(self.part(number))
            if len(seen) > 100:
                seen.clear()
        return Ok(len(seen))
"""


def run(count: int, rounds: int) -> dict[str, Any]:
    """Measure the rates with the guard on and off.

    ``steps``: activity steps/s of one run; ``suspects``: the same steps, each with a call of a variable; ``calls``:
    nothing but calls.

    On Python 3.11 the guard checks calls only in runs whose code is suspect; a variable that is called is enough.
    """
    before = guard.mode()
    flows = {mode: _flows(mode) for mode in ("on", "off")}
    figures: dict[str, Any] = {}
    try:
        for name, cls, once in (("steps", "Steps", _steps), ("suspects", "Suspect", _steps), ("calls", "Busy", _calls)):
            seconds: dict[str, list[float]] = {"on": [], "off": []}
            for _ in range(rounds):
                for mode, measured in seconds.items():
                    guard.configure("error" if mode == "on" else "off")
                    measured.append(_timed(once, flows[mode][cls], count))
            figures[f"{name}_per_s"] = {mode: round(count / median(values)) for mode, values in seconds.items()}
            figures[f"{name}_cost"] = round(median(seconds["on"]) / median(seconds["off"]) - 1, 3)
            figures[f"{name}_cost_of_best"] = round(min(seconds["on"]) / min(seconds["off"]) - 1, 3)
    finally:
        guard.configure(before)
    return figures


def _flows(mode: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": f"benchmark_of_guard_{mode}"}
    exec(compile(FLOWS, f"benchmark_of_guard_{mode}.py", "exec"), namespace)
    return namespace


def _timed(once: Callable[[Executor, int], None], workflow: Any, count: int) -> float:
    info = RunInfo(workflow=workflow.name, id="1", run_id="1", version=1)
    executor = Executor(workflow.definition, info)
    began = time.perf_counter()
    once(executor, count)
    return time.perf_counter() - began


def _steps(executor: Executor, count: int) -> None:
    completion = executor.activate(Activation(now=NOW, start={"args": count, "seed": 1}))
    for number in range(1, count + 1):
        completion = executor.activate(
            Activation(now=NOW, jobs=(Job("ActivityCompleted", {"seq": number, "result": number}),))
        )
    assert completion.closed == "CompleteWorkflow"


def _calls(executor: Executor, count: int) -> None:
    completion = executor.activate(Activation(now=NOW, start={"args": count, "seed": 1}))
    assert completion.closed == "CompleteWorkflow"
