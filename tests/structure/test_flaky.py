"""A test that failed is run again, alone and once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
from pathlib import Path

import pytest

MARK = Path(__file__).with_name("mark")


def test_that_passes():
    pass


def test_that_fails_the_first_time():
    if not MARK.exists():
        MARK.touch()
        pytest.fail("too slow")


@pytest.fixture
def broken_the_first_time():
    mark = Path(__file__).with_name("mark of the fixture")
    if not mark.exists():
        mark.touch()
        raise OSError("no database")


def test_whose_fixture_fails_the_first_time(broken_the_first_time):
    pass
"""
FAILS = """

def test_that_fails():
    Path(__file__).with_name("times").open("a").write("x")
    pytest.fail("wrong")
"""


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_", "TX_"))
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:django", "-p", "no:temporalex", "-p", "tests.support.flaky"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "-c", str(folder / "pytest.ini"), *arguments, str(folder)],
        check=False,
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_passes_alone_does_not_fail_the_run_and_is_listed(tmp_path: Path, processes: str) -> None:
    done = run(tmp_path, TESTS, "-n", processes, "-p", "randomly", "--randomly-seed=7")

    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 flaky in" in done.stdout.splitlines()[-1]
    for name in ("test_that_fails_the_first_time", "test_whose_fixture_fails_the_first_time"):
        assert f"FLAKY test_some.py::{name} (seed 7, load " in done.stdout
    assert "too slow" in done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path, processes: str) -> None:
    done = run(tmp_path, TESTS + FAILS, "-n", processes)

    assert done.returncode == 1
    assert "1 failed, 1 passed, 2 flaky in" in done.stdout.splitlines()[-1]
    assert "FAILED test_some.py::test_that_fails - Failed: wrong" in done.stdout
    assert (tmp_path / "times").read_text() == "xx"


def test_where_much_fails_nothing_is_run_again(tmp_path: Path) -> None:
    many = "import pytest\n\n\n@pytest.mark.parametrize('n', range(11))\ndef test(n):\n    assert n < 0\n"

    done = run(tmp_path, many, "-n", "0")

    assert done.returncode == 1
    assert "run again" not in done.stdout


def test_a_file_that_cannot_be_collected_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, TESTS + "\n1 / 0\n", "-n", "0").returncode not in (0, 5)


def test_every_lane_loads_the_plugin() -> None:
    assert "-p tests.support.flaky" in (ROOT / "scripts" / "test.sh").read_text("utf-8")
