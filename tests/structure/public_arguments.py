"""Every argument that the outside can give: of calls, of subclasses, of settings and of REST bodies."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from temporalex_django.authoring.run_filters import CODE_FILTERS

#: Modules of the public names, and what else users get into their hands.
_PACKAGES = ("temporalex_django", "temporalex_django.graph", "temporalex_django.testing")
#: Objects for reading: what they are made with is the library's business.
_READ_ONLY = frozenset({"Instance", "Context", "ExecutionEntry", "TimedOut"})
#: The pure engine and the connectors take instances and steps of the caller's; their tests are theirs.
_MODULES = frozenset({"errors", "api", "engine", "connectors"})
_ATTRIBUTES = {
    "Workflow": "name task_queue unique version tags metadata execution_timeout run_timeout retention chain_retention signals aliases",
    "GraphWorkflow": "initial transitions retry engine",
    "VersionedWorkflow": "name versions current",
    "Step": "events key retry timeout heartbeat queue atomic",
}
_OF_DEFINITION = frozenset(
    {"atomic", "concurrency", "rate", "concurrency_per_key", "lane", "by_hand", "shared_transaction"}
)
_OF_LIST = ("by", "value", *CODE_FILTERS)


def arguments() -> dict[str, list[str]]:
    """Names of the arguments by what takes them; an ``a``-prefixed twin counts as its other half."""
    import importlib

    found: dict[str, list[str]] = {}
    for package in _PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if name in _READ_ONLY or name in _MODULES or isinstance(value, str):
                continue
            if inspect.isclass(value):
                _of_class(name, value, found)
            elif name == "activity":
                found[name] = ["name", "aliases", *_fields(_options())]
            else:
                found[name] = _of_function(value)
    from temporalex_django import api
    from temporalex_django.authoring.start_api import Startable
    from temporalex_django.testing.environment_base import EnvironmentHandle, EnvironmentUpdate

    for name, value in vars(api).items():
        if inspect.isfunction(value) and value.__module__ == api.__name__ and not name.startswith("_"):
            found[f"api.{name}"] = _of_function(value)
    _of_class("EnvironmentHandle", EnvironmentHandle, found, made=False)
    _of_class("EnvironmentUpdate", EnvironmentUpdate, found, made=False)
    for owner, names in _ATTRIBUTES.items():
        found[owner] = [*names.split(), *found.get(owner, [])]
    found["Activity.options"] = [name for name in _fields(_options()) if name not in _OF_DEFINITION]
    found["Workflow.list"] = [*_OF_LIST]
    found.update(
        (f"Workflow.{name}", _of_function(vars(Startable)[f"_{name}"])) for name in ("resume", "get", "cancel")
    )
    found["settings"] = _settings()
    found.update(_rest_bodies())
    return {owner: names for owner, names in found.items() if names}


def twins() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Each function with its async half."""
    from temporalex_django import VersionedWorkflow, Workflow, WorkflowHandle
    from temporalex_django.authoring import start_api

    for owner in (WorkflowHandle, VersionedWorkflow, Workflow):
        for name, fn in inspect.getmembers(owner, inspect.isroutine):
            if (
                not name.startswith("_")
                and callable(other := getattr(owner, f"a{name}", None))
                and f"a{name}" in vars(owner)
            ):
                yield f"{owner.__name__}.{name}", fn, other
    for name, fn in vars(start_api.Startable).items():
        if inspect.isfunction(fn) and (other := vars(start_api.Startable).get(f"_a{name[1:]}")) is not None:
            yield f"Startable.{name[1:]}", fn, other


def _of_class(name: str, cls: type, found: dict[str, list[str]], *, made: bool = True) -> None:
    if made and (dataclasses.is_dataclass(cls) or "__init__" in vars(cls)):
        found[name] = _of_function(cls.__init__)
    for member, value in inspect.getmembers(cls, callable):
        fn = inspect.unwrap(getattr(value, "__func__", value))
        # what only types promise is not called; what a subclass is to write takes nothing from users
        if member.startswith("_") or not inspect.isfunction(fn) or not fn.__module__.startswith("temporalex_django."):
            continue
        if member.startswith("a") and callable(getattr(cls, member[1:], None)):
            continue
        hook = member in _HOOKS and not name.endswith("Handle")  # users call all that a handle has
        parameters = [] if hook else _of_function(fn)
        if parameters and not _inherited(name, cls, member):
            found[f"{name}.{member}"] = parameters


#: Written by users or called by the library itself.
_HOOKS = frozenset(
    {"run", "execute", "timer", "handle_query", "answer", "choose", "resolve_version", "is_versioned", "version_for"}
    | {"send", "close", "outcome", "row", "run_ids", "class_of", "perform", "instance_of", "chain_ids", "from_async"}
    | {"remember_person", "remember_class", "remember_new_class", "generate_id", "evict_run", "list_runs", "note"}
    | {"human_tasks"}
    | {"start_instance", "check", "forget", "recover", "wait", "put", "delete", "schedule_resume"}
)


def _inherited(name: str, cls: type, member: str) -> bool:
    """Whether the base that defines it is a public class of its own."""
    return name in {
        "GraphWorkflow",
        "VersionedWorkflow",
        "Done",
        "Wait",
        "WaitForEvent",
        "Debug",
        "Approval",
        "DjangoEnvironment",
        "EnvironmentHandle",
    } and (member not in vars(cls))


def _of_function(fn: Callable[..., Any]) -> list[str]:
    skipped = {"self", "cls", "positional", "options"}
    parameters = inspect.signature(fn).parameters.values()
    return [
        p.name
        for p in parameters
        if p.name not in skipped and not p.name.startswith("_") and p.kind is not p.VAR_KEYWORD
    ]


def _options() -> type:
    from temporalex_django.authoring.activity import ActivityOptions

    return ActivityOptions


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _settings() -> list[str]:
    from temporalex_django.conf import Settings

    return _fields(Settings)


def _rest_bodies() -> dict[str, list[str]]:
    from temporalex_django.rest import serializers

    return {
        f"REST.{name}": [*cls().fields]
        for name, cls in vars(serializers).items()
        if inspect.isclass(cls) and name.endswith("Body")
    }
