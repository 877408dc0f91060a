"""Human tasks as somebody sees them: titles, comments and what they show are payloads of their run.

The people whom a task asks see all of it, and so does the person who decided it. Everybody else sees what they may see
of the run (``access.view_of``).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from temporalex_django.access import policy, view_of
from temporalex_django.actions.base import storage
from temporalex_django.actions.inbox import principals
from temporalex_django.authoring import people
from temporalex_django.authoring.people import Person
from temporalex_django.models import HumanTask, Instance


def seen(tasks: Iterable[HumanTask], user: Person | None) -> list[HumanTask]:
    """The tasks as this person sees them; code sees all. At most two reads for each person whose word counts.

    What is hidden from somebody is hidden in a copy, which is not to be stored.
    """
    found = [*tasks]
    if user is None or not found:
        return found
    words = [_Words(one) for one in (user, *principals(user))]
    key = people.key_of(user)
    return [
        task if key == task.decided_by_key or any(one.mean(task) for one in words) else _viewed(task, user)
        for task in found
    ]


class _Words:
    """Everything that a person answers to, see ``people.answers_to``."""

    def __init__(self, user: Person) -> None:
        known = people.sender(user)
        self.active = bool(getattr(user, "is_active", True))
        self.all_roles = bool(getattr(user, "is_superuser", False))
        groups = user.groups.values_list("name", flat=True) if hasattr(user, "groups") else ()
        self.words = {f"group:{name}" for name in groups} | {f"perm:{name}" for name in policy().permissions(user)}
        self.own = "" if known is None else f"user:{known.name}"

    def mean(self, task: HumanTask) -> bool:
        """Whether the task asks for this person."""
        asked = [*task.asked, *(f"user:{one['to']}" for one in task.delegated)]
        return self.active and any(
            word == self.own or word in self.words or (self.all_roles and not word.startswith("user:"))
            for word in asked
        )


def _viewed(task: HumanTask, user: Person) -> HumanTask:
    known = {"id": task.run_id, "chain_id": task.chain_id, "workflow_id": task.workflow_id, "workflow": task.workflow}
    view = view_of(user, Instance.from_db(storage().alias, [*known], [*known.values()]))
    shown = copy(task)
    shown.title = view.text(task.title)
    shown.comment = view.text(task.comment) if task.comment else ""
    shown.shown_value = None if task.shows is None else view.value(task.shown_value)
    return shown
