"""``one``, ``ten``, ``atomic``, ``two``, ``starts``: the throughput of a worker process over a backlog."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import milliseconds, timed, wait_until
from benchmarks.processes import cpu_seconds, family, worker

#: Runs that a worker has done before it is measured in ``sizes``.
_WARM: Final = 200
#: A second backlog of ``ten`` has this many times the workflows: more than a worker keeps in memory.
_CROWD: Final = 4
#: Seconds over the largest backlog: its rate is measured, not its end.
_AWHILE: Final = 6.0


def one(count: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Measure workflows/s and the cost of ``count`` starts, each in its own transaction, and the rates by backlog."""
    from benchmarks.app.workflows import One
    from temporalex_django.models import HistoryEvent, Instance

    seconds = timed(lambda: [One.start() for _ in range(count)])
    _analyze()
    commits = _commits()
    with worker() as child:
        began, before = time.perf_counter(), _processors(child.pid)
        spent = wait_until(lambda: _completed() >= count, seconds=100, every=0.05) - began
        used = [after - earlier for after, earlier in zip(_processors(child.pid), before, strict=True)]
    found = {
        "workflows": count,
        "workflows_per_s": round(count / spent),
        "starts_per_s": round(count / seconds),
        "events_per_workflow": HistoryEvent.objects.count() / Instance.objects.count(),
        "commits_per_workflow": None if commits is None else round(((_commits() or 0) - commits) / count, 3),
        "cpu_worker": round(used[0] / spent, 2),
        "cpu_server": round(used[1] / spent, 2) if server.postmaster else None,
        "cpu_ms_per_workflow": round(used[0] / count * 1000, 3),
    }
    by_size = {size: _rate_over(size) for size in sizes}
    if len(sizes) > 1:
        found["slower_at_most"] = round(by_size[min(sizes)] / by_size[max(sizes)], 2)
    return found | {"per_s_with_queued": by_size}


def _rate_over(size: int) -> int:
    """Return workflows/s of a warm worker over so many that appear at once."""
    from benchmarks.app.workflows import One

    server.empty()
    with worker():
        queue(One, _WARM)
        One.start()  # its notification wakes the worker
        wait_until(lambda: _completed() > _WARM, seconds=30)
        server.empty()
        queue(One, size - 1)
        began = time.perf_counter()
        One.start()
        if size > 5_000:  # counting many rows would take time from the worker
            time.sleep(_AWHILE)
            done = _completed()
            return round(done / (time.perf_counter() - began))
        return round(size / (wait_until(lambda: _completed() >= size, seconds=60, every=0.01) - began))


def ten(count: int) -> dict[str, Any]:
    """Measure steps/s of workflows of ten activities that do nothing, in sequence, and of several times as many."""
    from benchmarks.app.workflows import TenInSequence

    few = max(count // 10, 1)
    found, many = _steps(TenInSequence, few), _steps(TenInSequence, _CROWD * few)
    rates = {str(each["workflows"]): each["steps_per_s"] for each in (found, many)}
    slower = round(found["steps_per_s"] / many["steps_per_s"], 2)
    return found | {"steps_per_s_with_queued": rates, "slower_at_most": slower}


def atomic(count: int) -> dict[str, Any]:
    """Measure steps/s of workflows of ten atomic activities that each write a business row."""
    from benchmarks.app.models import Entry
    from benchmarks.app.workflows import TenEntries

    workflows = max(count // 50, 1)
    found = _steps(TenEntries, workflows)
    assert Entry.objects.count() == 10 * workflows, "exactly once"
    return found


def two(count: int) -> dict[str, Any]:
    """Measure steps/s of one worker process and of two, where each activity waits 2 ms."""
    from benchmarks.app.workflows import TenRests

    workflows = max(count // 20, 1)
    found = {n: _steps(TenRests, workflows, workers=n)["steps_per_s"] for n in (1, 2)}
    return {"steps_per_s": found, "ratio": round(found[2] / found[1], 2)}


def starts(count: int) -> dict[str, Any]:
    """Measure starts/s of one client, each in a transaction of its own; no worker runs."""
    from benchmarks.app.workflows import One

    One.start()
    took = [timed(One.start) for _ in range(count)]
    return {"starts_per_s": round(count / sum(took)), **milliseconds(took)}


def start_many(count: int) -> dict[str, Any]:
    """Measure starts/s of one client that starts a thousand runs in each call; no worker runs."""
    from benchmarks.app.workflows import One

    One.start_many([None])
    items = [None] * min(count, 1_000)
    calls = max(1, count // len(items))
    took = [timed(lambda: One.start_many(items)) for _ in range(calls)]
    return {"starts_per_s": round(calls * len(items) / sum(took)), **milliseconds(took)}


def _steps(cls: Any, workflows: int, workers: int = 1) -> dict[str, Any]:
    """Measure from the commit of all runs, for which workers wait, until the last run has ended."""
    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(worker())
        queue(cls, max(workers, 2) * 10)
        wait_until(_all_done, seconds=30)
        server.empty()
        queue(cls, workflows - 1)
        began = time.perf_counter()
        cls.start()  # its notification wakes the workers
        spent = wait_until(lambda: _completed() >= workflows, seconds=100) - began
    return {"workflows": workflows, "steps_per_s": round(10 * workflows / spent)}


def _all_done() -> bool:
    from temporalex_django.models import Instance

    return not Instance.objects.exclude(status="completed").exists()


def _completed() -> int:
    from temporalex_django.models import Instance

    return Instance.objects.filter(status="completed").count()


def _processors(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of the worker and of the server."""
    return cpu_seconds(family(pid)), cpu_seconds(family(server.postmaster)) if server.postmaster else 0.0


def _analyze() -> None:
    _ask("analyze")


def _commits() -> int | None:
    rows = _ask("select xact_commit from pg_stat_database where datname = current_database()", clear=True)
    return int(rows[0][0]) if rows else None


def _ask(sql: str, *, clear: bool = False) -> list[Any]:
    from django.db import connection

    if connection.vendor == "sqlite":
        return []
    with connection.cursor() as cursor:
        if clear:
            cursor.execute("select pg_stat_clear_snapshot()")
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def beside(count: int, seconds: float) -> dict[str, Any]:
    """Measure workflows/s over a backlog while a web process sends an update every 20 ms, and the times of these."""
    from benchmarks.app.workflows import One, Parked

    handle = Parked.start()
    handle.update("count", 1)
    queue(One, count)
    with worker():
        took: list[float] = []
        began = time.perf_counter()
        while not took or (_left() and (time.perf_counter() - began < seconds or not _completed())):
            took.append(timed(lambda: handle.update("count", 1)))
            time.sleep(0.02)
        spent, done = time.perf_counter() - began, _completed()
    return {"workflows_per_s": round(done / spent), "update": milliseconds(took)}


def _left() -> bool:
    from temporalex_django.models import Instance

    return Instance.objects.filter(workflow="One").exclude(status="completed").exists()
