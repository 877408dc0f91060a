"""A cluster for the runs of each test: a prefix of its own, and a worker of the SDK in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from temporalex_django.backends.cluster import client as clients
from tests.support.cluster_worker import running_worker

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


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The task queue of all classes of the module: their attribute ``task_queue``."""
    return str(request.module.QUEUE)
