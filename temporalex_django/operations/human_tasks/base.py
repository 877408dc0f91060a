"""Base of the operations on a human task, and the checks that they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast
from uuid import UUID

from django.contrib.auth import get_user_model
from django.utils import timezone
from django.utils.functional import Promise

from temporalex_django import access
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.human_tasks import base_key
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.core.names import fit_note
from temporalex_django.db.human_tasks import absent_deciders, undecidable_tasks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClaimed,
    HumanTaskClosed,
    HumanTaskNotFound,
    TemporalexError,
)
from temporalex_django.models import HumanTask, HumanTaskQuerySet, Instance
from temporalex_django.operations.base import Action, Actor, storage
from temporalex_django.operations.human_tasks.inbox import (
    find_task,
    inbox,
    is_excluded,
    matching_candidate,
    outcome_text,
)
from temporalex_django.present.human_tasks import TaskView, describe_task

T = TypeVar("T")


class HumanTaskAction(Action[T]):
    """Base class of the operations on a human task.

    People who may decide the task may perform them, and need no further permission. ``label`` is the text of the
    button. ``effect`` says in a sentence what will happen, and ``done`` what has happened.

    An operation runs in the caller's transaction and locks the row of the task. It raises ``HumanTaskNotFound``,
    ``HumanTaskClosed``, ``HumanTaskClaimed``, ``ActionNotPermitted`` and ``UpdateTimeout`` (code ``busy``); nothing is
    done then.
    """

    permission: ClassVar[str] = "view_humantask"
    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]

    def __init__(self, task: HumanTask | UUID | str, *, reason: str = "", by: Actor) -> None:
        super().__init__(by=by)
        self.task = task if isinstance(task, HumanTask) else find_task(task, by.user)
        self.reason = fit_note(reason, label="the reason")

    @property
    def permission_request(self) -> access.Operation:
        """The operation about which the access policy is asked, without a permission: candidates of the task need none.

        The access policy may still refuse it.
        """
        return replace(super().permission_request, permission=None)

    @property
    def row(self) -> Instance:
        run: Instance = self.task.run
        return run

    @property
    def message_name(self) -> str:
        return self.task.key

    @property
    def audit_subject(self) -> AuditSubject:
        task = self.task
        return AuditSubject(run_id=str(task.run_id), workflow=task.workflow, workflow_id=task.workflow_id)

    @property
    def user(self) -> Person:
        """The user who acts.

        Raises ``ActionNotPermitted`` for code, because the operation requires a person.
        """
        if self.by.user is None:
            raise ActionNotPermitted(f"{self.name} of {task_label(self.task)} requires a user: pass by=user")
        return self.by.user

    def execute(self) -> T:
        with self.translate_busy(task_label(self.task)):
            return super().execute()

    def lock_task(self) -> HumanTask:
        """Lock the row of the task in the open transaction, and set ``task`` to what it contains now.

        Raises ``HumanTaskNotFound`` if it was deleted, and ``HumanTaskClosed``.
        """
        self.task = lock_task(self.task, storage=self.storage)
        return self.task

    def require_candidate(self, task: HumanTask) -> tuple[str, Person]:
        """Return ``(candidate, person)``: the candidate of the task that matches the acting user, and whom it matches.

        The candidate is text such as ``group:managers``. The person is the user, or somebody on whose behalf they
        decide. Raises ``ActionNotPermitted`` if no candidate matches, and ``FourEyes`` if a different person must
        decide.
        """
        return require_candidate(self.user, task)

    def require_unclaimed(self, task: HumanTask) -> None:
        """Raise ``HumanTaskClaimed`` if somebody other than the acting user has claimed the task now."""
        require_unclaimed(self.user, task, storage=self.storage)


def lock_task(task: HumanTask, *, storage: DjangoStorage) -> HumanTask:
    """Lock the task in the open transaction and return its current row.

    Raises ``HumanTaskNotFound`` if the row was deleted, and ``HumanTaskClosed``.
    """
    # Lock the row of the task alone, and none that the query may join.
    locked_task = HumanTask.objects.using(storage.alias).select_for_update(of=("self",)).filter(pk=task.pk).first()
    if locked_task is None:
        raise HumanTaskNotFound(f"{task_label(task)} no longer exists: somebody has deleted its run")
    require_open(locked_task)
    return locked_task


def require_unclaimed(user: Person, task: HumanTask, *, storage: DjangoStorage) -> None:
    """Raise ``HumanTaskClaimed`` if somebody other than ``user`` has claimed the task now.

    A claim ends by the clock of the database.
    """
    until = task.claimed_until
    if until is None or task.claimed_by_key == authorization.sender_key(user) or until <= storage.now():
        return
    raise HumanTaskClaimed(f"{task_label(task)} is claimed by {task.claimed_by_name} until {until.isoformat()}")


def require_claims_respected(
    user: Person, chain: UUID, event: str, *, step: str | None, storage: DjangoStorage
) -> None:
    """Raise ``HumanTaskClaimed`` if the event would decide a human task of the chain that somebody else has claimed.

    ``step`` is the key of the step or task that the event is for, or None if the sender named none. One read.
    """
    for task in HumanTask.objects.using(storage.alias).open().filter(chain=chain).exclude(claimed_until=None):
        if event in task.outcomes and step in (None, task.key, base_key(task.key)):
            require_unclaimed(user, task, storage=storage)


def admit_decider(user: Person, task: HumanTask, *, storage: DjangoStorage) -> dict[str, Any]:
    """Check that the user may decide the task now, and return the fields of the decision that say who decides.

    - ``by`` and ``by_key``: the name and the key of the user.
    - ``word``: the candidate, if the task was delegated to the user.
    - ``for``: the key and the name of the person on whose behalf the user decides, if that is another one.

    Raises ``ActionNotPermitted``, ``FourEyes``, ``HumanTaskClosed`` and ``HumanTaskClaimed``.
    """
    require_open(task)
    candidate, person = require_candidate(user, task)
    require_unclaimed(user, task, storage=storage)
    decider: dict[str, Any] = {"by": str(user), "by_key": authorization.sender_key(user)}
    # The task was delegated to this person: the code does not know that candidate, so the decision names it.
    if candidate not in task.asked:
        decider["word"] = candidate
    if person is not user:
        decider["for"] = {"key": authorization.sender_key(person), "name": str(authorization.sender_of(person))}
    return decider


def require_candidate(user: Person, task: HumanTask) -> tuple[str, Person]:
    """Return ``(candidate, person)``: the candidate of the task that matches the user, and whom it matches.

    The candidate is text such as ``group:managers``. The person is the user, or somebody on whose behalf they decide.
    Raises ``ActionNotPermitted`` if no candidate matches. Raises ``FourEyes`` if the user or that person is excluded,
    for example because they started the run or decided an earlier approval.
    """
    candidacy = matching_candidate(user, task)
    if candidacy is None:
        candidates = ", ".join(task.asked)
        raise ActionNotPermitted(f"{user} may not decide {task_label(task)}: the candidates are {candidates}")
    # Both the user and the person they represent must qualify: deciding for somebody else must not evade four eyes.
    for person in {authorization.sender_key(user): user, authorization.sender_key(candidacy[1]): candidacy[1]}.values():
        if is_excluded(person, task):
            raise FourEyes(
                f"{user} may not decide {task_label(task)}: a different user must decide, because {person} "
                "started, forked or scheduled the run, or decided an earlier approval"
            )
    return candidacy


def require_open(task: HumanTask) -> None:
    """Raise ``HumanTaskClosed`` if the human task is closed; the message says how it ended."""
    if task.closed_at is not None:
        raise HumanTaskClosed(f"{task_label(task)} is no longer open: {outcome_text(task)}")
    if task.deciding is not None:
        raise HumanTaskClosed(
            f"{task_label(task)} is being decided: {task.deciding['by']} chose {task.deciding['outcome']}, and the run "
            "has not taken the decision yet"
        )


def task_label(task: HumanTask) -> str:
    """Return the words by which error messages name a task: its key, its workflow and the business id.

    The title is left out, because people who may not see it read these messages.
    """
    return f"the human task {task.key!r} of {task.workflow} {task.workflow_id}"


def why_not(task: HumanTask, user: Person) -> str | None:
    """Return the sentence that says why this user may not decide the task now, or None if they may.

    Locks nothing, so somebody else may decide before them.
    """
    try:
        admit_decider(user, task, storage=storage())
    except TemporalexError as exc:
        return f"{exc.message[:1].upper()}{exc.message[1:]}."
    return None


def is_claimed(task: HumanTask) -> bool:
    """Return True if a claim of the task is valid now, by the clock of the database."""
    return task.claimed_until is not None and task.claimed_until > storage().now()


def tasks_of_visible_runs(user: Person) -> HumanTaskQuerySet:
    """Return the human tasks, open and closed, of all runs that the user may look at.

    It does not matter who may decide them. Raises ``ActionNotPermitted`` for a user who may look at no runs.
    """
    alias = storage().alias
    access.require_access(user, access.VIEW, alias=alias)
    runs = access.runs_for(user, alias=alias)
    tasks = HumanTask.objects.using(alias)
    if runs is None:
        return tasks.all()
    return tasks.filter(run__in=runs.order_by().values("pk"))


def subject_text(run: Instance) -> str:
    """Return the text of the run's subject, the object that it was started for; empty if it has none.

    For an object that was deleted, the text is its kind and key. One query, unless Django has loaded the object before.
    """
    if run.subject_type is None:
        return ""
    return str(run.subject or f"{run.subject_type.name} {run.subject_id}")


def mark_nobody_left(*tasks: HumanTask, with_permissions: bool = True) -> Sequence[HumanTask]:
    """Set ``nobody_left`` and ``absent`` on each task, and return the tasks.

    ``nobody_left`` is True if four eyes exclude everybody who could decide the task. ``absent`` are those whom it asks,
    if none of them is there. Users and groups are read once for all tasks; see ``db.people.deciders``. Each permission
    costs a further read, unless ``with_permissions`` is False.
    """
    undecidable_ids = undecidable_tasks(tasks, alias=storage().alias)
    absent = absent_deciders(tasks, alias=storage().alias, with_permissions=with_permissions)
    for task in tasks:
        task.absent = absent.get(task.pk, ())
        task.nobody_left = task.pk in undecidable_ids
    return tasks


def task_sentence(task: HumanTask, *, subject: str = "") -> str:
    """Return a sentence or two about a task: its question, who asked, since when, and its claim or its end.

    ``subject`` is the text of the object that it is about; see ``subject_text``. No query.
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
        absent=task.absent,
    )
    return describe_task(task_view, now=timezone.now())


def value_as_json(task: HumanTask) -> str:
    """Return the value that a human task shows, and about which people decide, as indented JSON.

    The text is empty if there is none.
    """
    value = task.shown_value
    if value is None:
        return ""
    return json.dumps(value, indent=2, ensure_ascii=False, default=repr)


def count_inbox(user: Person, *, limit: int) -> int:
    """Return the number of human tasks in the user's inbox, counted up to ``limit``. One query."""
    # A slice and no order let the database stop at ``limit`` instead of sorting and counting all tasks.
    return int(inbox(user).order_by()[:limit].count())


def find_user(name: str) -> Person | str:
    """Return the user with that login name, or the name itself if no user has it.

    Pass the result to the operation ``Delegate``: it refuses an unknown name in the same words as a user who may not
    decide, so that nobody can find out which names exist.
    """
    users: Any = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: name}).first()  # noqa: SLF001 - Django documents it
    if user is None:
        return name
    return cast("Person", user)
