"""A comment says the rule. It does not point to a document, a ruling or a row that the reader does not have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.structure.source import files_of_the_repository, name

# Rulings, rows of a table of behaviours, pages and sections of a design, sources, numbers of issues.
POINTERS = re.compile(
    r"\bD-\d\d\b|\b(?:TX|HE|ST)-\d{3}\b|\b[Pp]ages? \d+(?:\.\d+)?\b(?! of)|\((?:[124-9]\.\d{1,2}|3\.\d)[),]|\(seed: "
    r"|\bissue #?\d+\b|(?<![\w&/])#\d+\b(?![\w-])"
)
#: Tests name rows of docs/reference/behaviours.toml: scripts/conformance.py reads them there.
IN_TESTS = re.compile(r"\bD-\d\d\b|\b[Pp]age \d+\.\d+\b")
CODE = (
    "temporalex_django/",
    "example_project/",
    "benchmarks/",
    "scripts/",
    "docs/",
    "README.md",
    "Makefile",
    "pyproject.toml",
)
GENERATED = ("docs/reference/conformance.md", "docs/reference/behaviours.toml")


def comments(path: Path) -> str:
    """Of Python what stands in comments and docstrings, of other files everything."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    return "\n".join([*re.findall(r'""".*?"""', text, re.DOTALL), *re.findall(r"(?:^|\s)#:? .*$", text, re.MULTILINE)])


def pointing(prefixes: tuple[str, ...], pattern: re.Pattern[str]) -> dict[str, list[str]]:
    found = {}
    for path in files_of_the_repository():
        if (
            path.suffix not in {".py", ".md", ".toml", ""}
            or not name(path).startswith(prefixes)
            or name(path) in GENERATED
        ):
            continue
        if hits := pattern.findall(comments(path)):
            found[name(path)] = hits
    return found


def test_comments_and_pages_say_the_rule() -> None:
    assert pointing(CODE, POINTERS) == {}


def test_tests_point_to_rows_only() -> None:
    assert pointing(("tests/",), IN_TESTS) == {}


@pytest.mark.parametrize(
    ("planted", "hits"),
    [
        ("# as D" + "-12 has it", 1),
        ('"""HE' + '-119: of the newest."""', 1),
        ("# see pa" + "ge 3.2", 1),
        ("# zero is one (1" + ".9)", 1),
        ("wait(0.5)  # half a second", 0),
        ("# page 3 of 3", 0),
        ("# TX-1 is a name of a test", 0),
    ],
    ids=str.split("ruling row page section number of no-row"),
)
def test_a_planted_pointer_is_found(tmp_path: Path, planted: str, hits: int) -> None:
    (tmp_path / "planted.py").write_text(planted, encoding="utf-8")

    assert len(POINTERS.findall(comments(tmp_path / "planted.py"))) == hits
