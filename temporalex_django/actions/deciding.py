"""What faces ask about human tasks: why somebody may not decide, what they say, whose there are besides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.utils import timezone

from temporalex_django import access
from temporalex_django.actions.base import storage
from temporalex_django.actions.human_task import admit_decider
from temporalex_django.actions.inbox import inbox
from temporalex_django.authoring.authorization import Person
from temporalex_django.db.deciders import undecidable_tasks
from temporalex_django.errors import TemporalexError
from temporalex_django.models import HumanTask, HumanTaskQuerySet, Instance
from temporalex_django.present.human_tasks import TaskView, describe_task


def why_not(task: HumanTask, user: Person) -> str | None:
    """Why this person may not decide it now, in a sentence; None: he may. No lock: somebody may be quicker."""
    try:
        admit_decider(user, task, storage=storage())
    except TemporalexError as exc:
        return f"{exc.message[:1].upper()}{exc.message[1:]}."
    return None


def is_claimed(task: HumanTask) -> bool:
    """Whether somebody has it, by the clock of the database."""
    return task.claimed_until is not None and task.claimed_until > storage().now()


def tasks_of_visible_runs(user: Person) -> HumanTaskQuerySet:
    """Those of the runs that he may look at, open and closed, whoever decides them. Raises ``ActionNotPermitted``."""
    alias = storage().alias
    access.require_access(user, access.VIEW, alias=alias)
    runs = access.runs_for(user, alias=alias)
    tasks = HumanTask.objects.using(alias)
    return tasks.all() if runs is None else tasks.filter(run__in=runs.order_by().values("pk"))


def subject_text(run: Instance) -> str:
    """What the object that a run is about calls itself; its kind and key where it is gone, nothing where there is none.

    One query, where Django has not read it before.
    """
    if run.subject_type is None:
        return ""
    return str(run.subject or f"{run.subject_type.name} {run.subject_id}")


def mark_nobody_left(*tasks: HumanTask) -> Sequence[HumanTask]:
    """The tasks, each with whether nobody is left who may decide it; see ``db.deciders`` for what that reads."""
    undecidable_ids = undecidable_tasks(tasks, alias=storage().alias)
    for task in tasks:
        task.nobody_left = task.pk in undecidable_ids
    return tasks


def task_sentence(task: HumanTask, *, subject: str = "") -> str:
    """What is asked, in a sentence or two; ``subject`` as ``subject_text`` gives it. No query."""
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
    """Write the value that people decide about as JSON for a page; "" for nothing."""
    value = task.shown_value
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def count_inbox(user: Person, *, limit: int) -> int:
    """How many human tasks are in his inbox, counted up to ``limit``. One query."""
    return int(inbox(user).order_by()[:limit].count())


def find_user(name: str) -> Person | str:
    """The user who signs in with that name, or the name itself: ``Delegate`` refuses it as one who may not decide."""
    users: Any = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - Django documents it
    return name if user is None else cast("Person", user)
