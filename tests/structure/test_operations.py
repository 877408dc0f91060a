"""Each operation that an operator performs has its place in every handle, in the kit and in the how-to pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from temporalex_django import Ok, WorkflowHandle
from temporalex_django.client import DatabaseHandle
from temporalex_django.operations.registry import STEERING
from temporalex_django.testing import WorkflowEnvironment, memory_actions
from tests.structure.source import ROOT
from tests.support.runs import once

#: Operations that environments in memory do in methods of their own, not in ``MemoryOperator``.
OF_THE_ENVIRONMENT = {"cancel", "terminate", "reset", "fork"}
PAGES = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "howto").glob("*.md")))


def memory_handle() -> type[WorkflowHandle[Any]]:
    return type(WorkflowEnvironment().start(once(lambda: Ok())))


def without_method(handle: type[Any], names: Iterable[str]) -> list[str]:
    """Name the operations that the class, or its base for all handles, does not implement."""
    return [
        f"{handle.__name__} has no method {name}: see docs/how-to-add.md"
        for name in names
        if not hasattr(handle, name)
        or (handle is not WorkflowHandle and getattr(handle, name) is getattr(WorkflowHandle, name, None))
    ]


def other_permissions(names: Iterable[str], permissions: Mapping[str, str]) -> list[str]:
    """Name the operations whose permission in memory is not the one that their class declares."""
    return [
        f"{name} takes {STEERING[name].permission}: add it to _PERMISSIONS of testing/memory_actions.py"
        for name in names
        if permissions.get(name, "retry_activity") != STEERING[name].permission
    ]


@pytest.mark.parametrize("handle", [WorkflowHandle, DatabaseHandle, memory_handle()], ids=lambda cls: cls.__name__)
def test_each_operation_is_a_method_of_the_handle(handle: type[Any]) -> None:
    assert without_method(handle, STEERING) == []


def test_each_operation_has_an_async_twin() -> None:
    assert [f"WorkflowHandle has no a{name}" for name in STEERING if not hasattr(WorkflowHandle, f"a{name}")] == []


def test_each_operation_is_done_in_memory_with_the_same_permission() -> None:
    names = [name for name in STEERING if name not in OF_THE_ENVIRONMENT]

    assert [f"MemoryOperator has no {name}" for name in names if not hasattr(memory_actions.MemoryOperator, name)] == []
    assert other_permissions(names, memory_actions._PERMISSIONS) == []


def test_each_operation_is_on_a_how_to_page() -> None:
    missing = [name for name in STEERING if not re.search(rf"[`.]{name}\b", PAGES)]

    assert [f"no page of docs/howto names {name}" for name in missing] == []


def test_what_is_missing_is_named() -> None:
    assert without_method(DatabaseHandle, ["juggle"]) == ["DatabaseHandle has no method juggle: see docs/how-to-add.md"]
    assert other_permissions(["pause"], {}) == [
        "pause takes pause_instance: add it to _PERMISSIONS of testing/memory_actions.py"
    ]
