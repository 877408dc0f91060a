"""``observed``: the throughput of ``one`` with traces and metrics, in pairs with the same without them."""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import wait_until
from benchmarks.processes import worker

#: Share of the traces that are sampled.
SAMPLED: Final = 0.01
#: Settings and environment of a worker with traces and metrics.
_OBSERVED: Final = {
    "BENCH_TEMPORALEX": '{"INTERCEPTORS": ["temporalex_django.contrib.otel.Tracing"]}',
    "BENCH_TRACING": str(SAMPLED),
}
#: Two-sided quantiles of Student's distribution for 95 %, by degrees of freedom; 2.0 for more.
_STUDENT: Final = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23}


def run(count: int, pairs: int) -> dict[str, Any]:
    """Measure workflows/s of ``pairs`` pairs of workers, one with traces and metrics and one without.

    Each works on ``count`` due runs. The order alternates, and the first pair, which warms the machine up, counts
    nothing.
    """
    rates: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        pair = {}
        for observes in (True, False) if number % 2 else (False, True):
            pair[observes] = _rate(count, observes=observes)
        rates.append((pair[True], pair[False]))
    ratios = [observed / plain for observed, plain in rates[1:]]
    mean, spread = statistics.fmean(ratios), statistics.stdev(ratios) if pairs > 1 else 0.0
    half = _STUDENT.get(pairs - 1, 2.0) * spread / math.sqrt(pairs)
    return {
        "workflows": count,
        "sampled": SAMPLED,
        "plain_per_s": [round(plain) for _, plain in rates[1:]],
        "observed_per_s": [round(observed) for observed, _ in rates[1:]],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(mean, 3),
        "interval_95": [round(mean - half, 3), round(mean + half, 3)],
    }


def _rate(count: int, *, observes: bool) -> float:
    """Return workflows/s of a worker over a backlog of ``count`` runs."""
    from benchmarks.app.workflows import One
    from temporalex_django.models import Instance

    server.empty()
    queue(One, count)
    arguments, environment = (("--metrics-port", "0"), _OBSERVED) if observes else ((), {})
    completed = Instance.objects.filter(status="completed")
    with worker(*arguments, **environment):
        began = wait_until(completed.exists, seconds=60, every=0.002)
        done = completed.count()
        return float((count - done) / (wait_until(lambda: completed.count() >= count, seconds=100) - began))
