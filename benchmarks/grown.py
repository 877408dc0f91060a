"""``grown``: the cost of a run beside a million closed ones with their histories, against the empty database.

``python -m benchmarks data`` builds that database, which takes minutes, and keeps it in ``var/bench-data``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import milliseconds, timed, wait_until
from benchmarks.processes import worker

NAME: Final = "bench_data"
ABSENT: Final = f"the database {NAME} does not exist: run `make bench-data` first"
#: Of a thousand runs that are made, seventy are open.
_CLOSED: Final = 0.93
_ROUNDS: Final = 2
_AT_MOST: Final = 3_000


def build(runs: int, events: int) -> dict[str, Any]:
    """Build the database anew with so many closed runs, and return its size and the time that this took."""
    from django.db import connection

    from benchmarks import million

    began = time.perf_counter()
    with server.database("postgres", grown=True):
        server.databases(os.environ["BENCH_SERVER_URL"], NAME)
        with on(NAME):
            built = million.build(int(runs / _CLOSED), events=events, recorded=1.0)
            million.never_due()
            with connection.cursor() as cursor:
                cursor.execute("vacuum analyze")
                cursor.execute("select pg_database_size(current_database()) / 1000000")
                (size,) = cursor.fetchone()
            return counted() | {
                "built_in_s": round(time.perf_counter() - began, 1),
                "megabytes": size,
                "tables": built["megabytes"],
            }


def run(count: int, starts: int, updates: int) -> dict[str, Any]:
    """Measure workflows/s, starts/s and ms an update on both in turn, and how many times as slow the large one is."""
    if not there():
        return {"absent": ABSENT}
    best: dict[str, dict[str, float]] = {}
    facts: dict[str, int] = {}
    for _ in range(_ROUNDS):
        for side, name in (("empty", "bench"), ("grown", NAME)):
            with on(name):
                facts = counted() if side == "grown" else facts
                found = _measured(min(count, _AT_MOST), min(starts, _AT_MOST), updates)
            known = best.setdefault(side, found)
            for what, value in found.items():
                known[what] = min(known[what], value) if what == "update_p50_ms" else max(known[what], value)
    empty, grown = best["empty"], best["grown"]
    slower = {
        "one": round(empty["workflows_per_s"] / grown["workflows_per_s"], 2),
        "starts": round(empty["starts_per_s"] / grown["starts_per_s"], 2),
        "update": round(grown["update_p50_ms"] / empty["update_p50_ms"], 2),
    }
    return {**facts, **best, "slower": slower}


def there() -> bool:
    """Return True if the database was built on this server."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("select 1 from pg_database where datname = %s", [NAME])
        return cursor.fetchone() is not None


def _measured(count: int, starts: int, updates: int) -> dict[str, float]:
    from benchmarks.app.workflows import One, Parked
    from temporalex_django.models import Instance

    handle = Parked.start()
    handle.update("count", 1)
    took = milliseconds([timed(lambda: handle.update("count", 1)) for _ in range(updates)])
    first = Instance.objects.get(workflow_id=One.start().id).pk
    seconds = timed(lambda: [One.start() for _ in range(starts)])
    queue(One, count)
    mine = Instance.objects.filter(id__gte=first, status="completed")
    with worker():
        began = time.perf_counter()
        spent = wait_until(lambda: mine.count() > count + starts, seconds=60) - began
    return {
        "workflows_per_s": round((count + starts) / spent),
        "starts_per_s": round(starts / seconds),
        "update_p50_ms": took["p50_ms"],
    }


def counted() -> dict[str, int]:
    """Return the numbers of runs and events, according to the server's statistics."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "select relname, reltuples::bigint from pg_class where relname in ('temporalex_instance', 'temporalex_history_event')"
        )
        rows = dict(cursor.fetchall())
    return {"runs": rows["temporalex_instance"], "history_rows": rows["temporalex_history_event"]}


@contextmanager
def on(name: str) -> Iterator[None]:
    """Let this process and the workers that it starts use this database of the server, until the block ends."""
    from django.core.management import call_command
    from django.db import connection

    before = connection.settings_dict["NAME"], os.environ["BENCH_DATABASE_URL"]
    connection.close()
    connection.settings_dict["NAME"], os.environ["BENCH_DATABASE_URL"] = name, server.address(name)
    try:
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"], os.environ["BENCH_DATABASE_URL"] = before
