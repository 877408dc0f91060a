"""Each operation that an operator performs has its place in every handle, in the kit and in the how-to pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest

from temporalex_django import WorkflowHandle
from temporalex_django.engine.operator_overrides import OPERATOR_RULES
from temporalex_django.operations.registry import ACTIONS, STEERING
from temporalex_django.testing.memory_actions import MemoryOperator
from tests.structure.source import PACKAGE, ROOT, modules, name, parse

#: Folders whose users are people: an operation that they create asks for the permission of its class, on behalf of one.
INTERFACES = ("admin", "forms", "management", "pages", "rest")
#: Names of operation classes, and of variables and attributes that hold one of them.
CLASSES = {action.__name__ for action in ACTIONS.values()} | {"action", "steering"}
PAGES = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "howto").glob("*.md")))


def without_method(names: Iterable[str]) -> list[str]:
    """Name the operations that no method of a handle requests, and those that memory does not perform."""
    return [
        *(f"WorkflowHandle has no method {name}: see docs/how-to-add.md" for name in names if not has_method(name)),
        *(f"MemoryOperator has no method {name}: see docs/how-to-add.md" for name in names if not in_memory(name)),
    ]


def has_method(name: str) -> bool:
    return hasattr(WorkflowHandle, name) and hasattr(WorkflowHandle, f"a{name}")


def in_memory(name: str) -> bool:
    """Whether memory performs the operation."""
    return hasattr(MemoryOperator, name)


def test_each_operation_is_a_method_of_the_handle_and_is_performed_in_memory() -> None:
    assert without_method(STEERING) == []


def test_each_operation_has_one_rule() -> None:
    assert OPERATOR_RULES.keys() == STEERING.keys()


@pytest.mark.parametrize("name", STEERING)
def test_the_inputs_of_a_rule_are_those_of_the_operation(name: str) -> None:
    rule, action = OPERATOR_RULES[name], STEERING[name]

    assert rule.inputs == {spec.name: spec.choices or spec.kind for spec in action.inputs}
    assert rule.edits == "".join(spec.name for spec in action.inputs if spec.edits)
    assert (rule.task is not None) == (action.target_kind == "activity")


def test_each_operation_is_on_a_how_to_page() -> None:
    missing = [name for name in STEERING if not re.search(rf"[`.]{name}\b", PAGES)]

    assert [f"no page of docs/howto names {name}" for name in missing] == []


def test_what_is_missing_is_named() -> None:
    assert without_method(["juggle"]) == [
        "WorkflowHandle has no method juggle: see docs/how-to-add.md",
        "MemoryOperator has no method juggle: see docs/how-to-add.md",
    ]


def of_nobody(tree: ast.Module) -> list[int]:
    """Lines that create an operation for code, which is asked for no permission, instead of for a person."""
    decorators = {id(decorator) for node in ast.walk(tree) for decorator in getattr(node, "decorator_list", ())}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and id(node) not in decorators  # those of the admin and of REST are called ``action``, too
        and any(_class_name(function) in CLASSES for function in _functions(node.func))
        and not any(keyword.arg == "by" and "CODE" not in ast.unparse(keyword.value) for keyword in node.keywords)
    ]


def _functions(function: ast.expr) -> list[ast.expr]:
    return [function.body, function.orelse] if isinstance(function, ast.IfExp) else [function]


def _class_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_interfaces_ask_the_class_of_each_operation() -> None:
    """``execute()`` asks for the ``permission`` of the class, on behalf of ``by``."""
    assert [
        f"{name(path)}:{line}: pass by=, the person" for room in INTERFACES for path in modules(PACKAGE / room)
        for line in of_nobody(parse(path))
    ] == []  # fmt: skip


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("Query(target, query=name).execute()", [1]),
        ("x = 1\n(StopBulk if stop else ResumeBulk)(job).execute()", [2]),
        ("self.steering(target, reason=reason)", [1]),
        ("action(row.name, by=CODE)", [1]),
        ("runs.Query(target, query=name, by=self._actor())", []),
        ("perform(target)", []),
        ("@action(methods=['get'])\ndef state(self): ...", []),
    ],
)
def test_an_operation_of_nobody_is_seen(source: str, lines: list[int]) -> None:
    assert of_nobody(ast.parse(source)) == lines
