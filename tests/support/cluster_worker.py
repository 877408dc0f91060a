"""A worker of the cluster in this process, which runs the classes of the project and mirrors their runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone

from temporalex_django.backends.cluster import worker as workers
from temporalex_django.workers.pool import Pool


@contextmanager
def running_worker(queue: str, *, name: str = "test", epoch: int = 0, **options: Any) -> Iterator[None]:
    """Poll a task queue while the block runs, by the settings that there are when it begins."""
    pool = Pool(threads=4, tasks=4, now=timezone.now, on_result=lambda: None, name=f"{name}-{queue}")
    worker = workers.ClusterWorker(
        threads=pool,
        thread_count=4,
        tasks=4,
        alias="default",
        name=name,
        owner=lambda: epoch,
        drain_seconds=5.0,
        **options,
    )
    worker.poll([queue])
    try:
        yield
    finally:
        worker.stop()
        pool.drain(5.0)
        pool.close()
        for thread in threading.enumerate():
            if thread.name == f"temporalex-{name}-{queue}":
                thread.join(10)  # it closes its connection
