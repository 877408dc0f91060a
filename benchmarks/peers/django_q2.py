"""django-q2 as it is shipped, with its ORM broker: N tasks that do nothing. It keeps no history and replays nothing."""

from __future__ import annotations

from typing import Any

from benchmarks.measures import wait_until
from benchmarks.processes import process


def one(count: int) -> dict[str, Any]:
    from django_q.models import Task
    from django_q.tasks import async_task

    for _ in range(count):
        async_task("benchmarks.app.tasks.nothing")
    before = Task.objects.count()
    with process("-m", "django", "qcluster"):
        first = wait_until(lambda: Task.objects.count() > before, seconds=60)
        done = Task.objects.count() - before
        finished = wait_until(lambda: Task.objects.count() - before >= count, seconds=300)
    return {"workflows": count, "workflows_per_s": round((count - done) / (finished - first))}
