"""``graph``: ten-step graphs against the same steps as a function workflow.

It also measures the cost of a step in small and large graphs.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measures import wait_until
from benchmarks.processes import worker

_AT_ONCE = 10
#: Seconds after which no further round begins, so that the last one ends in time.
_ENOUGH = 45.0


def run(count: int, rounds: int) -> dict[str, Any]:
    """Measure steps per second of one worker process over a backlog, and microseconds a step by size.

    Figures are the best of at most ``rounds`` rounds, and of fewer on a slow machine.
    """
    from benchmarks.app import workflows as flows

    runs, began = max(count // 20, 1), time.perf_counter()
    best: dict[str, float] = {}
    sizes: dict[str, dict[int, float]] = {"chain": {}, "fan": {}}
    done = 0
    while done < rounds and (not done or time.perf_counter() - began < _ENOUGH):
        for cls in (flows.TenCalls, flows.Ten, flows.TenReading):  # in turn, so that a slow moment hits all
            rate = 10 * runs / _seconds(cls, runs, f"r{done}")
            best[cls.name] = max(best.get(cls.name, 0.0), rate)
        for shape, classes in (("chain", flows.CHAINS), ("fan", flows.FANS)):
            for size, cls in classes.items():
                # the same number at a time for every size: a single run would measure the latency of a turn
                cost = _seconds(cls, _AT_ONCE, f"s{done}") / (_AT_ONCE * size) * 1e6
                sizes[shape][size] = min(cost, sizes[shape].get(size, cost))
        done += 1
    return {
        "instances": runs,
        "rounds": done,
        "steps_per_s": {name: round(rate) for name, rate in best.items()},
        "graph_to_function": round(best["Ten"] / best["TenCalls"], 3),
        "us_per_step": {shape: {n: round(us, 1) for n, us in by.items()} for shape, by in sizes.items()},
        "ratio_1000_to_10": {shape: round(by[1000] / by[10], 2) for shape, by in sizes.items()},
    }


def _seconds(cls: Any, runs: int, mark: str) -> float:
    """Return the seconds from the commit of all runs, for a worker that has done one, until the last one has ended."""
    from django.db import transaction

    from temporalex_django.models import Instance

    done = Instance.objects.filter(workflow=cls.name, status="completed")
    before = done.count()
    with worker():
        cls.start(f"{mark}first", {"n": 1})
        wait_until(lambda: done.count() > before, seconds=60)
        with transaction.atomic():
            for number in range(runs):
                cls.start(f"{mark}x{number}", {"n": 1})
        began = time.perf_counter()
        return wait_until(lambda: done.count() - before > runs, seconds=100, every=0.02) - began
