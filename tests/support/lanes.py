"""Which tests run in which lane of ``make test`` and of ``make test-all``.

A lane is a Python with its Django, and a database. In ``make test-all`` a test runs on each Python and on each database
once: in two lanes that share neither. Elsewhere a marker says what it depends on, so that nothing is asked twice: on
both together (``each_lane``: what speaks SQL of its own), on Python alone (``each_python``; such tests may use the
database, as a means), or on neither (``once``, ``once_on_postgres``).

``make test`` leaves out what ``ONLY_IN_ALL`` lists, and the cases with the marker ``only_in_all``. The floor, the older
Python, runs there only what ``FLOOR`` lists: the rest runs on the newest one, with the same database. What
``ON_POSTGRES`` lists needs no SQLite there. Without a lane (``pytest`` by hand) all tests run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FLOOR_SQLITE, FLOOR_POSTGRES = "floor-sqlite", "floor-postgres"
NEWEST_SQLITE, NEWEST_POSTGRES = "newest-sqlite", "newest-postgres"
LANES = (FLOOR_SQLITE, FLOOR_POSTGRES, NEWEST_SQLITE, NEWEST_POSTGRES)
POSTGRES = frozenset({FLOOR_POSTGRES, NEWEST_POSTGRES})

#: By marker; SQLite is the quicker one where it does not matter.
MARKERS = {
    "once": frozenset({NEWEST_SQLITE}),
    "once_on_postgres": frozenset({NEWEST_POSTGRES}),
    "each_python": frozenset({FLOOR_SQLITE, NEWEST_SQLITE}),
    "each_database": frozenset({FLOOR_SQLITE, NEWEST_POSTGRES}),
    "each_lane": frozenset(LANES),
}
#: Lanes of a test without a marker.
USUAL = frozenset({FLOOR_SQLITE, NEWEST_POSTGRES})
#: Markers of whole folders, where a test, a class or a module has none of its own.
FOLDERS = {
    "browser": "once",
    "contract": "each_lane",
    "structure": "once",
    "typing": "once",
    "histories": "each_python",
    "property": "each_python",
}

#: The two suites, as the variable ``TEST_SUITE`` names them.
SUITES = ("test", "test-all")
#: What ``make test`` runs on the floor, by folder or file: code without a shell around it, one host of acceptance, and
#: a smoke of each interface.
FLOOR = (
    "unit/",
    "contract/",
    "histories/",
    "acceptance/",
    "integration/admin/test_pages.py",
    "integration/client/test_messages.py",
    "integration/human_tasks/test_pages.py",
    "integration/management/test_commands.py",
    "integration/rest/test_instances.py",
    "integration/tasks/",  # Django 5.2 has another ``tasks`` than 6.0
    "integration/workers/test_inline.py",
)
#: Pages, addresses and commands, whose SQL is that of the operations below them. Their smokes of ``FLOOR`` use SQLite.
ON_POSTGRES = (
    "integration/admin/",
    "integration/human_tasks/",
    "integration/management/",
    "integration/project/",
    "integration/rest/",
)
#: What only ``make test-all`` runs, by folder, file or test, each with the reason.
ONLY_IN_ALL: dict[str, str] = {}
#: Reasons of the marker ``only_in_all``, for some cases of a test.
CASES = {
    "host": "another host runs the test. Only caching and eviction need runs that are kept and runs that are rebuilt",
    "collection": "it imports all tests. It guards the lists of this module, and fails in the lanes of both suites",
    "row": "another row has the same kind of permission. Each operation is asked in code, and interfaces ask its class",
}


def path_of(nodeid: str) -> str:
    """Return the id of a test without the folder of all tests: ``unit/core/test_names.py::test_a``."""
    return nodeid.removeprefix("tests/")


def mark(item: pytest.Item, folder: str) -> None:
    """Give a test that says nothing itself the marker of its folder; pure ones depend on Python alone."""
    if any(item.get_closest_marker(name) for name in MARKERS):
        return
    if item.get_closest_marker("unit") and folder not in FOLDERS:
        item.add_marker("each_python")
    elif folder in FOLDERS:
        item.add_marker(FOLDERS[folder])


def reason_of(item: pytest.Item) -> str | None:
    """Return why ``make test`` leaves a test out, or None if it runs it."""
    if (marker := item.get_closest_marker("only_in_all")) is not None:
        return CASES[marker.args[0]]
    path = path_of(item.nodeid)
    return next((reason for key, reason in ONLY_IN_ALL.items() if _is_below(path, key)), None)


def lanes_of(item: pytest.Item, suite: str) -> frozenset[str]:
    """Return the lanes of a suite that run a test. The marker nearest to it decides; PostgreSQL is never lost."""
    own = next((mark.name for mark in item.iter_markers() if mark.name in MARKERS), None)
    lanes = USUAL if own is None else MARKERS[own]
    if item.get_closest_marker("postgres"):
        lanes = (lanes & POSTGRES) or frozenset({NEWEST_POSTGRES})
    if suite == "test-all":
        return lanes
    return frozenset() if reason_of(item) else _in_make_test(path_of(item.nodeid), lanes)


def may_run(path: Path, tests: Path, lane: str, suite: str) -> bool:
    """Return False for a file of which no test can belong to a lane, judged by its text and before it is imported."""
    name = path.relative_to(tests).as_posix()
    if suite == "test" and name in ONLY_IN_ALL:
        return False
    folder = name.partition("/")[0]
    text = path.read_text(encoding="utf-8")
    markers = {marker for marker in re.findall(r"\bmark\.(\w+)", text) if marker in MARKERS}
    sets = [MARKERS[marker] for marker in markers]
    if folder in FOLDERS:
        sets.append(MARKERS[FOLDERS[folder]])
    elif folder == "unit":
        sets.append(MARKERS["each_python"])
    else:
        sets.append(USUAL)
    if folder == "acceptance":  # its hosts have markers of their own
        sets += [MARKERS["each_python"], MARKERS["once"]]
    if name.removeprefix("integration/") in _sample():
        sets.append(MARKERS["once"])
    if "mark.postgres" in text:
        sets += [(lanes & POSTGRES) or frozenset({NEWEST_POSTGRES}) for lanes in sets]
    return any(lane in (_in_make_test(name, lanes) if suite == "test" else lanes) for lanes in sets)


def _sample() -> frozenset[str]:
    """Return the files whose tests run on a cluster, too. Their module needs the settings."""
    from tests.support.both_backends import SAMPLE

    return SAMPLE


def _in_make_test(path: str, lanes: frozenset[str]) -> frozenset[str]:
    if any(_is_below(path, key) for key in FLOOR):
        return lanes
    lanes = frozenset(lane.replace("floor", "newest") for lane in lanes)
    needless = NEWEST_POSTGRES in lanes and any(_is_below(path, key) for key in ON_POSTGRES)
    return lanes - {NEWEST_SQLITE} if needless else lanes


def _is_below(path: str, key: str) -> bool:
    return path == key or path.startswith(key if key.endswith("/") else (f"{key}::", f"{key}["))
