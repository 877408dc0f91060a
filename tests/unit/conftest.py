from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import hosts


@pytest.fixture(params=hosts.MEMORY)
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An environment that keeps its runs, and one that rebuilds them before every activation.

    All runs are replayed at the end.
    """
    yield from hosts.environment(request.param)
