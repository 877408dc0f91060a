"""The titles by which people read the names of workflows, activities and steps.

A title is the one that the code declares, or the first line of the docstring, or the name as words.
"""

from __future__ import annotations

from typing import Any

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import workflow as workflows
from temporalex_django.errors import TemporalexError
from temporalex_django.graph.steps import class_of, key_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.present.formatting import display_title


def class_or_none(workflow: str, version: int) -> Any:
    """Return the workflow class of that name and version, or None if this process does not have it."""
    try:
        return workflows.class_for_run(workflow, version)
    except TemporalexError:
        return None


def workflow_title(workflow: str, version: int | None = None) -> str:
    """Return the title of a workflow class.

    It is derived from the name alone if this process does not have the class.
    """
    workflow_class = workflows.find_or_none(workflow) if version is None else class_or_none(workflow, version)
    return display_title(
        getattr(workflow_class, "title", None),
        vars(workflow_class).get("__doc__") if workflow_class else None,
        workflow,
    )


def activity_title(name: str) -> str:
    """Return the title of an activity; for an activity that runs a step of a graph, the title of the step's class."""
    definition = activities.registry.get(name)
    if definition is None:
        return display_title(None, None, name)
    # Steps of graphs run as activities whose function is our own, so its docstring would be the wrong title.
    step = getattr(definition, "step_class", None)
    if step is not None:
        return display_title(step.label, vars(step).get("__doc__"), step.__name__)
    return display_title(definition.label, definition.__wrapped__.__doc__, name)


def step_title(code: Any, key: str) -> str:
    """Return the title of the step with that key in the graph class ``code``.

    It is derived from the key if ``code`` is no graph class or has no such step.
    """
    if isinstance(code, type) and issubclass(code, GraphWorkflow):
        for step in code.graph():
            if key_of(step) == key:
                cls = class_of(step)
                label = step.label or (
                    vars(cls).get("__doc__") if cls.__module__.partition(".")[0] != _OWN_PACKAGE else None
                )
                return display_title(label, None, key)
    return display_title(None, None, key)


_OWN_PACKAGE = __name__.partition(".")[0]
