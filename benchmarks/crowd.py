"""``parked``, ``wake``: many runs that sleep, and many that wake up in the same second."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import wait_until
from benchmarks.processes import cpu_seconds, family, memory_mb, worker

_MONTH: Final = 30 * 86_400.0
_LONGEST: Final = 75.0
#: Runs that start at once; the next ones start when these are asleep, so that the worker keeps up.
_PORTION: Final = 500


def parked(runs: int, idle: float) -> dict[str, Any]:
    """Measure bytes in the database per run that sleeps for a month, and memory and idle CPU time of the worker.

    The worker is watched for ``idle`` seconds in which it has nothing to do. Runs arrive one portion after the other,
    sixty times as fast as 50 a second, so the server that runs here vacuums sixty times as often as by default.
    """
    empty, few = _bytes(), min(runs, 4 * _PORTION)
    with worker() as child:
        with server.vacuuming("1s") as pause:
            until = time.monotonic() + _LONGEST
            _arrive(few, until)
            early = memory_mb(family(child.pid))
            with suppress(TimeoutError):  # the figures have the number of those that are asleep by then
                _arrive(runs, until)
        late = memory_mb(family(child.pid))
        asleep = _asleep()
        before, began = _idle(child.pid), time.perf_counter()
        time.sleep(idle)
        after, spent = _idle(child.pid), time.perf_counter() - began
    return {
        "runs": asleep,
        "bytes_per_run": round((_bytes() - empty) / max(_all(), 1)),
        "autovacuum_naptime": pause,
        "memory_mb": {str(few): early, str(asleep): late},
        "memory_growth": round(late / early, 2),
        "idle_cpu_percent": round(100 * (after[0] - before[0]) / spent, 2),
        "idle_cpu_percent_server": round(100 * (after[1] - before[1]) / spent, 2),
    }


def _arrive(runs: int, until: float) -> None:
    from benchmarks.app.workflows import Sleeper

    while (there := _all()) < runs:
        queue(Sleeper, min(runs - there, _PORTION) - 1, _MONTH)
        Sleeper.start(_MONTH)
        wait_until(lambda: not _pending(), seconds=max(until - time.monotonic(), 0.1), every=0.02)


def wake(timers: int) -> dict[str, Any]:
    """Measure seconds from the moment at which so many timers are due until all runs have ended."""
    from temporalex_django.models import Instance

    with worker():
        first = min(timers, 500)
        rate = first / _put_to_sleep(first, time.time() + 3600)
        server.empty()
        due = time.time() + 2 + 1.5 * timers / rate
        _put_to_sleep(timers, due)
        asleep = _asleep()
        time.sleep(max(due - time.time(), 0))
        late = time.time()  # if this machine was too slow to put all of them to sleep
        ended = Instance.objects.filter(status="completed")
        wait_until(lambda: ended.count() >= timers, seconds=60, every=0.05)
        seconds = time.time() - max(due, late if asleep < timers else due)
    return {"timers": timers, "asleep_when_due": asleep, "seconds": round(seconds, 2), "lost": timers - ended.count()}


def _put_to_sleep(count: int, until: float) -> float:
    from benchmarks.app.workflows import Waker

    queue(Waker, count - 1, until)
    began = time.perf_counter()
    Waker.start(until)
    return wait_until(lambda: not _pending(), seconds=60, every=0.05) - began


def _asleep() -> int:
    from temporalex_django.models import Instance

    return Instance.objects.filter(status="waiting").count()


def _pending() -> bool:
    from temporalex_django.models import Instance

    return Instance.objects.filter(status__in=["pending", "running"]).exists()


def _all() -> int:
    from temporalex_django.models import Instance

    return Instance.objects.count()


def _idle(pid: int) -> tuple[float, float]:
    return cpu_seconds(family(pid)), cpu_seconds(family(server.postmaster)) if server.postmaster else 0.0


def _bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' and relname like 'temporalex%'"
        )
        return int(cursor.fetchone()[0])
