"""Which tests run in which lane of ``make test``.

A lane is a Python with its Django, and a database. What may depend on both runs in all four. Elsewhere a marker says
what a test depends on, so that nothing is asked twice: ``each_database``, ``each_python`` (such tests may use the
database, as a means) or neither, ``once`` and ``once_on_postgres``. Without a lane (``pytest`` by hand) all tests run.
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
}
#: Markers of whole folders, where a test, a class or a module has none of its own.
FOLDERS = {
    "browser": "once",
    "structure": "once",
    "typing": "once",
    "histories": "each_python",
    "property": "each_python",
    "faults": "each_database",
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
    lanes = frozenset(LANES) if own is None else MARKERS[own]
    if item.get_closest_marker("postgres"):
        lanes = (lanes & {FLOOR_POSTGRES, NEWEST_POSTGRES}) or frozenset({NEWEST_POSTGRES})
    return lane in lanes
