from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.contract.places import DatabasePlace, MemoryPlace

if TYPE_CHECKING:
    from tests.contract.places import Place

LANE = os.environ.get("TEST_DB", "sqlite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask memory and the database of the lane for what the contract promises; the former must touch no database."""
    if "place" in metafunc.fixturenames:
        marks = {"memory": pytest.mark.unit, LANE: pytest.mark.django_db}
        if LANE == "postgres":
            marks["postgres by plain psycopg"] = pytest.mark.django_db
        places = [pytest.param(name, marks=mark) for name, mark in marks.items()]
        metafunc.parametrize("place", places, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An empty storage of each kind."""
    if request.param == "postgres by plain psycopg":
        from tests.support.wires import use_wire

        use_wire("plain", monkeypatch)
    return MemoryPlace() if request.param == "memory" else DatabasePlace()
