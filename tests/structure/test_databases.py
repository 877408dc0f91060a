"""What differs between databases is said by their dialects."""

from __future__ import annotations

import ast

from tests.structure.source import PACKAGE, modules, name, parse


def test_only_dialects_ask_which_database_it_is() -> None:
    """Everybody else asks for a capability: a third database is a dialect, not a search through the package."""
    asking = [
        f"{name(path)}:{node.lineno}"
        for path in modules(PACKAGE)
        if path.parent != PACKAGE / "db" / "dialects"
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Attribute) and node.attr == "vendor")
        or (isinstance(node, ast.Constant) and node.value in ("vendor", "postgresql", "sqlite"))
    ]
    assert asking == []
