"""The inbox of a person: the human tasks that they may decide now. It also has the functions that find other tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from temporalex_django import access
from temporalex_django.access import redactor_for
from temporalex_django.authoring import authorization, human_tasks
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.core.human_tasks import ending_text
from temporalex_django.errors import ActionNotPermitted, HumanTaskNotFound, WorkflowNotFound
from temporalex_django.models import Candidate, HumanTask, HumanTaskQuerySet, Instance
from temporalex_django.operations.base import storage

#: Kinds of waits that may have a human task.
_HUMAN_WAIT_KINDS = ("human_task", "step")
Order = Literal["due", "opened"]
_ORDERS: dict[str, tuple[Any, ...]] = {
    "due": (F("due_at").asc(nulls_last=True), "opened_at", "pk"),
    "opened": ("opened_at", "pk"),
}


def inbox(user: Person, *, order: Order = "due", now: datetime | None = None) -> HumanTaskQuerySet:
    """Return the open human tasks that the user may decide now.

    A task is in the inbox if one of its candidates is the user, a group or a permission of theirs, or matches a person
    on whose behalf they decide. A delegation adds a candidate. Left out are tasks that somebody else has claimed, tasks
    for which the user is excluded, and tasks of runs that the access policy hides from them.

    ``order`` is "due", for the earliest due time first, or "opened", for the task that was opened first. ``now`` is the
    time by which claims end; None means the clock of the database. The result is a queryset of one query, which reads
    only open tasks. Raises whatever the access policy raises.
    """
    alias = storage().alias
    user_key = authorization.sender_key(user)
    tasks = HumanTask.objects.using(alias).open().filter(_decidable_condition(user))
    tasks = tasks.filter(Q(claimed_until=None) | Q(claimed_until__lte=now or Now()) | Q(claimed_by_key=user_key))
    runs = access.runs_for(user, alias=alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    return tasks.order_by(*_ORDERS[order])


def tasks_of(runs: QuerySet[Instance] | None) -> HumanTaskQuerySet:
    """Return the human tasks of these runs, open and closed; None means all runs."""
    tasks = HumanTask.objects.using(storage().alias)
    return tasks.all() if runs is None else tasks.filter(run__in=runs.order_by().values("pk"))


def open_tasks_of_run(run: UUID, *, user: Person | None = None) -> list[HumanTask]:
    """Return the open human tasks of a run, oldest first.

    With ``user``, only those that this user may see, which takes further queries for each task. One query without.
    """
    tasks = HumanTask.objects.using(storage().alias).open().filter(run_id=run).order_by("opened_at", "key")
    return [task for task in tasks if user is None or may_view(user, task)]


def awaited_tasks(run: Instance, *, limit: int) -> list[HumanTask]:
    """Return at most ``limit`` of the open human tasks that a run waits for, oldest first.

    The caller must have checked that the reader may look at the run. No query if the run waits for no person.
    """
    if not run.is_open or not any(wait.get("kind") in _HUMAN_WAIT_KINDS for wait in run.waits or ()):
        return []
    return [*HumanTask.objects.using(storage().alias).open().filter(run_id=run.pk).order_by("opened_at", "pk")[:limit]]


def all_tasks_of_run(run: UUID) -> list[HumanTask]:
    """Return the human tasks of a run, open and closed, oldest first."""
    return list(HumanTask.objects.using(storage().alias).filter(run_id=run).order_by("opened_at", "key"))


def to_open_human_task(task: HumanTask) -> OpenHumanTask:
    """Convert the row of a human task to an ``OpenHumanTask``, the object that handles return."""
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
    """Return how a closed task ended, as a clause such as "ann decided 'approved' at …"."""
    return ending_text(task.ending, task.closed_at, outcome=task.outcome, decided_by=task.decided_by_name)


def find_task(pk: UUID | str, user: Person | None) -> HumanTask:
    """Return the human task with that id, open or closed.

    A user sees a task if they may decide it, could have decided it while it was open, or may look at its run. Raises
    ``HumanTaskNotFound`` if there is none or the user may not see it. Code (``user`` None) sees all tasks.
    """
    try:
        task_id = pk if isinstance(pk, UUID) else UUID(pk)
    except (ValueError, AttributeError, TypeError):
        task_id = None
    task = None
    if task_id is not None:
        task = HumanTask.objects.using(storage().alias).filter(pk=task_id).first()
    if task is None or (user is not None and not may_view(user, task)):
        raise HumanTaskNotFound(f"there is no human task {str(pk)[:50]!r}")
    return task


def may_view(user: Person, task: HumanTask) -> bool:
    """Return True if the user may see the human task.

    They may if they can decide the task, could have decided it while it was open, are excluded from it by four eyes, or
    may look at its run. In any case the access policy must not hide the run from them.
    """
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
    """Return ``(candidate, person)``: the first candidate that matches the user, and whom it matches; or None.

    The candidate is text such as ``group:managers``. The person is the user, or somebody on whose behalf they decide. A
    match of an excluded user is returned only if there is no other one.
    """
    return human_tasks.matching_candidate(
        (user, *principals(user)),
        candidates_of(task),
        permits=access.policy().permits,
        is_excluded=lambda person: bool(task.four_eyes) and is_excluded(person, task),
    )


def candidates_of(task: HumanTask) -> list[str]:
    """Return the candidates of a task as text, such as ``user:ann`` or ``group:managers``.

    They include the people to whom the task was delegated.
    """
    return [*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated)]


def is_excluded(user: Person, task: HumanTask) -> bool:
    """Return True if the user may not decide the task because four eyes require a different person. One read."""
    return task.candidates.filter(who=f"key:{authorization.sender_key(user)}", barred=True).exists()


def _decidable_condition(user: Person) -> Q:
    """Return the tasks that a user may decide, for themselves or somebody else."""
    excluded = Q(pk__in=_excluded_task_ids(authorization.sender_key(user)))
    # Subqueries on ids instead of joins: a task with several matching candidates must appear once.
    decidable = Q(pk__in=_candidate_task_ids(user))
    for person in principals(user):
        decidable |= Q(pk__in=_candidate_task_ids(person)) & ~Q(
            pk__in=_excluded_task_ids(authorization.sender_key(person))
        )
    return decidable & ~excluded


def principals(user: Person) -> Collection[Person]:
    """Return the other people on whose behalf the access policy lets this user decide; empty for an inactive user."""
    # A deactivated account must not act on behalf of others either.
    if not getattr(user, "is_active", True):
        return ()
    return [
        principal
        for principal in access.policy().stands_in_for(user)
        if getattr(principal, "pk", None) != getattr(user, "pk", 0)
    ]


def role_words(user: Person) -> list[str]:
    """Return a user's groups and permissions in the form of candidates: ``group:managers``, ``perm:shop.pay``.

    Do not call it for superusers, who have all of them.
    """
    words = [f"perm:{name}" for name in sorted(access.policy().permissions(user))]
    if hasattr(user, "groups"):
        words += [f"group:{name}" for name in user.groups.values_list("name", flat=True)]
    return words


def _excluded_task_ids(key: str) -> Any:
    return Candidate.objects.using(storage().alias).filter(who=f"key:{key}", barred=True).values("task")


def _candidate_task_ids(user: Person) -> Any:
    """Match every group and permission for a superuser, and nothing for an inactive user."""
    candidates = Candidate.objects.using(storage().alias).filter(barred=False)
    if not getattr(user, "is_active", True):
        return candidates.none().values("task")
    sender = authorization.sender_of(user)
    own_names = []
    if sender is not None:
        own_names = [f"user:{sender.name}"]
    if getattr(user, "is_superuser", False):
        return candidates.filter(
            Q(who__in=own_names) | Q(who__startswith="group:") | Q(who__startswith="perm:")
        ).values("task")
    return candidates.filter(who__in=[*own_names, *role_words(user)]).values("task")


# --- redaction --------------------------------------------------------------------------------------------------------
#
# Redaction of human tasks: their titles, comments and shown values are payloads of the run.
#
# A task is shown whole to the people who match one of its candidates, and to the person who decided it. For everybody
# else these values are redacted as the payloads of the run are (``access.redactor_for``).


def redact_tasks(tasks: Iterable[HumanTask], user: Person | None) -> list[HumanTask]:
    """Return the tasks as ``user`` may see them; code (None) sees all of them whole.

    Redacted tasks are copies, which must not be saved. If something has to be redacted, the groups and permissions of
    the user are read once for all tasks, and so are those of the people on whose behalf they decide.
    """
    if user is None:
        return [*tasks]
    viewer = _Viewer(user)
    return [_redact_task(task, user, viewer) for task in tasks]


def _redact_task(task: HumanTask, user: Person, viewer: _Viewer) -> HumanTask:
    columns = {"id": task.run_id, "chain_id": task.chain_id, "workflow_id": task.workflow_id, "workflow": task.workflow}
    # The row of the task has all columns that a redactor needs, so no run is read for a list of tasks.
    redactor = redactor_for(user, Instance.from_db(storage().alias, [*columns], [*columns.values()]))
    is_decider = bool(viewer.key) and viewer.key == task.decided_by_key
    if (redactor.shows_error_text and task.shows is None) or is_decider or viewer.is_candidate(task):
        return task
    # A copy: the caller may save or compare the original.
    redacted_task = copy(task)
    redacted_task.title = redactor.redact_text(task.title)
    redacted_task.comment = redactor.redact_text(task.comment) if task.comment else ""
    redacted_task.shown_value = None if task.shows is None else redactor.redact_payload(task.shown_value)
    return redacted_task


class _Viewer:
    """A user to whom tasks are shown, together with the people on whose behalf they decide."""

    def __init__(self, user: Person) -> None:
        self.user = user
        self.key = authorization.sender_key(user)

    @cached_property
    def matchers(self) -> list[_CandidateMatcher]:
        return [_CandidateMatcher(person) for person in (self.user, *principals(self.user))]

    def is_candidate(self, task: HumanTask) -> bool:
        return any(matcher.matches(task) for matcher in self.matchers)


class _CandidateMatcher:
    """The candidates that match one person, read once to be compared with many tasks.

    The rules are those of ``authorization.matches_candidate``. A superuser matches every group and permission.
    """

    def __init__(self, user: Person) -> None:
        sender = authorization.sender_of(user)
        self.is_active = bool(getattr(user, "is_active", True))
        self.has_all_roles = bool(getattr(user, "is_superuser", False))
        self.identities = set() if sender is None else {f"user:{sender.name}"}
        if self.is_active and not self.has_all_roles:
            self.identities |= {*role_words(user)}

    def matches(self, task: HumanTask) -> bool:
        candidates = [*task.asked, *(f"user:{delegation['to']}" for delegation in task.delegated)]
        matches_role = self.has_all_roles and any(not candidate.startswith("user:") for candidate in candidates)
        # Compare sets that were read once per person; ``matches_candidate`` would query once per task.
        return self.is_active and (matches_role or not self.identities.isdisjoint(candidates))
