"""``graph``: ten-step graphs against the same steps as a function workflow.

And the cost of a step in small and large graphs.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measures import wait_until
from benchmarks.processes import worker

_AT_ONCE = 20


def run(count: int, rounds: int) -> dict[str, Any]:
    """Steps per second of one worker process over a backlog, the best of ``rounds``; microseconds a step by size."""
    from benchmarks.app import workflows as flows

    runs = max(count // 10, 1)
    best: dict[str, float] = {}
    for round_ in range(rounds):  # in turn, so that a slow moment of the machine hits all
        for cls in (flows.TenCalls, flows.Ten, flows.TenReading):
            rate = 10 * runs / _seconds(cls, runs, f"r{round_}")
            best[cls.name] = max(best.get(cls.name, 0.0), rate)
    sizes: dict[str, dict[int, float]] = {"chain": {}, "fan": {}}
    for shape, classes in (("chain", flows.CHAINS), ("fan", flows.FANS)):
        for size, cls in classes.items():
            # as many at a time whatever their size: a chain alone would measure the latency of a turn
            seconds = min(_seconds(cls, _AT_ONCE, f"s{round_}") for round_ in range(rounds))
            sizes[shape][size] = seconds / (_AT_ONCE * size) * 1e6
    return {
        "instances": runs,
        "steps_per_s": {name: round(rate) for name, rate in best.items()},
        "graph_to_function": round(best["Ten"] / best["TenCalls"], 3),
        "us_per_step": {shape: {n: round(us, 1) for n, us in by.items()} for shape, by in sizes.items()},
        "ratio_1000_to_10": {shape: round(by[1000] / by[10], 2) for shape, by in sizes.items()},
    }


def _seconds(cls: Any, runs: int, mark: str) -> float:
    """From a worker that is ready to the last run that has ended."""
    from temporalex_django.models import Instance

    for number in range(runs):
        cls.start(f"{mark}x{number}", {"n": 1})
    done = Instance.objects.filter(workflow=cls.name, status="completed")
    before = done.count()
    with worker():
        began = time.perf_counter()
        return wait_until(lambda: done.count() - before >= runs, seconds=300, every=0.02) - began
