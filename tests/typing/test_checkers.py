"""Users' code under mypy, pyright, ruff and pylint: what is right passes, with the types that users must see.

What is wrong does not.

A line that is wrong ends with ``# E: mypy=<codes> pyright=<rules>``, and what linters call an error there. What a
checker reports must be exactly what the lines say.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FILES = ("uses_right.py", "uses_wrong.py")
EXPECTED = re.compile(r"# E:(?P<said>(?: \w+=\S+)+)$")

Errors = set[tuple[str, int, str]]

pytestmark = pytest.mark.slow


def expected(checker: str) -> Errors:
    found: Errors = set()
    for name in FILES:
        for number, line in enumerate((HERE / name).read_text(encoding="utf-8").splitlines(), 1):
            if match := EXPECTED.search(line):
                said = dict(entry.split("=") for entry in match["said"].split())
                found.update((name, number, code) for code in said.get(checker, "").split(",") if code)
    return found


def run(module: str, *arguments: str, found: tuple[int, ...] = (1,)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode in (0, *found), done.stderr + done.stdout  # others: it could not run
    return done.stdout


def mypy() -> Errors:
    files = [str(HERE / name) for name in FILES]
    cache = str(ROOT / ".mypy_cache" / "users")
    output = run("mypy", "--config-file", str(HERE / "mypy.ini"), "--cache-dir", cache, "--output", "json", *files)
    reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {(Path(r["file"]).name, r["line"], r["code"]) for r in reports if r["severity"] == "error"}


def pyright() -> Errors:
    config = str(HERE / "pyrightconfig.json")
    reports = json.loads(run("pyright", "-p", config, "--pythonpath", sys.executable, "--outputjson"))
    assert reports["summary"]["filesAnalyzed"] == len(FILES)
    return {
        (Path(r["file"]).name, r["range"]["start"]["line"] + 1, r.get("rule", "syntax"))
        for r in reports["generalDiagnostics"]
        if r["severity"] == "error"
    }


def ruff() -> Errors:
    """What nearly everybody has on: names, bugs, pylint's errors. The project's own settings do not count."""
    rules = "N,E,F,W,B,PLE"
    files = [str(HERE / name) for name in FILES]
    reports = json.loads(
        run("ruff", "check", "--isolated", "--select", rules, "--ignore", "E501", "--output-format=json", *files)
    )
    return {(Path(r["filename"]).name, r["location"]["row"], r["code"]) for r in reports}


def pylint() -> Errors:
    """Its errors. What it calls warnings is a matter of taste."""
    options = ["--rcfile=/dev/null", "--errors-only", "--output-format=json2"]
    reports = json.loads(run("pylint", *options, *(str(HERE / name) for name in FILES), found=(2,)))
    return {(Path(r["path"]).name, r["line"], r["messageId"]) for r in reports["messages"]}


@pytest.mark.parametrize("checker", [mypy, pyright, ruff, pylint])
def test_users_code(checker: Callable[[], Errors]) -> None:
    assert sorted(checker()) == sorted(expected(checker.__name__))


def test_both_files_say_something() -> None:
    """The wrong one has many lines that say what is wrong, the right one states types and has none."""
    lines = {name: (HERE / name).read_text(encoding="utf-8").splitlines() for name in FILES}
    marked = {name: sum(bool(EXPECTED.search(line)) for line in lines[name]) for name in FILES}

    assert marked["uses_right.py"] == 0
    assert marked["uses_wrong.py"] >= 30
    assert sum("assert_type(" in line for line in lines["uses_right.py"]) >= 40
