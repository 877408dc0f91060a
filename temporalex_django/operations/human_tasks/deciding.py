"""Queries about human tasks: why a user may not decide one, the text that says so, and the tasks of visible runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.utils import timezone

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.db.people.deciders import undecidable_tasks
from temporalex_django.errors import TemporalexError
from temporalex_django.models import HumanTask, HumanTaskQuerySet, Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.human_tasks.base import admit_decider
from temporalex_django.operations.human_tasks.inbox import inbox
from temporalex_django.present.human_tasks import TaskView, describe_task


def why_not(task: HumanTask, user: Person) -> str | None:
    """Return the reason why this user may not decide the task now, as a sentence, or None if they may.

    Locks nothing, so somebody else may decide before them.
    """
    try:
        admit_decider(user, task, storage=storage())
    except TemporalexError as exc:
        return f"{exc.message[:1].upper()}{exc.message[1:]}."
    return None


def is_claimed(task: HumanTask) -> bool:
    """Return True if somebody has claimed the task, by the clock of the database."""
    return task.claimed_until is not None and task.claimed_until > storage().now()


def tasks_of_visible_runs(user: Person) -> HumanTaskQuerySet:
    """Return the human tasks of the runs that the user may look at, open and closed, regardless of who decides them.

    Raises ``ActionNotPermitted``.
    """
    alias = storage().alias
    access.require_access(user, access.VIEW, alias=alias)
    runs = access.runs_for(user, alias=alias)
    tasks = HumanTask.objects.using(alias)
    return tasks.all() if runs is None else tasks.filter(run__in=runs.order_by().values("pk"))


def subject_text(run: Instance) -> str:
    """Return the text of the object that a run is about.

    If the object was deleted, this is its kind and key. It is empty for a run without a subject. One query, unless
    Django has loaded the subject before.
    """
    if run.subject_type is None:
        return ""
    return str(run.subject or f"{run.subject_type.name} {run.subject_id}")


def mark_nobody_left(*tasks: HumanTask) -> Sequence[HumanTask]:
    """Set ``nobody_left`` on each task: True if nobody is left who may decide it.

    See ``db.people.deciders`` for what this reads.
    """
    undecidable_ids = undecidable_tasks(tasks, alias=storage().alias)
    for task in tasks:
        task.nobody_left = task.pk in undecidable_ids
    return tasks


def task_sentence(task: HumanTask, *, subject: str = "") -> str:
    """Return the question of a task in a sentence or two.

    ``subject`` is the result of ``subject_text``. No query.
    """
    task_view = TaskView(
        title=task.title,
        about=subject,
        requested_by=task.requested_by_name,
        opened_at=task.opened_at,
        due_at=task.due_at,
        escalated_at=task.escalated_at,
        claimed_by=task.claimed_by_name,
        claimed_until=task.claimed_until,
        closed_at=task.closed_at,
        ending=task.ending,
        outcome=task.outcome,
        decided_by=task.decided_by_name,
        nobody_left=task.nobody_left,
    )
    return describe_task(task_view, now=timezone.now())


def value_as_json(task: HumanTask) -> str:
    """Return the value that people decide about as JSON for a page.

    The text is empty if there is no value.
    """
    value = task.shown_value
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def count_inbox(user: Person, *, limit: int) -> int:
    """Return the number of human tasks in the user's inbox, counted up to ``limit``. One query."""
    # A slice and no order let the database stop at ``limit`` instead of sorting and counting all tasks.
    return int(inbox(user).order_by()[:limit].count())


def find_user(name: str) -> Person | str:
    """Return the user with that login name, or the name itself if there is none.

    ``Delegate`` refuses a name in the same words as a user who may not decide.
    """
    users: Any = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - Django documents it
    return name if user is None else cast("Person", user)
