"""``update``: a synchronous update on a run that is parked in a phase; idle system."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measures import milliseconds
from benchmarks.processes import worker


def run(count: int) -> dict[str, Any]:
    """In the request of the caller, and through a worker process."""
    from benchmarks.app.workflows import Parked

    handle = Parked.start()
    handle.update("count", 1)
    in_request = [_timed(lambda: handle.update("count", 1)) for _ in range(count)]
    with worker():
        handle.update("count", 1, mode="worker")
        through_worker = [_timed(lambda: handle.update("count", 1, mode="worker")) for _ in range(max(count // 5, 20))]
    return {"in_request": milliseconds(in_request), "through_worker": milliseconds(through_worker)}


def _timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
