"""Modules stay small enough to read in one sitting."""

from __future__ import annotations

import pytest

from tests.structure.source import ROOT, modules, name

HARD_CAP = 900
HARD_CAP_OF_TESTS = 800


@pytest.mark.parametrize(
    ("folder", "cap"),
    [
        ("temporalex_django", HARD_CAP),
        ("example_project", HARD_CAP),
        ("benchmarks", HARD_CAP),
        ("scripts", HARD_CAP),
        ("tests", HARD_CAP_OF_TESTS),
    ],
)
def test_no_module_is_longer_than_its_cap(folder: str, cap: int) -> None:
    # a migration is generated
    written = [path for path in modules(ROOT / folder) if path.parent.name != "migrations"]
    lengths = {name(path): len(path.read_text().splitlines()) for path in written}

    assert {module: length for module, length in lengths.items() if length > cap} == {}
