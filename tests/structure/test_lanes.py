"""Nothing is lost between the lanes, and between ``make test`` and ``make test-all``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.structure.source import ROOT, modules, parse
from tests.support import hosts, lanes

SCRIPT = ROOT / "scripts" / "test.sh"
TESTS = ROOT / "tests"


def item(*markers: str, nodeid: str = "tests/integration/engine/test_a.py::test_a", case: str = "") -> Any:
    marks = [getattr(pytest.mark, name).mark for name in markers]
    if case:
        marks.append(pytest.mark.only_in_all(case).mark)
    return SimpleNamespace(
        nodeid=nodeid,
        iter_markers=lambda: iter(marks),
        get_closest_marker=lambda name: next((mark for mark in marks if mark.name == name), None),
    )


def where(*markers: str, suite: str = "test-all", **options: Any) -> frozenset[str]:
    return lanes.lanes_of(item(*markers, **options), suite)


def test_the_script_runs_each_lane_and_no_other() -> None:
    called = [line.split() for line in SCRIPT.read_text("utf-8").splitlines() if line.strip().startswith("lane ")]

    assert sorted(f"{words[1]}-{words[4]}" for words in called) == sorted(lanes.LANES)


@pytest.mark.parametrize("marker", [*lanes.MARKERS, None])
def test_a_test_of_postgresql_runs_there_wherever_else_its_marker_sends_it(marker: str | None) -> None:
    markers = ["postgres", *([marker] if marker else [])]

    for suite in lanes.SUITES:
        assert where(*markers, suite=suite)
        assert where(*markers, suite=suite) <= lanes.POSTGRES


def test_the_markers_keep_what_they_promise() -> None:
    for side in (0, 1):  # each Python once, and each database
        assert len({lane.split("-")[side] for lane in where()}) == len(where()) == 2
    assert where("each_lane") == set(lanes.LANES)
    assert {lane.split("-")[0] for lane in where("each_python")} == {"floor", "newest"}
    assert {lane.split("-")[1] for lane in where("each_database")} == {"sqlite", "postgres"}
    assert len(where("once")) == len(where("once_on_postgres")) == 1
    assert where("each_python", "once") == where("each_python")  # the nearest one decides


# -- make test --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", [*lanes.MARKERS, None])
def test_each_test_is_in_all_and_in_make_test_unless_the_list_names_it(marker: str | None) -> None:
    """Nothing is in neither. A test that is listed, or a case with the marker, is in ``make test-all`` alone."""
    markers = [marker] if marker else []
    keys = [
        *lanes.FLOOR,
        *lanes.ON_FLOOR_ALONE,
        *lanes.ON_POSTGRES,
        "integration/engine/test_a.py",
        "browser/test_a.py",
    ]
    for key, postgres in product(keys, [[], ["postgres"]]):
        nodeid = f"tests/{key}{'test_a.py' if key.endswith('/') else ''}::test_b"

        assert where(*postgres, *markers, nodeid=nodeid)
        assert where(*postgres, *markers, nodeid=nodeid, suite="test")
    for kept in lanes.KEPT:
        assert where(*markers, nodeid=f"tests/{kept}", suite="test")
    for key in lanes.ONLY_IN_ALL:
        nodeid = f"tests/{key}{'test_a.py::test_b' if key.endswith('/') else '' if '::' in key else '::test_b'}"

        assert where(*markers, nodeid=nodeid)
        assert not where(*markers, nodeid=nodeid, suite="test")
    assert where(*markers, case="host")
    assert not where(*markers, case="host", suite="test")


def test_make_test_keeps_the_database_and_moves_to_the_newest_python() -> None:
    other = "tests/integration/engine/test_a.py::test_b"
    page = "tests/integration/rest/test_a.py::test_b"
    unit = "tests/unit/test_a.py::test_b"

    assert where(nodeid=other, suite="test") == {lanes.NEWEST_SQLITE, lanes.NEWEST_POSTGRES}
    assert where("each_lane", nodeid=other, suite="test") == {lanes.NEWEST_SQLITE, lanes.NEWEST_POSTGRES}
    assert where(nodeid=page, suite="test") == {lanes.NEWEST_POSTGRES}
    assert where("once", nodeid=page, suite="test") == {lanes.NEWEST_SQLITE}
    assert where("each_python", nodeid=unit, suite="test") == {lanes.FLOOR_SQLITE, lanes.NEWEST_SQLITE}


def names_in(path: Path) -> set[str]:
    """Names of the tests and the classes of a file."""
    return {node.name for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_each_entry_of_the_lists_exists_and_has_a_reason() -> None:
    for key in (*lanes.ONLY_IN_ALL, *lanes.KEPT, *lanes.FLOOR, *lanes.ON_FLOOR_ALONE, *lanes.ON_POSTGRES):
        file, _, test = key.partition("::")
        path = TESTS / file
        assert path.is_dir() if file.endswith("/") else path.is_file(), f"{key} does not exist: remove it from the list"
        assert not test or test.partition("[")[0] in names_in(path), (
            f"{file} has no test {test}: remove it from the list"
        )
    assert all(len(reason.split()) > 3 for reason in (*lanes.ONLY_IN_ALL.values(), *lanes.CASES.values()))


def test_each_marker_has_a_reason_of_the_list() -> None:
    reasons = {
        node.args[0].value
        for path in modules(TESTS)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.only_in_all"
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    assert reasons == set(lanes.CASES)


def test_a_host_is_left_out_where_its_twin_runs_the_test() -> None:
    def left_out(file: str, *all_hosts: str) -> list[str]:
        return [host for host in all_hosts if any(m.name == "only_in_all" for m in hosts.marks(host, all_hosts, file))]

    assert left_out("test_run.py", *hosts.HOSTS) == ["memory", "database-evicted"]
    assert left_out("test_replay.py", *hosts.HOSTS) == []
    assert left_out("test_run.py", "memory", "database") == []
    assert left_out("test_run.py", "database-evicted") == []
    assert all((TESTS / "acceptance" / file).is_file() for file in (*hosts.CACHING, *hosts.SAMPLE))


# -- collection -------------------------------------------------------------------------------------------------------


def test_a_file_is_read_only_where_it_may_have_a_test(tmp_path: Path) -> None:
    def lanes_that_read(name: str, text: str, suite: str = "test-all") -> set[str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return {lane for lane in lanes.LANES if lanes.may_run(path, tmp_path, lane, suite)}

    assert lanes_that_read("contract/test_a.py", "") == set(lanes.LANES)
    assert lanes_that_read("structure/test_a.py", "") == {lanes.NEWEST_SQLITE}
    assert lanes_that_read("structure/test_a.py", "@pytest.mark.each_python") == {
        lanes.FLOOR_SQLITE, lanes.NEWEST_SQLITE,
    }  # fmt: skip
    assert lanes_that_read("unit/test_a.py", "@pytest.mark.postgres") >= {lanes.NEWEST_POSTGRES}
    assert lanes_that_read("integration/rest/test_a.py", "") == lanes.USUAL
    assert lanes_that_read("integration/rest/test_a.py", "", "test") == {lanes.NEWEST_POSTGRES}
    assert lanes_that_read("acceptance/test_a.py", "", "test") == set(lanes.LANES) - {lanes.FLOOR_POSTGRES}


@pytest.mark.only_in_all("collection")
@pytest.mark.parametrize("suite", lanes.SUITES)
def test_no_file_that_is_not_read_has_a_test_of_the_lane(suite: str) -> None:
    """The lanes of each test, from its markers, against what is judged from the text of its file."""
    code = (
        "import sys, pytest\n"
        "from pathlib import Path\n"
        "from tests.support import lanes\n"
        "class Plugin:\n"
        "    @pytest.hookimpl(trylast=True)\n"
        "    def pytest_collection_modifyitems(self, items):\n"
        "        tests = Path('tests').resolve()\n"
        "        for item in items:\n"
        f"            for lane in lanes.lanes_of(item, {suite!r}):\n"
        f"                if not lanes.may_run(item.path, tests, lane, {suite!r}):\n"
        "                    print('LOST', item.nodeid, lane)\n"
        "sys.exit(pytest.main(['--collect-only', '-qq', '-p', 'no:randomly'], plugins=[Plugin()]))\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TX_TEST", "TEST_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("LOST")] == []
