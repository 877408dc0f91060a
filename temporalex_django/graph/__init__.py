"""The API of graph workflows: the pure engine, which works without Django, and the parts of which a graph is made.

Names are loaded when they are first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temporalex_django.core.results import Err, Event, Pending
    from temporalex_django.graph import connectors, engine
    from temporalex_django.graph.connectors import Connector
    from temporalex_django.graph.context import Context, ExecutionEntry
    from temporalex_django.graph.definition import transit
    from temporalex_django.graph.engine import event
    from temporalex_django.graph.instance import Instance
    from temporalex_django.graph.local_runner import LocalRunner, MemoryStorage
    from temporalex_django.graph.standalone_engine import Engine, lookup
    from temporalex_django.graph.steps import Approval, Debug, Done, Step, Wait, WaitForEvent
    from temporalex_django.graph.workflow import GraphWorkflow

_HOME = {
    **dict.fromkeys(("Err", "Event", "Pending"), "temporalex_django.core.results"),
    **dict.fromkeys(("Context", "ExecutionEntry"), "temporalex_django.graph.context"),
    **dict.fromkeys(("Engine", "lookup"), "temporalex_django.graph.standalone_engine"),
    "LocalRunner": "temporalex_django.graph.local_runner",
    "MemoryStorage": "temporalex_django.graph.local_runner",
    "Connector": "temporalex_django.graph.connectors",
    "Instance": "temporalex_django.graph.instance",
    **dict.fromkeys(("Approval", "Debug", "Done", "Step", "Wait", "WaitForEvent"), "temporalex_django.graph.steps"),
    "event": "temporalex_django.graph.engine",
    "transit": "temporalex_django.graph.definition",
    "GraphWorkflow": "temporalex_django.graph.workflow",
}

_MODULES = frozenset({"connectors", "engine"})

__all__ = [  # noqa: RUF022 - grouped as the documentation groups them
    "GraphWorkflow", "Step", "transit", "Done", "Wait", "WaitForEvent", "Debug", "Approval",
    "event", "Event", "Pending", "Err", "engine", "Instance", "Context", "ExecutionEntry", "Connector", "connectors",
    "Engine", "lookup", "MemoryStorage", "LocalRunner",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"temporalex_django.graph.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'temporalex_django.graph' has no attribute {name!r}")
    # From now on the name is a global of the module, and this function is not called for it again.
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
