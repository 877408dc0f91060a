"""The activities that the code of a workflow class names."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.determinism.reachable_code import reachable_code


def named_activities(workflow: type[Workflow]) -> dict[str, Activity[Any, Any]]:
    """Return the activities that the code of a class names as globals or attributes of modules, by their names.

    Activities that code looks up otherwise are not found.
    """
    by_name: dict[str, Activity[Any, Any]] = {}
    for code, namespace in reachable_code(workflow, ()):
        by_name |= {value.name: value for value in _values(code.co_names, namespace) if isinstance(value, Activity)}
    return by_name


def _values(names: tuple[str, ...], namespace: dict[str, Any]) -> Iterator[Any]:
    for name in names:
        value = namespace.get(name)
        yield value
        if type(value) is ModuleType:
            yield from (vars(value)[attribute] for attribute in names if attribute in vars(value))
