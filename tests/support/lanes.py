"""Which tests run in which lane of ``make test``.

A lane is a Python with its Django, and a database. A test runs on each Python and on each database once: in two lanes
that share neither. Elsewhere a marker says what it depends on, so that nothing is asked twice: on both together
(``each_lane``: what speaks SQL of its own), on Python alone (``each_python``; such tests may use the database, as a
means), or on neither (``once``, ``once_on_postgres``). Without a lane (``pytest`` by hand) all tests run.
"""

from __future__ import annotations

import pytest

FLOOR_SQLITE, FLOOR_POSTGRES = "floor-sqlite", "floor-postgres"
NEWEST_SQLITE, NEWEST_POSTGRES = "newest-sqlite", "newest-postgres"
LANES = (FLOOR_SQLITE, FLOOR_POSTGRES, NEWEST_SQLITE, NEWEST_POSTGRES)

#: By marker; SQLite is the quicker one where it does not matter.
MARKERS = {
    "once": frozenset({NEWEST_SQLITE}),
    "once_on_postgres": frozenset({NEWEST_POSTGRES}),
    "each_python": frozenset({FLOOR_SQLITE, NEWEST_SQLITE}),
    "each_database": frozenset({FLOOR_SQLITE, NEWEST_POSTGRES}),
    "each_lane": frozenset(LANES),
}
#: What says nothing.
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


def mark(item: pytest.Item, folder: str) -> None:
    """Give a test that says nothing itself the marker of its folder; pure ones depend on Python alone."""
    if any(item.get_closest_marker(name) for name in MARKERS):
        return
    if item.get_closest_marker("unit") and folder not in FOLDERS:
        item.add_marker("each_python")
    elif folder in FOLDERS:
        item.add_marker(FOLDERS[folder])


def runs(item: pytest.Item, lane: str) -> bool:
    """Whether a test belongs to a lane. The marker nearest to it decides; what needs PostgreSQL is never lost."""
    own = next((mark.name for mark in item.iter_markers() if mark.name in MARKERS), None)
    lanes = USUAL if own is None else MARKERS[own]
    if item.get_closest_marker("postgres"):
        lanes = (lanes & {FLOOR_POSTGRES, NEWEST_POSTGRES}) or frozenset({NEWEST_POSTGRES})
    return lane in lanes
