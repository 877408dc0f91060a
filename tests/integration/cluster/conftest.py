"""A cluster for the runs of each test: a prefix of its own, and a worker of the SDK in this process."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import connections

from temporalex_django.backends.cluster import client as clients
from temporalex_django.backends.cluster import worker as workers

WorkerMaker = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def cluster(temporal_address: str, settings: Any) -> Iterator[dict[str, Any]]:
    """The setting ``CLUSTER`` of the test. Its client is closed at the end."""
    entry = {"ADDRESS": temporal_address, "PREFIX": f"{uuid.uuid4().hex[:8]}:"}
    settings.TEMPORALEX = {**settings.TEMPORALEX, "BACKEND": "temporal", "CLUSTER": entry}
    yield entry
    with clients._lock:
        client, clients._client = clients._client, None
    if client is not None:
        client.close()


@pytest.fixture
def start_worker(cluster: dict[str, Any], queue: str) -> WorkerMaker:
    """A function that runs a worker for the task queue of the test, in a thread, while its block runs."""
    return lambda: running_worker(queue)


@pytest.fixture
def worker(start_worker: WorkerMaker) -> Iterator[None]:
    with start_worker():
        yield


@contextmanager
def running_worker(queue: str) -> Iterator[None]:
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


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The task queue of all classes of the module: their attribute ``task_queue``."""
    return str(request.module.QUEUE)
