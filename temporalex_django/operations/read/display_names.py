"""The titles by which people read the names of workflows, activities, steps and waits.

A title is the one that the code declares, or the first line of the docstring, or the name as words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.errors import TemporalexError
from temporalex_django.graph.steps import class_of, key_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.present.formatting import display_title, humanize_name

_OWN_PACKAGE = __name__.partition(".")[0]


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
    if workflow_class is None:
        return display_title(None, None, workflow)
    return display_title(getattr(workflow_class, "title", None), vars(workflow_class).get("__doc__"), workflow)


def workflow_noun(workflow: str, version: int | None = None) -> str:
    """Return the name under which sentences mention a workflow class: its declared title, or its name in words.

    A docstring is a sentence of its own, so it is no name.
    """
    workflow_class = workflows.find_or_none(workflow) if version is None else class_or_none(workflow, version)
    return display_title(getattr(workflow_class, "title", None), None, workflow)


def activity_noun(name: str) -> str:
    """Return the name under which sentences mention an activity: its label, or its name in words."""
    definition = activities.registry.get(name)
    if definition is None:
        return display_title(None, None, name)
    step = getattr(definition, "step_class", None)
    if step is not None:
        return display_title(step.label, None, step.__name__)
    return display_title(definition.label, None, name)


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
                is_own = cls.__module__.partition(".")[0] == _OWN_PACKAGE
                documentation = None
                if not is_own:
                    documentation = vars(cls).get("__doc__")
                return display_title(step.label or documentation, None, key)
    return display_title(None, None, key)


def wait_title(wait: Mapping[str, Any], code: Any, redactor: Redactor) -> str:
    """Return the title under which people read a wait; ``wait`` is an entry of the column ``waits`` of a run.

    ``code`` is the class of the run, or None. ``redactor`` hides a title that may quote payloads.
    """
    match wait.get("kind"):
        case "step":
            return step_title(code, str(wait.get("name")))
        case "child":
            return workflow_title(str(wait.get("name")))
        # The title of a human task may quote payloads.
        case "human_task" if not redactor.shows_error_text:
            return _("the human task %(key)s") % {"key": wait.get("name")}
        case _:
            return str(wait.get("label") or "")


def wait_noun(wait: Mapping[str, Any], code: Any) -> str:
    """Return the name under which sentences mention a wait, if its title may be a docstring, or else an empty text.

    ``wait`` is an entry of the column ``waits`` of a run; ``code`` is the class of the run, or None.
    """
    match wait.get("kind"):
        case "step":
            key = str(wait.get("name"))
            return display_title(_step_label(code, key), None, key)
        case "child":
            return workflow_noun(str(wait.get("name")))
        case _:
            return ""


def _step_label(code: Any, key: str) -> object:
    """Return the label that the code of a step declares, or None; ``code`` and ``key`` are those of ``step_title``."""
    if isinstance(code, type) and issubclass(code, GraphWorkflow):
        return next((step.label for step in code.graph() if key_of(step) == key), None)
    return None


def wait_messages(wait: Mapping[str, Any], accepts: Mapping[str, Any]) -> list[str]:
    """Return the names, as people read them, of the messages that end a wait of a run.

    ``wait`` is an entry of the column ``waits`` of the run. ``accepts`` is its column ``accepts``: the lists of updates
    and signals that the open phase of the run takes.
    """
    match wait.get("kind"):
        case "phase":
            labels = wait.get("labels") or {}
            names = [*(accepts.get("updates") or ()), *(accepts.get("signals") or ())]
            return [labels.get(name) or humanize_name(name) for name in names]
        case "signal":
            return [humanize_name(str(wait.get("name")))]
        case "step" | "human_task":
            return [humanize_name(str(event)) for event in wait.get("events") or ()]
        case _:
            return []
