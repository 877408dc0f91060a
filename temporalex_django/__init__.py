"""Durable workflows in a Django project: the public names, imported at first use (PEP 562)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temporalex_django import errors
    from temporalex_django.authoring import api
    from temporalex_django.authoring.activity import activity
    from temporalex_django.authoring.activity_context import activity_context, progress
    from temporalex_django.authoring.activity_options import RetryPolicy, Unique
    from temporalex_django.authoring.declared_messages import signal, update
    from temporalex_django.authoring.handle import WorkflowHandle
    from temporalex_django.authoring.human_tasks import Escalation
    from temporalex_django.authoring.queries import query
    from temporalex_django.authoring.schedules.schedule import Overlap, Schedule
    from temporalex_django.authoring.versions import VersionedWorkflow
    from temporalex_django.authoring.workflow import Workflow
    from temporalex_django.core.human_tasks import Decision
    from temporalex_django.core.results import (
        Async,
        ContinueAsNew,
        Err,
        Event,
        NoReply,
        Ok,
        Pending,
        Reply,
        Stop,
        TimedOut,
    )
    from temporalex_django.db.once import once
    from temporalex_django.errors import RetryLater
    from temporalex_django.graph.definition import transit
    from temporalex_django.graph.engine import event
    from temporalex_django.graph.steps import Approval, Debug, Done, Step, Wait, WaitForEvent
    from temporalex_django.graph.workflow import GraphWorkflow

#: The module of each public name. Importing all of them here would load models before Django's apps are ready, and make
#: every management command slower.
_HOME = {
    "errors": "temporalex_django.errors",
    "api": "temporalex_django.authoring.api",
    "activity": "temporalex_django.authoring.activity",
    "activity_context": "temporalex_django.authoring.activity_context",
    "progress": "temporalex_django.authoring.activity_context",
    "once": "temporalex_django.db.once",
    "signal": "temporalex_django.authoring.declared_messages",
    "update": "temporalex_django.authoring.declared_messages",
    "RetryLater": "temporalex_django.errors",
    "RetryPolicy": "temporalex_django.authoring.activity_options",
    **dict.fromkeys(("Overlap", "Schedule"), "temporalex_django.authoring.schedules.schedule"),
    "Unique": "temporalex_django.authoring.activity_options",
    "Workflow": "temporalex_django.authoring.workflow",
    "VersionedWorkflow": "temporalex_django.authoring.versions",
    "GraphWorkflow": "temporalex_django.graph.workflow",
    "event": "temporalex_django.graph.engine",
    "transit": "temporalex_django.graph.definition",
    **dict.fromkeys(("Approval", "Debug", "Done", "Step", "Wait", "WaitForEvent"), "temporalex_django.graph.steps"),
    "Decision": "temporalex_django.core.human_tasks",
    "Escalation": "temporalex_django.authoring.human_tasks",
    "query": "temporalex_django.authoring.queries",
    "WorkflowHandle": "temporalex_django.authoring.handle",
    **dict.fromkeys(
        ("Async", "ContinueAsNew", "Err", "Event", "NoReply", "Ok", "Pending", "Reply", "Stop", "TimedOut"),
        "temporalex_django.core.results",
    ),
}
#: Public names that are modules themselves, and no attributes of one.
_MODULES = frozenset({"errors", "api"})

__version__ = "0.1.0.dev0"
__all__ = [  # noqa: RUF022 - grouped as the documentation groups them
    "Workflow", "GraphWorkflow", "VersionedWorkflow", "Step", "transit", "Done", "Wait", "WaitForEvent", "Debug", "Approval",
    "activity", "activity_context", "progress", "once", "api", "query", "signal", "update", "event",
    "Ok", "Err", "ContinueAsNew", "Reply", "NoReply", "Stop", "Async", "TimedOut", "Event", "Pending",
    "Decision", "Escalation", "RetryLater", "RetryPolicy", "Unique", "Schedule", "Overlap", "WorkflowHandle", "errors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'temporalex_django' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - paid by the first use of a name, not by the import of the package

    module = importlib.import_module(home)
    value = globals()[name] = module if name in _MODULES else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
