"""``tasks``: Django tasks that do nothing, enqueued one by one and run by one worker process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.measures import timed, wait_until
from benchmarks.processes import worker


def run(count: int) -> dict[str, Any]:
    """Measure tasks/s of a worker of ours, and the tasks that a client enqueues in a second."""
    from temporalex_django.models import EndedTask

    return measured(count, "default", worker(), EndedTask.objects.count)


def measured(
    count: int, backend: str, workers: AbstractContextManager[Any], ended: Callable[[], int]
) -> dict[str, Any]:
    """Measure a backend from the first end to the last: all tasks are enqueued before its worker starts."""
    from benchmarks.app.django_tasks import nothing

    task = nothing.using(backend=backend)
    seconds = timed(lambda: [task.enqueue(number) for number in range(count)])
    with workers:
        first = wait_until(lambda: ended() > 0, seconds=60)
        before = ended()
        last = wait_until(lambda: ended() >= count, seconds=100)
    return {
        "tasks": count,
        "tasks_per_s": round((count - before) / (last - first)) if count > before else None,
        "enqueued_per_s": round(count / seconds),
    }
