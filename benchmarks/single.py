"""``fan``, ``long``: one run that grows, on the database. The cost of a unit must not grow with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import wait_until
from benchmarks.processes import worker

#: Branches that are measured together, in one run or several: a small run alone would measure latency.
_TOGETHER: Final = 2_000
_AT_ONCE: Final = 100
#: The median of this many.
_SAMPLES: Final = 5


def fan(sizes: Sequence[int]) -> dict[str, Any]:
    """Measure µs a branch of ``parallel`` by their number, and branches/s at the last size but one."""
    from benchmarks.app.workflows import Branches
    from temporalex_django.models import Instance

    costs: dict[int, float] = {}
    with worker():
        for size in sizes:
            runs = max(_TOGETHER // size, 1)
            server.empty()
            queue(Branches, runs, size)
            began = time.perf_counter()
            Branches.start(0)
            done = Instance.objects.filter(status="completed")
            ended = wait_until(lambda done=done, runs=runs: done.count() > runs, seconds=100)  # type: ignore[misc]
            costs[size] = (ended - began) / (runs * size) * 1e6
    middle = sorted(costs)[-2] if len(costs) > 1 else max(costs)
    return {
        "us_per_branch": {size: round(cost, 1) for size, cost in costs.items()},
        "growth": round(costs[max(costs)] / costs.get(100, costs[min(costs)]), 2),
        "steps_per_s": round(1e6 / costs[middle]),
    }


def long(signals: int) -> dict[str, Any]:
    """Measure the time in which a hundred signals that come together are consumed: the first hundreds, and the last."""
    from django.db import transaction

    from benchmarks.app.workflows import Signals
    from temporalex_django.models import Instance, Message

    handle = Signals.start()
    chain = Instance.objects.get(workflow_id=handle.id).chain_id
    waiting = Message.objects.filter(chain=chain, settled=False)
    took: list[float] = []
    with worker():
        for _ in range(max(signals // _AT_ONCE, 2)):
            with transaction.atomic():
                for _ in range(_AT_ONCE):
                    handle.signal("seen")
            began = time.perf_counter()
            took.append(wait_until(lambda: not waiting.exists(), seconds=30, every=0.002) - began)
    first, last = median(took[:_SAMPLES]), median(took[-_SAMPLES:])
    return {
        "signals": signals,
        "ms_per_hundred": {"first": round(first * 1000, 1), "last": round(last * 1000, 1)},
        "growth": round(last / first, 2),
    }
