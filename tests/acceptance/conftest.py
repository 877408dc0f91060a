from __future__ import annotations

import os
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
        file = metafunc.definition.path.name
        chosen = hosts.chosen(None if marker is None else marker.args, file)
        metafunc.parametrize(
            "env",
            [pytest.param(host, marks=hosts.marks(host, chosen, file)) for host in chosen],
            indirect=True,
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A case that the host of a cluster refuses must fail there; its reason is one of a closed list."""
    from tests.support.temporal import refusals

    refused = refusals.refused()
    for item in items:
        if (host := _host(item)) in hosts.TEMPORAL:
            name = refusals.case_name(item.nodeid, host)
            reason = refused.get(name) or (refused.get(f"{name} (evicted)") if host.endswith("evicted") else None)
            if reason is not None:
                strict = reason not in refusals.BY_CHANCE
                item.add_marker(pytest.mark.xfail(reason=refusals.REASONS[reason], strict=strict))
    if wanted := os.environ.get("HOSTS"):
        left_out = [item for item in items if _host(item) not in wanted.split(",")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _host(item) in wanted.split(",")]


def _host(item: pytest.Item) -> str | None:
    return item.callspec.params.get("env") if hasattr(item, "callspec") else None


@pytest.fixture
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One environment of each host: what a workflow means does not depend on where it runs."""
    yield from hosts.environment(request.param, lambda: request.getfixturevalue("temporal_address"))
