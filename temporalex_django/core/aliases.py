"""Names that activities and classes had once: runs and histories that hold them go on with what has the new one."""

from __future__ import annotations

#: By the old name the present one.
ACTIVITIES: dict[str, str] = {}
WORKFLOWS: dict[str, str] = {}
_ALIASES_BY_ATTRIBUTE = {"activity": ACTIVITIES, "workflow": WORKFLOWS}


def is_same_name(attribute: str, recorded: object, produced: object) -> bool:
    """Whether what is recorded under an attribute of an event is what code calls so now."""
    if recorded == produced:
        return True
    current_names = _ALIASES_BY_ATTRIBUTE.get(attribute)
    return current_names is not None and isinstance(recorded, str) and current_names.get(recorded) == produced


def current_name(workflow: str) -> str:
    """The name that a class has now."""
    return WORKFLOWS.get(workflow, workflow)


def original_name(workflow: str) -> str:
    """The name that a class had first, of those it says: ids are unique under that one, whichever code starts a run."""
    return next((old for old, new in WORKFLOWS.items() if new == workflow), workflow)


def all_names(workflow: str) -> list[str]:
    """The name of a class, and those that it had once."""
    return [workflow, *(old for old, new in WORKFLOWS.items() if new == workflow)]
