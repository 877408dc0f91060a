"""The workflow classes as REST describes them, with JSON Schemas of their arguments from the annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from temporalex_django.access import policy
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.declared_messages import MessageKind, messages_of
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.payloads.codec import resolve_hints
from temporalex_django.graph.workflow import GraphWorkflow


def type_rows_of(name: str, user: Person) -> list[dict[str, Any]]:
    """Return the fields of ``TypeOut`` for each version of the workflow class ``name`` that this process has.

    ``startable`` is True if ``user`` may start it over REST. An unknown name gives an empty list.
    """
    return [_type_row(cls, user) for cls in workflows.concrete_classes() if cls.name == name]


def schema_of(annotation: Any) -> Any:
    """Return the JSON Schema of an annotation, or None if it allows anything or has no schema."""
    if annotation is Any or annotation is inspect.Parameter.empty:
        return None
    try:
        return msgspec.json.schema(annotation)
    # Types of the project without a schema still decode: clients just get no description of them.
    except TypeError:
        return None


def _type_row(cls: type[Workflow], user: Person) -> dict[str, Any]:
    return {
        "workflow": cls.name,
        "version": cls.version,
        "startable": policy().startable(user, cls),
        "queue": cls.task_queue,
        "about": inspect.cleandoc(cls.__doc__ or ""),
        "unique": None if cls.unique is None else cls.unique.key,
        "args": schema_of(cls.definition.args_type),
        "signals": [*_message_rows(cls, "signal")],
        "updates": [*_message_rows(cls, "update")],
        "queries": [*_query_rows(cls)],
        "events": sorted(_event_names(cls)),
    }


def _message_rows(cls: type[Workflow], kind: MessageKind) -> Iterator[dict[str, Any]]:
    for message in sorted(messages_of(cls).values(), key=lambda message: message.name):  # type: ignore[arg-type] # classes are
        if message.kind == kind:
            yield {
                "name": message.name,
                "schema": schema_of(message.args_type),
                "returns": schema_of(message.answer_type),
                "permission": message.permission,
                "about": message.about,
            }


def _query_rows(cls: type[Workflow]) -> Iterator[dict[str, Any]]:
    for name, fn in sorted(cls.queries().items()):
        yield {
            "name": name,
            "schema": schema_of(_query_argument_type(fn)),
            "returns": schema_of(resolve_hints(fn).get("return", Any)),
            "permission": None,
            "about": inspect.getdoc(fn) or "",
        }


def _query_argument_type(fn: Callable[..., Any]) -> Any:
    """Return the annotation of the argument of a query function, which comes after the state."""
    parameters = [*inspect.signature(fn).parameters]
    # A query without an argument takes null alone.
    if len(parameters) > 1:
        return resolve_hints(fn).get(parameters[1], Any)
    return type(None)


def _event_names(cls: type[Workflow]) -> set[str]:
    """Return the names of the events that steps of a graph class take from outside.

    The set is empty for a class that is not a graph.
    """
    if not issubclass(cls, GraphWorkflow):
        return set()
    return {event for step in cls.graph() if getattr(step, "waits", False) for event in step.events}
