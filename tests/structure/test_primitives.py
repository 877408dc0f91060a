"""The table of primitives and the functions of ``api``: neither has what the other lacks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, get_origin, get_type_hints

from temporalex_django import api
from temporalex_django.core import primitive_table
from temporalex_django.core.primitive_table import ACTIVITY, ASYNC_WITH, AT_ONCE, AWAIT, PRIMITIVES, Primitive
from tests.structure.source import PACKAGE, modules, name, parse

#: Names of ``api`` that texts mention and that are no primitives.
OTHERS = {"logger", "Info"}


def functions(module: Any) -> dict[str, FunctionType]:
    """Public functions that the module defines itself."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def differences(names: set[str], rows: tuple[Primitive, ...]) -> list[str]:
    row_names = {row.name for row in rows}
    return [
        *(f"api.{name} has no row in core/primitive_table.py" for name in sorted(names - row_names)),
        *(f"the row {name!r} of core/primitive_table.py has no function in api" for name in sorted(row_names - names)),
    ]


def usage(function: Callable[..., Any]) -> str:
    """The code that uses what the function returns, by its annotation."""
    returned = get_type_hints(function)["return"]
    if get_origin(returned) is Awaitable:
        return AWAIT
    return ASYNC_WITH if hasattr(returned, "__aenter__") else AT_ONCE


def test_each_public_function_of_api_has_a_row_and_each_row_a_function() -> None:
    assert differences({*functions(api)}, PRIMITIVES) == []


def test_rows_have_the_order_of_the_functions() -> None:
    assert [row.name for row in PRIMITIVES] == [*functions(api)]


def test_what_is_missing_is_named() -> None:
    names, rows = {*functions(api)}, PRIMITIVES
    assert differences(names | {"recall"}, rows) == ["api.recall has no row in core/primitive_table.py"]
    assert differences(names - {"sleep"}, rows) == ["the row 'sleep' of core/primitive_table.py has no function in api"]


def test_each_row_of_the_module_is_in_the_table_under_its_own_name() -> None:
    rows = {key: row for key, row in vars(primitive_table).items() if isinstance(row, Primitive)}
    assert {*rows.values()} == {ACTIVITY, *PRIMITIVES}
    assert [key for key, row in rows.items() if key != row.name.upper()] == []


def test_each_row_says_how_the_call_is_used() -> None:
    assert {row.name: usage(functions(api)[row.name]) for row in PRIMITIVES} == {
        row.name: row.usage for row in PRIMITIVES
    }


def test_each_function_of_api_checks_its_own_place() -> None:
    """``task`` makes the call of an activity, and a scope checks its place itself."""
    checked = {
        function.name: {
            node.attr
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "table"
        }
        for function in parse(PACKAGE / "authoring" / "api.py").body
        if isinstance(function, ast.FunctionDef) and not function.name.startswith("_")
    }
    elsewhere = {name: set[str]() for name in ("task", "shield", "saga")}
    assert checked == {row.name: {row.name.upper()} for row in PRIMITIVES} | elsewhere


def mentions() -> dict[str, set[str]]:
    """Names that messages, docstrings and advice of the package call ``api.…``, with the files."""
    found: dict[str, set[str]] = {}
    for path in modules(PACKAGE):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for primitive in re.findall(r"(?<![\w./])api\.([A-Za-z]\w*)", node.value):
                    found.setdefault(primitive, set()).add(name(path))
    return found


def test_each_primitive_that_a_text_advises_is_in_the_table() -> None:
    advised = mentions()
    assert "temporalex_django/core/determinism/rules.py" in advised["now"]
    known = {row.name for row in PRIMITIVES} | OTHERS
    assert {primitive: files for primitive, files in advised.items() if primitive not in known} == {}
