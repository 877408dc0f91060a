"""Measuring: waits with a deadline, percentiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def wait_until(done: Callable[[], bool], *, seconds: float, every: float = 0.02) -> float:
    """Wait until ``done()``; the moment (``time.perf_counter``) at which it was seen. Raises ``TimeoutError``."""
    deadline = time.perf_counter() + seconds
    while not done():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not done after {seconds:g} s")
        time.sleep(every)
    return time.perf_counter()


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": round(percentile(values, 0.5) * 1000, 3),
        "p99_ms": round(percentile(values, 0.99) * 1000, 3),
        "n": len(values),
    }
