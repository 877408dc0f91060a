"""Which tests run in which lane of ``make test`` and of ``make test-all``.

A lane is a Python with its Django, and a database. In ``make test-all`` a test runs on each Python and on each database
once: in two lanes that share neither. Elsewhere a marker says what it depends on, so that nothing is asked twice: on
both together (``each_lane``: what speaks SQL of its own), on Python alone (``each_python``; such tests may use the
database, as a means), or on neither (``once``, ``once_on_postgres``).

``make test`` leaves out what ``ONLY_IN_ALL`` lists, and the cases with the marker ``only_in_all``. The floor, the older
Python, runs there only what ``FLOOR`` lists: the rest runs on the newest one, with the same database. The newest one
leaves ``ON_FLOOR_ALONE`` to the floor, and does without SQLite for ``ON_POSTGRES``. Without a lane (``pytest`` by hand)
all tests run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    "integration/client/test_async.py",
    "integration/human_tasks/test_pages.py",
    "integration/management/test_graph.py",
    "integration/rest/test_instances.py",
    "integration/tasks/",  # Django 5.2 has another ``tasks`` than 6.0
    "integration/workers/test_inline.py",
)
#: The host of acceptance that runs on the floor, and one that needs PostgreSQL alone.
HOST_ON_FLOOR, HOST_ON_POSTGRES = "database", "database-evicted"
#: What needs the floor alone, in ``make test``: the contract, whose SQL does not depend on Python, and pure code that
#: touches no internals of the interpreter, as the guard, the pools and the processes do.
ON_FLOOR_ALONE = (
    "contract/",
    *(f"unit/core/test_{name}.py" for name in ("freed", "handing_over", "host_limits", "payloads")),
    *(f"unit/core/test_{name}.py" for name in ("corners", "replaying", "round_trips", "scheduler", "seams", "telling")),
    *(f"unit/{room}/" for room in ("admin", "authoring", "contrib", "core/history", "db", "engine", "errors", "graph")),
    *(f"unit/{room}/" for room in ("liveness", "present", "telemetry", "testing")),
)
#: What needs PostgreSQL alone, in ``make test``: interfaces, operations and what is made of them. Their SQL for SQLite
#: is that of the contract, the storage and the engine, and of the smokes on the floor.
ON_POSTGRES = (
    "integration/workers/test_processes.py",  # each test starts processes
    "integration/workers/test_q2.py",
    *(f"integration/{room}/" for room in ("admin", "client", "console", "graph", "human_tasks", "management")),
    *(
        f"integration/{room}/"
        for room in ("operations", "outbox", "present", "project", "rest", "telemetry", "testing")
    ),
)
#: What only ``make test-all`` runs, by folder, file or test, each with the reason.
ONLY_IN_ALL = {
    "acceptance/test_example_day.py::test_killed_workers_lose_nothing": "it plays days while processes are killed",
    "acceptance/test_graph_runs.py::test_a_chain_of_hundreds_and_a_fan_of_hundreds[database]": (
        "hundreds of steps in rows; the hosts in memory run the same ones"
    ),
    "acceptance/test_phase.py::test_ten_thousand_signals_cost_the_same_each": "it measures ten thousand signals",
    "acceptance/test_schedules.py::test_a_year_with_both_clock_changes_fires_once_a_day[database]": (
        "365 runs in rows; the hosts in memory run the same ones"
    ),
    "acceptance/test_example_day.py::test_killed_workers_lose_nothing_of_carts_on_a_cluster": (
        "it plays a day on a Temporal server while processes are killed"
    ),
    "acceptance/test_example_day.py::test_carts_and_reports_on_a_cluster_match_orders_on_the_tables": (
        "it plays a day on a Temporal server"
    ),
    "browser/test_operators_day.py": "it plays a day of an operator in a browser, whose pages have tests of their own",
    "browser/test_console_pages.py": "it visits every page of the console, in each mode, and goes through it by keyboard",
    "faults/": "processes are killed, frozen and cut off, which takes seconds each",
    "unit/core/test_growth.py": "it counts the calls of long runs",
    "integration/cluster/": "each test starts workers of a Temporal server",
    "integration/console/test_sizes.py": "it builds graphs, chains and families of the largest size",
    "integration/db/test_retention.py::test_a_chain_that_goes_on_for_ever_costs_what_a_young_one_does": (
        "it measures a chain of thousands of runs"
    ),
    "integration/db/test_unreadable_rows.py": "it damages each column of each table, and reads all pages each time",
    "integration/rest/test_campaign.py": "it sends thousands of generated requests",
    "integration/rest/test_generated_client.py": "it generates and installs a client of the whole schema",
    "integration/rest/test_hostile_requests.py": "it sends each hostile text to each parameter of each address",
    "integration/temporal/test_replay_time.py": "it measures how long replays take",
    "integration/temporal/test_replayer.py": "it records histories on a Temporal server, and replays them",
}
#: Tests that ``make test`` runs all the same: one of each kind that ``ONLY_IN_ALL`` lists as a folder.
KEPT = (
    "faults/test_killed_workers.py::test_killed_during_an_activity_the_next_attempt_has_the_same_key",
    "integration/db/test_unreadable_rows.py::test_one_of_each_kind_stops_nothing_else",
    "integration/cluster/test_runs.py::test_a_run_is_started_updated_queried_and_ends",
)
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
    if _is_listed(path, KEPT):
        return None
    return next((reason for key, reason in ONLY_IN_ALL.items() if _is_below(path, key)), None)


def lanes_of(item: pytest.Item, suite: str) -> frozenset[str]:
    """Return the lanes of a suite that run a test. The marker nearest to it decides; PostgreSQL is never lost."""
    own = next((mark.name for mark in item.iter_markers() if mark.name in MARKERS), None)
    lanes = USUAL if own is None else MARKERS[own]
    if item.get_closest_marker("postgres"):
        lanes = (lanes & POSTGRES) or frozenset({NEWEST_POSTGRES})
    if suite == "test-all":
        return lanes
    if reason_of(item):
        return frozenset()
    host = item.callspec.params.get("env", "") if hasattr(item, "callspec") else ""
    return _in_make_test(path_of(item.nodeid), lanes, host)


def may_run(path: Path, tests: Path, lane: str, suite: str) -> bool:
    """Return False for a file of which no test can belong to a lane, judged by its text and before it is imported."""
    name = path.relative_to(tests).as_posix()
    if suite == "test" and _is_listed(name, ONLY_IN_ALL) and not any(kept.startswith(f"{name}::") for kept in KEPT):
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


def _in_make_test(path: str, lanes: frozenset[str], host: str | None = None) -> frozenset[str]:
    """Return the lanes of ``make test`` for a test that has these in ``make test-all``.

    ``host`` is the host of its case of acceptance, and empty for a test without one. None stands for all hosts.
    """
    if not _is_listed(path, FLOOR) or (path.startswith("acceptance/") and host not in (HOST_ON_FLOOR, None)):
        lanes = frozenset(lane.replace("floor", "newest") for lane in lanes)
    if _is_listed(path, ON_FLOOR_ALONE):
        lanes -= {lane.replace("floor", "newest") for lane in lanes if lane.startswith("floor")}
    if NEWEST_POSTGRES in lanes and (host == HOST_ON_POSTGRES or _is_listed(path, ON_POSTGRES)):
        lanes -= {NEWEST_SQLITE}
    return lanes


def _is_listed(path: str, keys: Iterable[str]) -> bool:
    return any(_is_below(path, key) for key in keys)


def _is_below(path: str, key: str) -> bool:
    return path == key or path.startswith(key if key.endswith("/") else (f"{key}::", f"{key}["))
