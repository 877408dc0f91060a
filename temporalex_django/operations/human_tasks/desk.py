"""The open human tasks of a project by their candidates, and the people to whom they can be given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from temporalex_django.authoring import authorization
from temporalex_django.db.human_tasks import named_people
from temporalex_django.errors import HumanTaskClaimed
from temporalex_django.models import Candidate, HumanTask, HumanTaskQuerySet
from temporalex_django.operations.base import Actor, storage
from temporalex_django.operations.human_tasks.inbox import candidates_of
from temporalex_django.operations.human_tasks.operations import Delegate, Release

#: Groups that a desk has, and people from whom one can choose.
_MAX_GROUPS: Final = 50
MAX_PEOPLE: Final = 200


@dataclass(slots=True, kw_only=True)
class DeskGroup:
    """The open human tasks that ask one candidate, such as ``group:lawyers``.

    ``oldest`` is when the first of them was opened. ``overdue`` are past their due time, ``escalated`` were not decided
    in time once, and ``undecidable`` is the number of those that nobody can decide.
    """

    candidate: str
    oldest: datetime
    count: int = 0
    overdue: int = 0
    escalated: int = 0
    undecidable: int = 0


def desk_groups(tasks: Iterable[HumanTask], now: datetime) -> list[DeskGroup]:
    """Return the groups of open tasks, at most 50, those with tasks that nobody can decide first, then the largest.

    The tasks come from ``mark_nobody_left``. A task belongs to the group of each of its candidates. No query.
    """
    groups: dict[str, DeskGroup] = {}
    for task in tasks:
        for candidate in dict.fromkeys(candidates_of(task)):
            group = groups.setdefault(candidate, DeskGroup(candidate=candidate, oldest=task.opened_at))
            group.oldest = min(group.oldest, task.opened_at)
            group.count += 1
            group.overdue += task.due_at is not None and task.due_at <= now
            group.escalated += task.escalated_at is not None
            group.undecidable += bool(task.nobody_left or task.absent)
    rows = sorted(groups.values(), key=lambda group: (-group.undecidable, -group.overdue, -group.count, group.oldest))
    return rows[:_MAX_GROUPS]


def tasks_asking(tasks: HumanTaskQuerySet, candidate: str) -> HumanTaskQuerySet:
    """Return those of the open tasks that ask the candidate, such as ``group:lawyers``."""
    rows = Candidate.objects.using(storage().alias).filter(who=candidate, barred=False)
    return tasks.filter(pk__in=rows.values("task"))


def people_asked(tasks: Iterable[HumanTask]) -> list[str]:
    """Return the login names of active people whom the tasks ask, at most 200: they are used to decide. One read.

    They are named by a task, are members of its groups, or have its permissions.
    """
    candidates = {candidate for task in tasks for candidate in candidates_of(task)}
    return named_people(candidates, limit=MAX_PEOPLE, alias=storage().alias)


def reassign(task: HumanTask, *, to: Any, reason: str, by: Actor) -> None:
    """Delegate the task to the user ``to``, after the claim of somebody else has been released.

    Both are operations with permissions of their own. Raises what they raise.
    """
    try:
        Delegate(task, to=to, reason=reason, by=by).execute()
    except HumanTaskClaimed:
        Release(task, reason=reason, by=by).execute()
        Delegate(task, to=to, reason=reason, by=by).execute()


def claimed_by(tasks: HumanTaskQuerySet, user: authorization.Person) -> HumanTaskQuerySet:
    """Return those of the tasks that the user has claimed."""
    return tasks.filter(claimed_by_key=authorization.sender_key(user))


def oldest_open(tasks: HumanTaskQuerySet, limit: int) -> Sequence[HumanTask]:
    """Return the open tasks, the oldest first, without their data. One read."""
    return [*tasks.open().defer("shows", "form").order_by("opened_at", "pk")[:limit]]
