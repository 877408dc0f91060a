"""The peer django-q2 as shipped, with its ORM broker: N tasks that do nothing. It has no history and no replay."""

from __future__ import annotations

from typing import Any

from benchmarks.measures import timed, wait_until
from benchmarks.processes import process

_AT_MOST = 300


def run(row: str, count: int) -> dict[str, Any]:
    """Measure ``one``, where a task is the nearest thing to a workflow, or ``starts``: tasks put into its queue."""
    from django_q.models import OrmQ, Task
    from django_q.tasks import async_task

    count = min(count, _AT_MOST)
    OrmQ.objects.all().delete()
    seconds = timed(lambda: [async_task("benchmarks.app.tasks.nothing") for _ in range(count)])
    if row == "starts":
        OrmQ.objects.all().delete()
        return {"starts_per_s": round(count / seconds)}
    before = Task.objects.count()
    with process("-m", "django", "qcluster"):
        first = wait_until(lambda: Task.objects.count() > before, seconds=60)
        done = Task.objects.count() - before
        finished = wait_until(lambda: Task.objects.count() - before >= count, seconds=60)
    return {"workflows_per_s": round((count - done) / (finished - first)), "way": "a task, no history"}
