"""Former names of activities and workflow classes.

Runs and histories keep the name under which they were recorded. These tables map such a name to its present name.
"""

from __future__ import annotations

#: The present name by each former name. ``authoring`` fills both tables from the ``aliases`` that code declares.
ACTIVITIES: dict[str, str] = {}
WORKFLOWS: dict[str, str] = {}
_ALIASES_BY_ATTRIBUTE = {"activity": ACTIVITIES, "workflow": WORKFLOWS}


def is_same_name(attribute: str, recorded: object, produced: object) -> bool:
    """Return True if the recorded value of an event attribute equals the produced one, or is a former name of it.

    ``attribute`` is "activity" or "workflow"; the values of any other attribute have no former names. ``recorded``
    comes from the history, and ``produced`` from the command that the code issues in a replay.
    """
    if recorded == produced:
        return True
    current_names = _ALIASES_BY_ATTRIBUTE.get(attribute)
    return current_names is not None and isinstance(recorded, str) and current_names.get(recorded) == produced


def current_name(workflow: str) -> str:
    """Return the present name of a workflow class, given its present or a former name."""
    return WORKFLOWS.get(workflow, workflow)


def original_name(workflow: str) -> str:
    """Return the first alias that a class declares, or its own name if it declares none.

    Business ids are unique under this name, so old and new code that start a run agree on the scope.
    """
    return next((old for old, new in WORKFLOWS.items() if new == workflow), workflow)


def all_names(workflow: str) -> list[str]:
    """Return the name of a class, followed by its former names."""
    return [workflow, *(old for old, new in WORKFLOWS.items() if new == workflow)]
