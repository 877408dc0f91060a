"""Human tasks as somebody sees them: titles, comments and what they show are payloads of their run.

The people whom a task asks see all of it, and so does the person who decided it. Everybody else sees what they may see
of the run (``access.view_of``).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import cached_property

from temporalex_django.access import policy, view_of
from temporalex_django.actions.base import storage
from temporalex_django.actions.inbox import principals
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import HumanTask, Instance


def seen(tasks: Iterable[HumanTask], user: Person | None) -> list[HumanTask]:
    """The tasks as this person sees them; code sees all.

    Reads the groups and permissions of the person, and of those in whose place they decide, where the view of a run
    hides something. What is hidden is hidden in a copy, which is not to be stored.
    """
    if user is None:
        return [*tasks]
    asked = _Asked(user)
    return [_seen(task, user, asked) for task in tasks]


def _seen(task: HumanTask, user: Person, asked: _Asked) -> HumanTask:
    known = {"id": task.run_id, "chain_id": task.chain_id, "workflow_id": task.workflow_id, "workflow": task.workflow}
    view = view_of(user, Instance.from_db(storage().alias, [*known], [*known.values()]))
    decided = bool(asked.key) and asked.key == task.decided_by_key
    if (view.shows_error_text and task.shows is None) or decided or asked.by(task):
        return task
    shown = copy(task)
    shown.title = view.redact_text(task.title)
    shown.comment = view.redact_text(task.comment) if task.comment else ""
    shown.shown_value = None if task.shows is None else view.redact_payload(task.shown_value)
    return shown


class _Asked:
    """A person, with everybody in whose place they decide: which tasks ask for one of them."""

    def __init__(self, user: Person) -> None:
        self.user = user
        self.key = authorization.sender_key(user)

    @cached_property
    def words(self) -> list[_Words]:
        return [_Words(one) for one in (self.user, *principals(self.user))]

    def by(self, task: HumanTask) -> bool:
        return any(one.mean(task) for one in self.words)


class _Words:
    """Everything that a person answers to, see ``people.answers_to``; a superuser has each role."""

    def __init__(self, user: Person) -> None:
        known = authorization.sender_of(user)
        self.active = bool(getattr(user, "is_active", True))
        self.all_roles = bool(getattr(user, "is_superuser", False))
        self.words = set() if known is None else {f"user:{known.name}"}
        if self.active and not self.all_roles:
            groups = user.groups.values_list("name", flat=True) if hasattr(user, "groups") else ()
            self.words |= {f"group:{name}" for name in groups} | {f"perm:{name}" for name in policy().permissions(user)}

    def mean(self, task: HumanTask) -> bool:
        """Whether the task asks for this person."""
        asked = [*task.asked, *(f"user:{one['to']}" for one in task.delegated)]
        roles = self.all_roles and any(not word.startswith("user:") for word in asked)
        return self.active and (roles or not self.words.isdisjoint(asked))
