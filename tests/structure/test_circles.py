"""Modules need each other in a circle only where docs/architecture.md says so, types and lazy imports counted."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.source import PACKAGE, ROOT, modules, parse

#: Groups of modules that need each other for types, or inside of a function, by their rooms. docs/architecture.md has
#: the reasons. No group gets a module from another room.
_STAYING = {
    "core": 8,
    "authoring": 8,
    "graph": 4,
    "testing": 3,
}
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


def test_circles_are_those_of_the_page_and_within_their_rooms() -> None:
    graph = {module: imports(path) - {module} for module, path in _MODULES.items() if path.name != "__init__.py"}
    sizes: dict[str, int] = {}
    for circle in circles(graph):
        rooms = sorted({module.split(".")[1] for module in circle})
        assert len(rooms) == 1, f"a circle through several rooms: {sorted(circle)}"
        sizes[rooms[0]] = sizes.get(rooms[0], 0) + len(circle)

    grown = {room: size for room, size in sizes.items() if size > _STAYING.get(room, 0)}
    assert grown == {}, "a new circle: break it, or name it in docs/architecture.md"


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset({"b", "c"})}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()
