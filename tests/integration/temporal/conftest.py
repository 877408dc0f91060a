"""The server, and a cluster of each test. Nothing here touches the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.temporal_cluster import Cluster
from tests.support.temporal_server import shared_server


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    base = tmp_path_factory.getbasetemp()
    with shared_server(base if worker_id == "master" else base.parent) as address:
        yield address


@pytest.fixture
def cluster(temporal_address: str) -> Iterator[Cluster]:
    cluster = Cluster(temporal_address)
    yield cluster
    cluster.close()
