"""``crowded``, ``naps``, ``chain``, ``switched``: the effect of other runs, and of a run's own past."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import milliseconds, timed, wait_until
from benchmarks.processes import worker

_CALM: Final = 100
#: Runs of a chain that are timed together, at its beginning and at its end.
_SHARE: Final = 0.1
_LONGEST: Final = 90.0


def crowded(crowd: int) -> dict[str, Any]:
    """Measure start to result of a small run on one worker: alone, beside a fan-out, and beside runs of another class.

    There are as many of these runs as branches. The crowd works the whole time; ``left`` is the rest of it at the end.
    """
    from benchmarks.app.workflows import Branches, Greedy, One
    from temporalex_django.models import ActivityTask, Instance

    def call() -> float:
        return timed(lambda: One.start().result(timeout=60))

    found: dict[str, Any] = {}
    with worker():
        for _ in range(5):  # first do the work that is done only once
            call()
        found["calm"] = milliseconds([call() for _ in range(_CALM)])
        fan = Branches.start(crowd)
        wait_until(lambda: ActivityTask.objects.exists() or fan.describe().status == "completed", seconds=60)
        found["beside_a_fan"] = _while(ActivityTask.objects.count, call)
        server.empty()
        queue(Greedy, crowd)
        greedy = Instance.objects.filter(workflow="Greedy", closed_at__isnull=True)
        found["beside_a_class"] = _while(greedy.count, call)
    return found


def _while(left: Callable[[], int], call: Callable[[], float], seconds: float = 15.0) -> dict[str, Any]:
    took: list[float] = []
    began = time.perf_counter()
    while not took or (left() and time.perf_counter() - began < seconds):
        took.append(call())
    return milliseconds(took) | {"left": left()}


def naps(count: int) -> dict[str, Any]:
    """Measure seconds until so many ``async`` activities, which sleep for a second at the same time, have ended."""
    from benchmarks.app.workflows import Naps

    with worker(BENCH_TEMPORALEX=json.dumps({"ACTIVITY_TASKS": count})):
        Naps.start(10).result(timeout=60)
        began = time.perf_counter()
        Naps.start(count).result(timeout=100)
        return {"naps": count, "seconds": round(time.perf_counter() - began, 2)}


def chain(runs: int) -> dict[str, Any]:
    """Measure ms a run of one chain that continues as new so many times: its first runs, and its last ones."""
    from benchmarks.app.workflows import Again
    from temporalex_django.models import Instance

    with worker():
        handle = Again.start(runs)
        began = time.perf_counter()
        with suppress(TimeoutError):  # the figures have the number of runs that there are by then
            wait_until(lambda: handle.describe().status == "completed", seconds=_LONGEST, every=0.2)
        total = time.perf_counter() - began
    ids = Instance.objects.order_by("pk")
    share, count = max(int(runs * _SHARE), 1), ids.count()
    first, last = (
        ids[:share].values_list("created_at", flat=True),
        ids[count - share :].values_list("created_at", flat=True),
    )
    costs = [1000 * (max(part) - min(part)).total_seconds() / share for part in ([*first], [*last])]
    return {
        "runs": count,
        "runs_per_s": round(count / total),
        "ms_a_run": {"first": round(costs[0], 3), "last": round(costs[1], 3)},
        "growth": round(costs[1] / costs[0], 2) if costs[0] else None,
    }


def switched(times: int) -> dict[str, Any]:
    """Measure seconds from the commit of a switch until a worker stops taking an activity, and until it resumes."""
    from benchmarks.app.workflows import Drip
    from temporalex_django.models import HistoryEvent
    from temporalex_django.operations.fleet.switches import SwitchOff, SwitchOn

    name = "benchmarks.app.workflows.drop"
    begun = HistoryEvent.objects.filter(kind="ActivityCompleted")
    off, on = [], []
    with worker():
        Drip.start(100_000)
        wait_until(begun.exists, seconds=30)
        for _ in range(times):
            SwitchOff("activity", name).execute()
            at, count, quiet = time.perf_counter(), begun.count(), time.perf_counter()
            while time.perf_counter() - quiet < 0.5:  # until nothing has ended for this long
                if (now := begun.count()) != count:
                    count, quiet = now, time.perf_counter()
                time.sleep(0.01)
            off.append(quiet - at)
            SwitchOn("activity", name).execute()
            at = time.perf_counter()
            on.append(wait_until(lambda count=count: begun.count() > count, seconds=30) - at)  # type: ignore[misc]
    return {"off": milliseconds(off), "on": milliseconds(on), "heard_within_s": round(max(off + on), 2)}
