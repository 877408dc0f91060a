"""``latency``, ``update``: the time that one caller waits on an idle system."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, Final

from benchmarks.measures import milliseconds, timed
from benchmarks.processes import process, worker

_Q2: Final = "temporalex_django.workers.q2.Broker"


def latency(calls: int) -> dict[str, Any]:
    """Measure start to result of a workflow of one activity, from another process than the worker's.

    The worker process is ours, and then that of django-q2.
    """
    from benchmarks.app.workflows import One

    def call() -> None:
        One.start().result(timeout=30)

    with worker():
        found: dict[str, Any] = _several(call, calls)
    with process("-m", "django", "qcluster", BENCH_Q2_BROKER=_Q2):
        found["through_django_q2"] = _several(call, max(calls // 4, 10))
    return found | {"notify": _notified(calls)}


def update(calls: int) -> dict[str, Any]:
    """Measure a synchronous update of a run that is parked in a phase: in the request, and through a worker process."""
    from benchmarks.app.workflows import Parked

    handle = Parked.start()
    found: dict[str, Any] = {"in_request": _several(lambda: handle.update("count", 1), calls)}
    found |= _exchanged(lambda: handle.update("count", 1))
    with worker():
        found["through_worker"] = _several(lambda: handle.update("count", 1, mode="worker"), max(calls // 5, 20))
    return found


def _several(call: Any, calls: int) -> dict[str, float]:
    for _ in range(5):  # first do the work that is done only once
        call()
    return milliseconds([timed(call) for _ in range(calls)])


def _exchanged(call: Any) -> dict[str, int]:
    """Count the waits for the server in one call, and the statements that ended, in the trace of the protocol."""
    from django.db import connection

    if connection.vendor == "sqlite":
        return {}
    connection.ensure_connection()
    with tempfile.TemporaryFile() as trace:
        protocol = connection.connection.pgconn
        protocol.trace(trace.fileno())
        try:
            call()
        finally:
            protocol.untrace()
        trace.seek(0)
        said = trace.read().decode(errors="replace")
    return {
        "round_trips": len(re.findall(r"^.*\bB\t\d+\tReadyForQuery", said, re.MULTILINE)),
        "statements": len(re.findall(r"^.*\bB\t\d+\tCommandComplete", said, re.MULTILINE)),
    }


def _notified(calls: int) -> dict[str, float]:
    """Measure the time from a NOTIFY on one connection to its arrival on another."""
    import psycopg

    url = os.environ["BENCH_DATABASE_URL"]
    if url.startswith("sqlite"):
        return {}
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        other.execute("listen bench")

        def call() -> None:
            one.execute("notify bench")
            next(other.notifies(timeout=5, stop_after=1))

        return _several(call, calls)
