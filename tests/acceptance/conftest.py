from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import hosts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of ``env`` on every host, or on those that ``@pytest.mark.hosts`` leaves.

    Only these may touch the database.
    """
    if "env" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("hosts")
        chosen = hosts.HOSTS if marker is None else marker.args
        metafunc.parametrize(
            "env",
            [pytest.param(host, marks=hosts.MARKS[host]) for host in chosen],
            indirect=True,
        )


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One environment of each host: what a workflow means does not depend on where it runs."""
    yield from hosts.environment(request.param)
