from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.support import CheckedEnvironment


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "unreplayable: the history and the code part on purpose")


@pytest.fixture(params=[False, True], ids=["cached", "evicted"])
def env(request: pytest.FixtureRequest) -> Iterator[CheckedEnvironment]:
    """An environment that keeps its runs, and one that rebuilds them before every activation; all runs are replayed at the end."""
    environment = CheckedEnvironment(evict=request.param)
    yield environment
    if request.node.get_closest_marker("unreplayable") is None:
        environment.check()
