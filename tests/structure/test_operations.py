"""Each operation that an operator performs has its place in every handle, in the kit and in the how-to pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from temporalex_django import WorkflowHandle
from temporalex_django.operations.registry import STEERING
from temporalex_django.testing import memory_actions
from tests.structure.source import ROOT

#: Operations that environments in memory do in methods of their own, not in ``MemoryOperator``.
OF_THE_ENVIRONMENT = {"cancel", "terminate", "reset", "fork"}
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
    """Whether memory performs the operation: in ``MemoryOperator``, or beside messages and reads."""
    return name in memory_actions.OPERATIONS or name in OF_THE_ENVIRONMENT


def other_permissions(names: Iterable[str], permissions: Mapping[str, str]) -> list[str]:
    """Name the operations whose permission in memory is not the one that their class declares."""
    return [
        f"{name} takes {STEERING[name].permission}: add it to _PERMISSIONS of testing/memory_actions.py"
        for name in names
        if permissions.get(name, "retry_activity") != STEERING[name].permission
    ]


def test_each_operation_is_a_method_of_the_handle_and_is_performed_in_memory() -> None:
    assert without_method(STEERING) == []


def test_each_operation_takes_the_same_permission_in_memory() -> None:
    names = [name for name in STEERING if name not in OF_THE_ENVIRONMENT]

    assert other_permissions(names, memory_actions._PERMISSIONS) == []


def test_each_operation_is_on_a_how_to_page() -> None:
    missing = [name for name in STEERING if not re.search(rf"[`.]{name}\b", PAGES)]

    assert [f"no page of docs/howto names {name}" for name in missing] == []


def test_what_is_missing_is_named() -> None:
    assert without_method(["juggle"]) == [
        "WorkflowHandle has no method juggle: see docs/how-to-add.md",
        "MemoryOperator has no method juggle: see docs/how-to-add.md",
    ]
    assert other_permissions(["pause"], {}) == [
        "pause takes pause_instance: add it to _PERMISSIONS of testing/memory_actions.py"
    ]
