"""Nothing is lost between the lanes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import lanes

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test.sh"


def item(*markers: str) -> Any:
    marks = [getattr(pytest.mark, name).mark for name in markers]
    return SimpleNamespace(
        iter_markers=lambda: iter(marks),
        get_closest_marker=lambda name: next((mark for mark in marks if mark.name == name), None),
    )


def where(*markers: str) -> set[str]:
    return {lane for lane in lanes.LANES if lanes.runs(item(*markers), lane)}


def test_the_script_runs_each_lane_and_no_other() -> None:
    called = [line.split() for line in SCRIPT.read_text("utf-8").splitlines() if line.strip().startswith("lane ")]

    assert sorted(f"{words[1]}-{words[4]}" for words in called) == sorted(lanes.LANES)


@pytest.mark.parametrize("marker", [*lanes.MARKERS, None])
def test_what_needs_postgresql_runs_there_wherever_else_its_marker_sends_it(marker: str | None) -> None:
    found = where("postgres", *([marker] if marker else []))

    assert found
    assert found <= {lanes.FLOOR_POSTGRES, lanes.NEWEST_POSTGRES}


def test_the_markers_keep_what_they_promise() -> None:
    for side in (0, 1):  # each Python once, and each database
        assert len({lane.split("-")[side] for lane in where()}) == len(where()) == 2
    assert where("each_lane") == set(lanes.LANES)
    assert {lane.split("-")[0] for lane in where("each_python")} == {"floor", "newest"}
    assert {lane.split("-")[1] for lane in where("each_database")} == {"sqlite", "postgres"}
    assert len(where("once")) == len(where("once_on_postgres")) == 1
    assert where("each_python", "once") == where("each_python")  # the nearest one decides
