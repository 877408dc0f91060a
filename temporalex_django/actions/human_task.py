"""What operations on a human task have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.utils.functional import Promise

from temporalex_django import access
from temporalex_django.actions.base import Action, Actor, AuditSubject
from temporalex_django.actions.inbox import find_task, is_excluded, matching_candidate, outcome_text
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.human_tasks import base_key
from temporalex_django.core.payloads import check_text
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClaimed,
    HumanTaskClosed,
    HumanTaskNotFound,
)
from temporalex_django.models import HumanTask, Instance

T = TypeVar("T")


class HumanTaskAction(Action[T]):
    """Base of what people do with a human task: who may decide it may do it, and needs no permission besides.

    ``label`` is on the button, ``effect`` says in a sentence what will happen, ``done`` what has happened. In the
    caller's transaction; locks the row of the task. Raises ``HumanTaskNotFound``, ``HumanTaskClosed``,
    ``HumanTaskClaimed``, ``ActionNotPermitted``, ``UpdateTimeout`` (code ``busy``); nothing is done then.
    """

    permission: ClassVar[str] = "view_humantask"
    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]

    def __init__(self, task: HumanTask | UUID | str, *, reason: str = "", by: Actor) -> None:
        super().__init__(by=by)
        self.task = task if isinstance(task, HumanTask) else find_task(task, by.user)
        self.reason = check_text(reason, label="the reason")

    @property
    def permission_request(self) -> access.Operation:
        """The policy may still refuse it; no permission is asked for."""
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
        """Raises ``ActionNotPermitted`` for code: it takes a person."""
        if self.by.user is None:
            raise ActionNotPermitted(f"{self.name} of {task_label(self.task)}: it takes a user (by=user)")
        return self.by.user

    def execute(self) -> T:
        with self.translate_busy(task_label(self.task)):
            return super().execute()

    def lock_task(self) -> HumanTask:
        """The task under the lock of the open transaction, as it stands now. Raises ``HumanTaskClosed``."""
        self.task = lock_task(self.task, storage=self.storage)
        return self.task

    def require_candidate(self, task: HumanTask) -> tuple[str, Person]:
        """By which word, and whose, he may decide it. Raises ``ActionNotPermitted``, ``FourEyes``."""
        return require_candidate(self.user, task)

    def require_unclaimed(self, task: HumanTask) -> None:
        """Raises ``HumanTaskClaimed``."""
        require_unclaimed(self.user, task, storage=self.storage)


def lock_task(task: HumanTask, *, storage: DjangoStorage) -> HumanTask:
    """The task under the lock of the open transaction, as it stands now. Raises ``HumanTaskClosed``."""
    locked_task = HumanTask.objects.using(storage.alias).select_for_update(of=("self",)).filter(pk=task.pk).first()
    if locked_task is None:
        raise HumanTaskNotFound(f"{task_label(task)} is gone: somebody has deleted its run")
    require_open(locked_task)
    return locked_task


def require_unclaimed(user: Person, task: HumanTask, *, storage: DjangoStorage) -> None:
    """Raises ``HumanTaskClaimed``: somebody else has it, by the clock of the database."""
    until = task.claimed_until
    if until is None or task.claimed_by_key == authorization.sender_key(user) or until <= storage.now():
        return
    raise HumanTaskClaimed(f"{task_label(task)} is claimed by {task.claimed_by_name} until {until.isoformat()}")


def require_claims_respected(
    user: Person, chain: UUID, event: str, *, step: str | None, storage: DjangoStorage
) -> None:
    """Raises ``HumanTaskClaimed`` where that event of a chain is the decision of what somebody else has claimed."""
    for task in HumanTask.objects.using(storage.alias).open().filter(chain=chain).exclude(claimed_until=None):
        if event in task.outcomes and step in (None, task.key, base_key(task.key)):
            require_unclaimed(user, task, storage=storage)


def admit_decider(user: Person, task: HumanTask, *, storage: DjangoStorage) -> dict[str, Any]:
    """What a decision says of who decides, if he may: see ``HumanTasks.judge``.

    Raises ``ActionNotPermitted``, ``FourEyes``, ``HumanTaskClosed``, ``HumanTaskClaimed``.
    """
    require_open(task)
    candidate, person = require_candidate(user, task)
    require_unclaimed(user, task, storage=storage)
    decider: dict[str, Any] = {"by": str(user), "by_key": authorization.sender_key(user)}
    if candidate not in task.asked:
        decider["word"] = candidate
    if person is not user:
        decider["for"] = {"key": authorization.sender_key(person), "name": str(authorization.sender_of(person))}
    return decider


def require_candidate(user: Person, task: HumanTask) -> tuple[str, Person]:
    """By which word, and whose, he may decide it. Raises ``ActionNotPermitted``, ``FourEyes``."""
    candidacy = matching_candidate(user, task)
    if candidacy is None:
        candidates = ", ".join(task.asked)
        raise ActionNotPermitted(f"{user} may not decide {task_label(task)}: that is asked of {candidates}")
    for person in {authorization.sender_key(user): user, authorization.sender_key(candidacy[1]): candidacy[1]}.values():
        if is_excluded(person, task):
            raise FourEyes(
                f"{user} may not decide {task_label(task)}: it takes another pair of eyes than those of {person}, who started or "
                "forked it, or decided an earlier approval"
            )
    return candidacy


def require_open(task: HumanTask) -> None:
    """Raises ``HumanTaskClosed`` with what happened."""
    if task.closed_at is not None:
        raise HumanTaskClosed(f"{task_label(task)} is not open any more: {outcome_text(task)}")


def task_label(task: HumanTask) -> str:
    """The name of a task in errors, which people read who may not see its title."""
    return f"the human task {task.key!r} of {task.workflow} {task.workflow_id}"
