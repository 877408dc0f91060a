"""No function has more branches than a reader can hold, counted as ``radon cc`` counts them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.structure.source import PACKAGE, modules, name, parse

HIGHEST = 15


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each function and method by its name, with those that are defined inside of others."""
    for child in ast.iter_child_nodes(node):
        own = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                yield own[:-1], child
        yield from functions(child, own)


def complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """One, and one for each branch. Functions inside count by themselves; ``with`` and lambdas are no branches."""
    return 1 + sum(map(_branches, function.body))


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return 0
    match node:
        case ast.If() | ast.IfExp() | ast.Assert():
            own = 1
        case ast.For() | ast.AsyncFor() | ast.While():
            own = 1 + bool(node.orelse)
        case ast.Try() | ast.TryStar():
            own = len(node.handlers) + bool(node.orelse)
        case ast.BoolOp():
            own = len(node.values) - 1
        case ast.comprehension():
            own = 1 + len(node.ifs)
        case ast.Match():
            default = any(isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None for case in node.cases)
            own = len(node.cases) - default
        case _:
            own = 0
    return own + sum(map(_branches, ast.iter_child_nodes(node)))


def test_no_function_has_too_many_branches():
    assert {
        f"{name(path)}:{function.lineno}: {label}": complexity(function)
        for path in modules(PACKAGE)
        for label, function in functions(parse(path))
        if complexity(function) > HIGHEST
    } == {}


def test_branches_are_counted_as_by_radon():
    tree = ast.parse(
        "def outer(a, b=1 if 2 else 3):\n"  # the default is not of the body
        "    assert a and b or a\n"  # 1 + 2
        "    with a:\n"
        "        for _ in [x for x in a if x if b]:\n"  # 1 + 3
        "            try:\n"
        "                pass\n"
        "            except ValueError:\n"  # 1
        "                pass\n"
        "            else:\n"  # 1
        "                pass\n"
        "    match a:\n"
        "        case 1:\n"  # 1
        "            pass\n"
        "        case _:\n"
        "            pass\n"
        "    def inner():\n"
        "        if a:\n"
        "            pass\n"
    )
    counted = {label: complexity(function) for label, function in functions(tree)}
    assert counted == {"outer": 11, "outer.inner": 2}
