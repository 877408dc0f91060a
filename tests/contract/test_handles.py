"""``WorkflowHandle`` is one class: each of its methods is a request that a backend performs."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from temporalex_django import Ok, Unique, Workflow, WorkflowHandle, api, errors
from temporalex_django.authoring.handle import make_handle
from temporalex_django.authoring.requests import RunAddress, RunRequest, StartRequest
from temporalex_django.client import READS, backend
from temporalex_django.graph import Done, Engine, GraphWorkflow, WaitForEvent
from temporalex_django.operations.registry import ACTIONS
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import once

#: Arguments for a call of each method that needs some.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("signal", "update", "query", "resume", "decide"), ("name",)),
    **dict.fromkeys(("retry_activity", "complete_activity", "skip_timer"), (1,)),
    "fail_activity": (1, "message"),
}


class Waiting(GraphWorkflow):
    """Waits for an event that never comes."""

    unique = Unique(key="waiting")
    initial = webhook = WaitForEvent("paid")
    transitions = {(webhook, "paid"): Done}


class Signalled(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Recorder:
    """A backend that keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[RunAddress, RunRequest[Any]]] = []

    def perform(self, address: RunAddress, request: RunRequest[Any]) -> str:
        self.requests.append((address, request))
        return "performed"

    async def aperform(self, address: RunAddress, request: RunRequest[Any]) -> str:
        self.requests.append((address, request))
        return "performed in async"


def methods() -> list[str]:
    members = inspect.getmembers_static(WorkflowHandle, inspect.isfunction)
    names = {name for name, _ in members if not name.startswith("_")}
    return sorted(name for name in names if f"a{name}" in names)


def shape(member: Any) -> list[Any]:
    return [(p.name, p.kind, p.default, p.annotation) for p in inspect.signature(member).parameters.values()]


def recorded() -> tuple[WorkflowHandle[Any], Recorder]:
    recorder: Any = Recorder()
    return make_handle(RunAddress(id="order-1"), recorder), recorder


@pytest.mark.parametrize("name", methods())
def test_a_method_is_a_request_of_its_name(name: str) -> None:
    handle, recorder = recorded()

    assert getattr(handle, name)(*ARGUMENTS.get(name, ()), by="ann") == "performed"

    ((address, request),) = recorder.requests
    assert (address, request.operation, request.by) == (RunAddress(id="order-1"), name, "ann")


@pytest.mark.parametrize("name", methods())
def test_the_async_method_makes_the_same_request(name: str) -> None:
    handle, recorder = recorded()

    getattr(handle, name)(*ARGUMENTS.get(name, ()))
    twin = getattr(handle, f"a{name}")(*ARGUMENTS.get(name, ()))
    assert asyncio.run(twin) == "performed in async"

    assert recorder.requests[0] == recorder.requests[1]


@pytest.mark.parametrize("name", methods())
def test_the_async_method_takes_and_returns_what_the_other_one_does(name: str) -> None:
    method, async_method = getattr(WorkflowHandle, name), getattr(WorkflowHandle, f"a{name}")

    assert (inspect.iscoroutinefunction(method), inspect.iscoroutinefunction(async_method)) == (False, True)
    assert shape(async_method) == shape(method)
    assert (async_method.__name__, async_method.__qualname__) == (f"a{name}", f"WorkflowHandle.a{name}")
    assert inspect.signature(method).return_annotation == inspect.signature(async_method).return_annotation
    assert "RunRequest" not in inspect.signature(method).return_annotation


def test_every_method_has_an_async_one() -> None:
    members = inspect.getmembers_static(WorkflowHandle, inspect.isfunction)
    plain = {name for name, member in members if not name.startswith("_") and not inspect.iscoroutinefunction(member)}

    assert sorted(plain) == methods()


def test_the_database_performs_every_request() -> None:
    assert [name for name in methods() if name not in ACTIONS and name not in READS] == []


def test_memory_performs_every_request() -> None:
    handle = WorkflowEnvironment().start(once(lambda: Ok()))
    unknown = []
    for name in methods():
        try:
            getattr(handle, name)(*ARGUMENTS.get(name, ()))
        except AttributeError:
            unknown.append(name)
        except errors.TemporalexError:
            pass  # the run is closed, or has nothing of that name

    assert unknown == []


def test_an_engine_refuses_the_requests_that_need_django() -> None:
    with Engine("handles") as engine:
        handle = engine.backend.start(StartRequest(workflow=Waiting, value="1"))

        assert type(handle) is WorkflowHandle
        for name in sorted({*methods()} - {"instance", "describe", "resume", "cancel", "result"}):
            with pytest.raises(errors.NotConfigured, match=f"{name} of waiting::1 requires the durable runtime"):
                getattr(handle, name)(*ARGUMENTS.get(name, ()))
        for name in ("instance", "describe", "cancel", "result"):
            with pytest.raises(errors.NotConfigured, match="by= requires the durable runtime"):
                getattr(handle, name)(by="ann")
        handle.cancel()
        assert handle.status == "cancelled"


def test_a_version_that_the_class_does_not_have_starts_nothing() -> None:
    with pytest.raises(errors.UnknownVersion):
        Signalled.signal_with_start("go", id="order-1", version=2)
    with pytest.raises(TypeError, match="has no option colour"):
        Signalled.signal_with_start("go", id="order-1", colour="red")


def test_a_handle_belongs_to_the_backend_that_the_application_is_bound_to() -> None:
    handle = WorkflowHandle("order-1")

    assert handle == make_handle(RunAddress(id="order-1"), backend())
    assert repr(handle) == "<WorkflowHandle 'order-1'>"
    assert hash(handle) == hash(WorkflowHandle("order-1"))
    assert handle != WorkflowHandle("order-2")
    assert handle != recorded()[0]
