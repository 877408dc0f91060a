"""``one``: N workflows of one activity that does nothing, started from outside, all finished."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measures import wait_until
from benchmarks.processes import worker


def run(count: int) -> dict[str, Any]:
    """The rate of one worker process over a backlog of ``count`` starts.

    And the rate of starting, each in a transaction of its own.
    """
    from django.db import connection

    from benchmarks.app.workflows import One
    from temporalex_django.models import HistoryEvent, Instance

    began = time.perf_counter()
    for _ in range(count):
        One.start()
    started = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("analyze")
    commits = _commits()
    before = Instance.objects.filter(status="completed").count()
    with worker():
        ready = time.perf_counter()
        finished = wait_until(
            lambda: Instance.objects.filter(status="completed").count() - before >= count, seconds=300, every=0.05
        )
    return {
        "workflows": count,
        "workflows_per_s": round(count / (finished - ready)),
        "starts_per_s": round(count / (started - began)),
        "events_per_workflow": HistoryEvent.objects.count() / Instance.objects.count(),
        "commits_per_workflow": round((_commits() - commits) / count, 3),
    }


def _commits() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "select pg_stat_clear_snapshot(), xact_commit from pg_stat_database where datname = current_database()"
        )
        return int(cursor.fetchone()[1])
