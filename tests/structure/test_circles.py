"""No two modules of a room need each other, not even for types or inside of a function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.structure.source import PACKAGE, ROOT, modules, parse

#: Rooms of the package that have none.
_ROOMS = ("db", "engine", "liveness", "workers")
_MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules(PACKAGE)}


def imports(path: Path) -> set[str]:
    """Modules of the package that one imports anywhere: at its top, for type checkers, in a function."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & _MODULES.keys()


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All modules that one needs, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules, each of which needs all others of its group."""
    needs = {module: reached(graph, module) for module in graph}
    return {
        frozenset(other for other in needs[module] if module in needs.get(other, ()))
        for module in graph
        if module in needs[module]
    }


@pytest.mark.parametrize("room", _ROOMS)
def test_a_room_has_no_circles(room):
    prefix = f"temporalex_django.{room}."
    graph = {
        module: {needed for needed in imports(path) if needed.startswith(prefix)} - {module}
        for module, path in _MODULES.items()
        if module.startswith(prefix)
    }
    assert circles(graph) == set()


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset({"b", "c"})}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
