"""One name for one thing: who reads a class name knows which class is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.structure.source import PACKAGE, modules, name, parse

#: Django looks for these by name.
DJANGOS = {"Command", "Config", "Media", "Meta", "Migration"}
#: A graph's value and the row it is stored in, an event of the core and its row, the declaration of a schedule and its
#: row: users import both under these names.
PUBLIC_PAIRS = {
    "Instance": {"temporalex_django/graph/instance.py", "temporalex_django/models/runs.py"},
    "HistoryEvent": {"temporalex_django/core/history/events.py", "temporalex_django/models/runs.py"},
    "Schedule": {"temporalex_django/authoring/schedules/schedule.py", "temporalex_django/models/schedules.py"},
}


def repeated(sources: Iterable[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Class names that stand more than once, and where; nested and private classes count."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources:
        for node in ast.walk(source):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return {
        name: paths
        for name, paths in found.items()
        if len(paths) > 1 and name not in DJANGOS and (set(paths) != PUBLIC_PAIRS.get(name) or len(paths) > 2)
    }


def of(package: Path) -> list[tuple[str, ast.Module]]:
    return [(name(path), parse(path)) for path in modules(package)]


def test_no_class_name_of_the_package_stands_twice() -> None:
    assert repeated(of(PACKAGE)) == {}


def test_the_check_sees_a_name_that_stands_twice() -> None:
    nested, private = "class A:\n    class Scheduler: ...", "def f():\n    class _Page: ...\nclass _Page: ..."

    assert repeated([*of(PACKAGE), ("x.py", ast.parse(nested))]) == {
        "Scheduler": ["temporalex_django/core/units/scheduler.py", "x.py"]
    }
    assert repeated([("x.py", ast.parse(private))]) == {"_Page": ["x.py", "x.py"]}
    assert "Instance" in repeated([*of(PACKAGE), ("x.py", ast.parse("class Instance: ..."))])


def test_what_is_excepted_is_there() -> None:
    where = {path: {n.name for n in ast.walk(source) if isinstance(n, ast.ClassDef)} for path, source in of(PACKAGE)}

    assert [(pair, path) for pair, paths in PUBLIC_PAIRS.items() for path in paths if pair not in where[path]] == []
