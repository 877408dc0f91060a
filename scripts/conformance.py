"""Write the tests that prove each behaviour.

``python scripts/conformance.py [TX,ST]``, or ``make conformance ROWS=TX,ST``.

A test names rows of ``docs/reference/behaviours.toml`` in its docstring, or in the id of its case where a table has one
row per case. This script collects them through pytest itself, so that cases and hosts are the real ones, and writes
``docs/reference/conformance.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.temporal import refusals

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "conformance.md"
GROUPS = {"TX": "The programming model", "ST": "The core", "HE": "Graph workflows"}
HOSTS = ("memory", "memory-evicted", "database", "database-evicted", "temporal")
LETTERS = "MmDdT"
ROW = re.compile(r"\b[A-Z]{2}-\d{3}\b")
_OUTPUT = "TX_CONFORMANCE"

#: For each test function, as "path::name", the rows that it names, and for each row the hosts of its cases ("" for a
#: test that has no host).
Named = dict[str, dict[str, set[str]]]


def behaviours() -> list[tuple[str, dict[str, dict[str, str]]]]:
    """Return title and rows of each group, in the order of the file. A row has ``mark`` and ``does``."""
    stored = tomllib.loads((REFERENCE / "behaviours.toml").read_text(encoding="utf-8"))
    return [(group["title"], group["rows"]) for group in stored["groups"]]


class Collector:
    """A plugin of the pytest run that only collects: the rows that each case names, and its host."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        cases = [
            {
                "test": f"{item.path.relative_to(ROOT).as_posix()}::{item.originalname}",
                "rows": sorted({*ROW.findall(item.function.__doc__ or ""), *ROW.findall(item.nodeid)}),
                "host": "" if item.get_closest_marker("xfail") else host(item),
                "refused": item.nodeid if host(item) == "temporal" and item.get_closest_marker("xfail") else "",
            }
            for item in session.items
            if isinstance(item, pytest.Function)
        ]
        Path(os.environ[_OUTPUT]).write_text(json.dumps(cases), encoding="utf-8")


def host(item: pytest.Function) -> str:
    """Return the host of a case, or an empty text if it has none."""
    return str(item.callspec.params.get("env", "")) if hasattr(item, "callspec") else ""


def collected() -> Named:
    """Return the rows that the tests name. Raises ``SystemExit`` with pytest's output if they cannot be collected."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "cases.json"
        done = subprocess.run(
            [sys.executable, __file__, "--collect"],
            cwd=ROOT,
            env={
                **os.environ,
                _OUTPUT: str(output),
                "TEST_DB": "sqlite",
                "TEST_LANE": "",
                "ALL_HOSTS": "1",
            },  # all lanes
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        cases: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))
    named: Named = defaultdict(lambda: defaultdict(set))
    for case in cases:
        for row in case["rows"]:
            named[row][case["test"]].add(case["host"] if case["host"] in HOSTS else "")
    return named


def missing(named: Named, groups: list[str]) -> list[str]:
    """Return the rows of these groups that no test names."""
    return [row for _, rows in behaviours() for row in rows if row[:2] in groups and row not in named]


def unknown(named: Named) -> dict[str, list[str]]:
    """Return the rows that tests name and that do not exist, with these tests."""
    known = {row for _, rows in behaviours() for row in rows}
    return {row: sorted(named[row]) for row in sorted(named) if row not in known}


def page(named: Named) -> str:
    """Return the text of the page."""
    lines = [
        "# Conformance",
        "",
        "<!-- made by scripts/conformance.py: do not edit -->",
        "",
        "This page lists each behaviour with the tests that fail without it and the hosts on which they run: in memory (M), on the database of",
        "the lane, SQLite or PostgreSQL (D), and on both with every run rebuilt from its history before each activation (m, d). T stands for",
        "a real server of Temporal, and means that at least one case passes there. A dash means that the test has no host, because it tests",
        "a part, a process or a worker. A star marks a behaviour that follows from the requirements; a plus marks one that goes beyond",
        "them. The cases that a cluster refuses are at the end.",
    ]
    for prefix, name in GROUPS.items():
        lines += ["", f"## {prefix}: {name}"]
        for title, rows in behaviours():
            if not any(row.startswith(prefix) for row in rows):
                continue
            lines += ["", f"### {title}", "", "| row | what | tests | hosts |", "|---|---|---|---|"]
            for row, facts in rows.items():
                tests = named.get(row, {})
                mark = {"seed": "", "seed*": "*", "upstream": "+"}[facts["mark"]]
                shown = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in sorted(tests)) or "none yet"
                lines.append(f"| {row}{mark} | {facts['does']} | {shown} | {_letters(tests)} |")
    return "\n".join([*lines, *refused_lines()]) + "\n"


def refused_lines() -> list[str]:
    """Return the lines about the cases that the host of a cluster refuses, by reason."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in refusals.refused().items():
        names[reason].append(name)
    lines = ["", "## Refused on a cluster", "", "| reason | cases | tests |", "|---|---|---|"]
    for reason, title in refusals.REASONS.items():
        tests = sorted({name.partition("[")[0] for name in names[reason]})
        lines.append(f"| {title} | {len(names[reason])} | {'<br>'.join(f'`{test}`' for test in tests) or 'none'} |")
    return lines


def _letters(tests: dict[str, set[str]]) -> str:
    hosts = set().union(*tests.values()) if tests else set()
    return "".join(letter for host, letter in zip(HOSTS, LETTERS, strict=True) if host in hosts) or "–"


def main(arguments: list[str]) -> int:
    if arguments == ["--refused"]:
        print("\n".join(refused_lines()))
        return 0
    if arguments == ["--collect"]:
        with contextlib.chdir(ROOT):
            return int(
                pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"], [Collector()])
            )
    groups = [name for argument in arguments for name in argument.split(",") if name] or list(GROUPS)
    if odd := [name for name in groups if name not in GROUPS]:
        print(f"unknown group: {', '.join(odd)} (available: {', '.join(GROUPS)})")
        return 2
    named = collected()
    without, odd_rows = missing(named, groups), unknown(named)
    for row in without:
        print(f"no test names {row}")
    for row, tests in odd_rows.items():
        print(f"unknown row: {row}, named by {', '.join(tests)}")
    PAGE.write_text(page(named), encoding="utf-8")
    total = sum(row[:2] in groups for _, rows in behaviours() for row in rows)
    print(f"{total - len(without)} of {total} rows of {', '.join(groups)} have a test: {PAGE.relative_to(ROOT)}")
    return 1 if without or odd_rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
