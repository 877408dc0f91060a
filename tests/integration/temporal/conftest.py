"""The server, and a cluster of each test. Nothing here touches the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.temporal_cluster import Cluster


@pytest.fixture
def cluster(temporal_address: str) -> Iterator[Cluster]:
    cluster = Cluster(temporal_address)
    yield cluster
    cluster.close()
