"""A worker of the SDK in this process, which runs the classes of the project and mirrors their runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connections

from temporalex_django.backends.cluster import worker as workers


@contextmanager
def running_worker(queue: str) -> Iterator[None]:
    """Poll a task queue while the block runs, by the settings that there are when it begins."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    activities = ThreadPoolExecutor(4, initializer=lambda: None)
    tasks = ThreadPoolExecutor(4)

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def make() -> Any:
        client = await workers.connect(executor=activities)
        return workers.make_worker(client, queue, workflow_task_executor=tasks)

    sdk_worker = call(make())
    running: Future[Any] = asyncio.run_coroutine_threadsafe(sdk_worker.run(), loop)
    try:
        yield
    finally:
        call(sdk_worker.shutdown())
        running.result(30)
        for pool in (activities, tasks):
            _close_connections(pool)
            pool.shutdown()
        call(loop.shutdown_asyncgens())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _close_connections(pool: ThreadPoolExecutor) -> None:
    """Close the database connections of the threads of a pool, which would keep the test database open."""
    barrier = threading.Barrier(pool._max_workers)

    def close() -> None:
        barrier.wait(10)
        connections.close_all()

    for done in [pool.submit(close) for _ in range(pool._max_workers)]:
        done.result(15)
