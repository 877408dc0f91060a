"""The admin, the console and pages refuse nobody without a row in the audit."""

from __future__ import annotations

import ast

import pytest

from tests.structure.source import PACKAGE, modules, name, parse

#: The functions that note and raise.
REFUSES = {"temporalex_django/console/base.py", "temporalex_django/pages/views.py"}


def unnoted(tree: ast.AST) -> list[int]:
    """Lines that raise ``PermissionDenied``, but for what an operation refused, which has noted it."""
    noted = [
        node
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler) and ast.unparse(handler.type or tree) == "ActionNotPermitted"
        for node in ast.walk(handler)
    ]
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return [
        node.lineno
        for node in raised
        if node not in noted and node.exc is not None and "PermissionDenied" in ast.unparse(node.exc)
    ]


def test_whoever_is_refused_is_noted() -> None:
    found = {
        name(path): unnoted(parse(path)) for room in ("admin", "console", "pages") for path in modules(PACKAGE / room)
    }
    assert [len(found.pop(path)) for path in REFUSES] == [1, 1]
    assert not {path: lines for path, lines in found.items() if lines}, "use refuse()"


@pytest.mark.parametrize("code", ["raise PermissionDenied", "raise PermissionDenied('no')", "try:\n a()\nexcept KeyError:\n raise PermissionDenied"])  # fmt: skip
def test_a_bare_refusal_is_seen(code: str) -> None:
    assert unnoted(ast.parse(code))
