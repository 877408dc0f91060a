"""The inbox of a person: the human tasks that he may decide now. And the look-up of one of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Now

from temporalex_django import access
from temporalex_django.actions.base import storage
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.errors import ActionNotPermitted, HumanTaskNotFound, WorkflowNotFound
from temporalex_django.models import Candidate, Ending, HumanTask, HumanTaskQuerySet, Instance

#: Kinds of waits behind which people are asked.
_HUMAN_WAIT_KINDS = ("human_task", "step")
Order = Literal["due", "opened"]
_ORDERS: dict[str, tuple[Any, ...]] = {
    "due": (F("due_at").asc(nulls_last=True), "opened_at", "pk"),
    "opened": ("opened_at", "pk"),
}


def inbox(user: Person, *, order: Order = "due", now: datetime | None = None) -> HumanTaskQuerySet:
    """The open human tasks that he may decide now: one query, of the open ones alone, whatever runs there are.

    By his name, groups and permissions, by those of whom he stands in for, and handed on to him; not those that
    somebody else has claimed, nor those that take another pair of eyes; of runs that there are for him. ``order``:
    what is due first, or what was opened first; filter it like any queryset. ``now`` stands for the clock of the
    database. Raises what the access policy raises.
    """
    alias = storage().alias
    user_key = authorization.sender_key(user)
    tasks = HumanTask.objects.using(alias).open().filter(_decidable_condition(user))
    tasks = tasks.filter(Q(claimed_until=None) | Q(claimed_until__lte=now or Now()) | Q(claimed_by_key=user_key))
    runs = access.runs_for(user, alias=alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    return tasks.order_by(*_ORDERS[order])


def open_tasks_of_run(run: UUID, *, user: Person | None = None) -> list[HumanTask]:
    """The open human tasks of a run, oldest first; for a person those that he may see. One query for code."""
    tasks = HumanTask.objects.using(storage().alias).open().filter(run_id=run).order_by("opened_at", "key")
    return [task for task in tasks if user is None or may_view(user, task)]


def awaited_tasks(run: Instance, *, limit: int) -> list[HumanTask]:
    """What a run asks people now, oldest first, for whoever may look at it; no query where it waits for nobody."""
    if not run.is_open or not any(wait.get("kind") in _HUMAN_WAIT_KINDS for wait in run.waits or ()):
        return []
    return [*HumanTask.objects.using(storage().alias).open().filter(run_id=run.pk).order_by("opened_at", "pk")[:limit]]


def all_tasks_of_run(run: UUID) -> list[HumanTask]:
    """The human tasks of a run, those that are not open any more too, oldest first."""
    return list(HumanTask.objects.using(storage().alias).filter(run_id=run).order_by("opened_at", "key"))


def to_open_human_task(task: HumanTask) -> OpenHumanTask:
    """A row as handles give it."""
    return OpenHumanTask(
        id=str(task.pk),
        key=task.key,
        title=task.title,
        outcomes=task.outcomes,
        asked=task.asked,
        opened_at=task.opened_at,
        due_at=task.due_at,
        reminders=task.reminders,
        escalated_at=task.escalated_at,
        four_eyes=task.four_eyes,
        form=task.form,
        shows=task.shown_value,
        claimed_by=task.claimed_by_name,
        claimed_until=task.claimed_until,
        happened="" if task.is_open else outcome_text(task),
    )


def outcome_text(task: HumanTask) -> str:
    """What became of a closed one."""
    at = "" if task.closed_at is None else task.closed_at.isoformat(timespec="seconds")
    match task.ending:
        case Ending.DECIDED:
            return f"{task.decided_by_name or 'code'} decided {task.outcome!r} at {at}"
        case Ending.OVERDUE:
            return f"nobody had decided by {at}, when it was due"
        case Ending.CANCELLED:
            return f"the run did not wait for it any more at {at}"
    return f"the run ended at {at}"


def find_task(pk: UUID | str, user: Person | None) -> HumanTask:
    """The human task of that id, open or not.

    Raises ``HumanTaskNotFound``, also for one that he may not see: those who may decide it (or might while it was
    open) do, and those who may look at its run.
    """
    try:
        task_id = pk if isinstance(pk, UUID) else UUID(pk)
    except (ValueError, AttributeError, TypeError):
        task_id = None
    task = None if task_id is None else HumanTask.objects.using(storage().alias).filter(pk=task_id).first()
    if task is None or (user is not None and not may_view(user, task)):
        raise HumanTaskNotFound(f"there is no human task {str(pk)[:50]!r}")
    return task


def may_view(user: Person, task: HumanTask) -> bool:
    """Whether there is that human task for him."""
    alias = storage().alias
    runs = access.runs_for(user, alias=alias)
    if runs is not None and not runs.filter(pk=task.run_id).exists():
        return False
    if matching_candidate(user, task) is not None or is_excluded(user, task):
        return True
    try:
        access.require_access(user, access.VIEW, alias=alias, run=task.run)
    except (ActionNotPermitted, WorkflowNotFound):
        return False
    return True


def matching_candidate(user: Person, task: HumanTask) -> tuple[str, Person] | None:
    """By which word he may decide it, and whose word that is: his own, or of somebody for whom he stands in.

    Of those who may not, since it takes another pair of eyes, only where there is nobody else.
    """
    candidates = candidates_of(task)
    excluded_match = None
    for person in (user, *principals(user)):
        for candidate in candidates:
            if authorization.matches_candidate(person, candidate, permits=access.policy().permits):
                if not task.four_eyes or not is_excluded(person, task):
                    return candidate, person
                excluded_match = excluded_match or (candidate, person)
                break
    return excluded_match


def candidates_of(task: HumanTask) -> list[str]:
    """List who may decide a task, as words (see ``HumanTask.asked``): people asked, and people it was handed on to."""
    return [*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated)]


def is_excluded(user: Person, task: HumanTask) -> bool:
    """Whether it takes another pair of eyes than his."""
    return task.candidates.filter(who=f"key:{authorization.sender_key(user)}", barred=True).exists()


def _decidable_condition(user: Person) -> Q:
    excluded = Q(pk__in=_excluded_task_ids(authorization.sender_key(user)))
    decidable = Q(pk__in=_candidate_task_ids(user))
    for person in principals(user):
        decidable |= Q(pk__in=_candidate_task_ids(person)) & ~Q(
            pk__in=_excluded_task_ids(authorization.sender_key(person))
        )
    return decidable & ~excluded


def principals(user: Person) -> Collection[Person]:
    """The people in whose place this one may decide as well."""
    if not getattr(user, "is_active", True):
        return ()
    return [
        principal
        for principal in access.policy().stands_in_for(user)
        if getattr(principal, "pk", None) != getattr(user, "pk", 0)
    ]


def _excluded_task_ids(key: str) -> Any:
    return Candidate.objects.using(storage().alias).filter(who=f"key:{key}", barred=True).values("task")


def _candidate_task_ids(user: Person) -> Any:
    """Ids of the open human tasks that ask for him; a superuser is in each group, and has each permission."""
    candidates = Candidate.objects.using(storage().alias).filter(barred=False)
    if not getattr(user, "is_active", True):
        return candidates.none().values("task")
    sender = authorization.sender_of(user)
    own_names = [] if sender is None else [f"user:{sender.name}"]
    if getattr(user, "is_superuser", False):
        return candidates.filter(
            Q(who__in=own_names) | Q(who__startswith="group:") | Q(who__startswith="perm:")
        ).values("task")
    groups = user.groups.values_list("name", flat=True) if hasattr(user, "groups") else ()
    identities = [*own_names, *(f"group:{name}" for name in groups)]
    identities += [f"perm:{name}" for name in sorted(access.policy().permissions(user))]
    return candidates.filter(who__in=identities).values("task")
