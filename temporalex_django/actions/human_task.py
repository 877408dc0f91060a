"""What operations on a human task have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, TypeVar
from uuid import UUID

from django.utils.functional import Promise

from temporalex_django import access
from temporalex_django.actions.base import Action, Actor, Subject
from temporalex_django.actions.inbox import find_task, key_barred, stands
from temporalex_django.authoring import people
from temporalex_django.authoring.people import Person
from temporalex_django.core.payloads import text
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClaimed,
    HumanTaskClosed,
    HumanTaskNotFound,
)
from temporalex_django.models import Ending, HumanTask, Instance

T = TypeVar("T")


class ActionOnTask(Action[T]):
    """Base of what people do with a human task: who may decide it may do it, and needs no permission besides.

    ``label`` is on the button, ``effect`` says in a sentence what will happen, ``done`` what has happened. In the
    caller's transaction; locks the row of the task. Raises ``HumanTaskNotFound``, ``HumanTaskClosed``,
    ``HumanTaskClaimed``, ``ActionNotPermitted``; nothing is done then.
    """

    permission: ClassVar[str] = "view_humantask"
    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]

    def __init__(self, task: HumanTask | UUID | str, *, reason: str = "", by: Actor) -> None:
        super().__init__(by=by)
        self.task = task if isinstance(task, HumanTask) else find_task(task, by.user)
        self.reason = text(reason, what="the reason")

    @property
    def asked(self) -> access.Operation:
        """The policy may still refuse it; no permission is asked for."""
        return replace(super().asked, permission=None)

    @property
    def row(self) -> Instance:
        run: Instance = self.task.run
        return run

    @property
    def said(self) -> str:
        return self.task.key

    @property
    def subject(self) -> Subject:
        task = self.task
        return Subject(run_id=str(task.run_id), workflow=task.workflow, workflow_id=task.workflow_id)

    @property
    def user(self) -> Person:
        """Raises ``ActionNotPermitted`` for code: it takes a person."""
        if self.by.user is None:
            raise ActionNotPermitted(f"{self.name} of {what(self.task)}: it takes a user (by=user)")
        return self.by.user

    def held(self) -> HumanTask:
        """The task under the lock of the open transaction, as it stands now. Raises ``HumanTaskClosed``."""
        rows = HumanTask.objects.using(self.storage.alias).select_for_update(of=("self",))
        found = rows.filter(pk=self.task.pk).first()
        if found is None:
            raise HumanTaskNotFound(f"{what(self.task)} is gone: somebody has deleted its run")
        self.task = found
        require_open(found)
        return found

    def require_candidate(self, task: HumanTask) -> tuple[str, Person]:
        """By which word, and whose, he may decide it. Raises ``ActionNotPermitted``, ``FourEyes``."""
        return require_candidate(self.user, task)

    def require_unclaimed(self, task: HumanTask) -> None:
        """Raises ``HumanTaskClaimed``: somebody else has it, by the clock of the database."""
        until = task.claimed_until
        if until is None or task.claimed_by_key == people.key_of(self.user) or until <= self.storage.now():
            return
        raise HumanTaskClaimed(f"{what(task)} is claimed by {task.claimed_by_name} until {until.isoformat()}")


def require_candidate(user: Person, task: HumanTask) -> tuple[str, Person]:
    """By which word, and whose, he may decide it. Raises ``ActionNotPermitted``, ``FourEyes``."""
    found = stands(user, task)
    if found is None:
        wanted = ", ".join(task.asked)
        raise ActionNotPermitted(f"{user} may not decide {what(task)}: that is asked of {wanted}")
    for one in {people.key_of(user): user, people.key_of(found[1]): found[1]}.values():
        if key_barred(one, task):
            raise FourEyes(
                f"{user} may not decide {what(task)}: it takes another pair of eyes than those of {one}, who started "
                "the run or gave an approval in it"
            )
    return found


def require_open(task: HumanTask) -> None:
    """Raises ``HumanTaskClosed`` with what happened."""
    if task.closed_at is not None:
        raise HumanTaskClosed(f"{what(task)} is not open any more: {happened(task)}")


def happened(task: HumanTask) -> str:
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


def what(task: HumanTask) -> str:
    """How errors call one."""
    return f"the human task {task.title!r} of {task.workflow} {task.workflow_id}"
