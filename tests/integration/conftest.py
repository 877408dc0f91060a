"""The backend on which the runs of a test live. See ``tests.support.both_backends``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import both_backends

IDS = {"tables": "on_tables", "temporal": "on_cluster"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not _uses_database(metafunc.definition) or metafunc.definition.get_closest_marker("of_the_tables"):
        return
    backends = both_backends.backends_of(metafunc.definition.nodeid)
    if backends != ("tables",):
        params = [
            pytest.param(name, id=IDS[name], marks=[pytest.mark.once] if name != "tables" else []) for name in backends
        ]
        metafunc.parametrize("run_backend", params, indirect=True)


@pytest.hookimpl(tryfirst=True)  # pytest-django orders the tests by how they use the database
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    exceptions = both_backends.exceptions()
    for item in items:
        if _backend(item) != "temporal":
            continue
        item.add_marker(pytest.mark.django_db(transaction=True), append=False)  # a worker sees what is committed
        if (reason := exceptions.get(both_backends.case_name(item.nodeid))) is not None:
            item.add_marker(
                pytest.mark.xfail(reason=both_backends.REASONS[reason], strict=reason not in both_backends.BY_CHANCE)
            )
    if os.environ.get("BACKEND") == "temporal":
        left_out = [item for item in items if _backend(item) != "temporal" and both_backends.has_choice(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _uses_database(item: Any) -> bool:
    return item.get_closest_marker("django_db") is not None or not {"db", "transactional_db"}.isdisjoint(
        item.fixturenames
    )


def _backend(item: pytest.Item) -> str | None:
    return item.callspec.params.get("run_backend") if hasattr(item, "callspec") else None


@pytest.fixture(scope="session")
def process_cluster(temporal_address: str, django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    with django_db_blocker.unblock(), both_backends.process_cluster(temporal_address) as entry:
        yield entry


@pytest.fixture(autouse=True)
def run_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the backend on which the runs of the test live."""
    name = getattr(request, "param", "tables")
    if name == "tables":
        yield name
        return
    request.getfixturevalue("transactional_db")
    with both_backends.cluster_routing(request.getfixturevalue("process_cluster")):
        yield name
