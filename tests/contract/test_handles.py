"""``WorkflowHandle`` is a contract: whoever implements it takes what it takes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from temporalex_django import WorkflowHandle
from temporalex_django.client import DatabaseHandle
from temporalex_django.graph.standalone.backend import EngineHandle
from temporalex_django.testing.handles import EnvironmentHandle

KINDS: list[type[WorkflowHandle[Any]]] = [DatabaseHandle, EnvironmentHandle]


def shape(member: Any) -> Any:
    """Names, kinds and defaults of what it takes, and whether it is a coroutine function."""
    if isinstance(member, property):
        return "property"
    parameters = inspect.signature(member).parameters.values()
    return inspect.iscoroutinefunction(member), [(p.name, p.kind, p.default) for p in parameters]


def public(cls: type) -> dict[str, Any]:
    found = inspect.getmembers_static(cls, lambda member: isinstance(member, property) or inspect.isfunction(member))
    return {name: member for name, member in found if not name.startswith("_")}


def raises_not_implemented(member: Any) -> bool:
    code = (member.fget if isinstance(member, property) else member).__code__
    return "NotImplementedError" in code.co_names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(public(WorkflowHandle)))
def test_every_handle_takes_what_the_contract_says(kind: type, name: str) -> None:
    member = public(kind)[name]

    assert shape(member) == shape(public(WorkflowHandle)[name])
    assert not raises_not_implemented(member)


@pytest.mark.parametrize("name", sorted(public(WorkflowHandle).keys() & public(EngineHandle).keys()))
def test_the_handle_of_an_engine_takes_nothing_that_the_contract_does_not(name: str) -> None:
    """What it leaves out it would have to ignore."""
    of_engine, of_contract = shape(public(EngineHandle)[name]), shape(public(WorkflowHandle)[name])
    if isinstance(of_contract, str):
        assert of_engine == of_contract
        return
    left = {"instance": {"by"}, "describe": {"by"}, "result": {"by"}, "resume": {"timeout"}}.get(
        name.removeprefix("a"), set()
    )
    assert of_engine == (of_contract[0], [one for one in of_contract[1] if one[0] not in left])


@pytest.mark.parametrize(
    "name", sorted(name for name in public(WorkflowHandle) if f"a{name}" in public(WorkflowHandle))
)
def test_an_async_twin_takes_what_the_other_half_takes(name: str) -> None:
    (is_async, parameters), (twin_is_async, of_twin) = (shape(public(WorkflowHandle)[n]) for n in (name, f"a{name}"))

    assert (is_async, twin_is_async) == (False, True)
    assert of_twin == parameters


def test_every_method_has_a_twin() -> None:
    members = public(WorkflowHandle)
    plain = {name for name, member in members.items() if inspect.isfunction(member) and f"a{name}" not in members}

    assert {name for name in plain if not inspect.iscoroutinefunction(members[name])} == set()


def test_a_handle_is_of_the_kind_that_belongs_to_where_runs_live() -> None:
    handle = WorkflowHandle("order-1")

    assert type(handle) is DatabaseHandle
    assert repr(handle) == "<WorkflowHandle 'order-1'>"
    assert handle == WorkflowHandle("order-1")
    assert hash(handle) == hash(WorkflowHandle("order-1"))
    assert handle != WorkflowHandle("order-2")
