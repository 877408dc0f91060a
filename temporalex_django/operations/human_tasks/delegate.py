"""Delegate a human task to somebody else."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import Person
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.names import quoted
from temporalex_django.errors import ActionNotPermitted, ActionNotPossible, FourEyes
from temporalex_django.models import Candidate, HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks.base import HumanTaskAction, task_label
from temporalex_django.operations.human_tasks.inbox import is_excluded

#: Most delegations of one task; each of them is stored in its row.
_MAX_DELEGATIONS = 20


class Delegate(HumanTaskAction[None]):
    """Operation that delegates a human task: the user ``to`` may decide it as well from then on.

    A claim of the task ends. The user who delegates must be able to decide the task themselves. ``to`` is a stored
    user, or a name that no user has, as ``find_user`` returns it.

    Raises ``ActionNotPermitted`` if the access policy does not allow it, if ``to`` is not active or may not see the
    run, or is an unknown name. The message is always the same, so that nobody can find out which users exist. Raises
    ``FourEyes`` if ``to`` is an excluded user, and ``ActionNotPossible`` after too many delegations.
    """

    name: ClassVar[str] = "delegate"
    label: ClassVar[Promise] = _("Delegate")
    effect: ClassVar[Promise] = _("Another person may decide it as well. Your claim ends.")
    done: ClassVar[Promise] = _("The task was delegated.")

    def __init__(self, task: HumanTask | UUID | str, *, to: Person | str, reason: str = "", by: Actor) -> None:
        super().__init__(task, reason=reason, by=by)
        self.to = to if isinstance(to, str) else authorization.check_person(to)

    def perform(self) -> None:
        with self.storage.transaction():
            task = self.lock_task()
            self.require_candidate(task)
            self.require_unclaimed(task)
            if len(task.delegated) >= _MAX_DELEGATIONS:
                raise ActionNotPossible(
                    f"{task_label(task)} was already delegated {_MAX_DELEGATIONS} times, which is the limit: "
                    "decide it, or cancel it"
                )
            recipient = self._permitted_recipient(task)
            entry: dict[str, Any] = {
                "to": recipient.name,
                "by": str(authorization.sender_of(self.user)),
                "at": self.storage.now().isoformat(),
                "reason": self.reason,
            }
            task.delegated = [*task.delegated, entry]
            task.claimed_by_key = task.claimed_by_name = ""
            task.claimed_until = None
            claim = ["claimed_by_key", "claimed_by_name", "claimed_until"]
            task.save(using=self.storage.alias, update_fields=["delegated", *claim])
            rows = Candidate.objects.using(self.storage.alias)
            # The row makes the task appear in the recipient's inbox, which looks for candidates by an index.
            rows.get_or_create(task=task, who=f"user:{recipient.name}", defaults={"barred": False})
            self.record(self.audit_subject, reason=self.reason, task=str(task.pk), to=recipient.name)

    def _permitted_recipient(self, task: HumanTask) -> Sender:
        """Return ``(key, name)`` of the user to whom the task is delegated.

        Raises ``ActionNotPermitted`` if the task may not be delegated to them, and ``FourEyes`` for an excluded user.
        """
        to = self.to
        recipient = None
        if to is not None and not isinstance(to, str):
            recipient = authorization.sender_of(to)
        # All of these raise one message: different ones would say which names exist and who may see the run.
        if (
            to is None
            or isinstance(to, str)
            or recipient is None
            or not recipient.name
            or not self._can_receive(task, to)
        ):
            recipient_name = to if isinstance(to, str) else getattr(to, "get_username", lambda: to)()
            raise ActionNotPermitted(
                f"{self.user} may not delegate {task_label(task)} to {quoted(recipient_name)}: the recipient "
                "must be an active user of that name who may see the run, and the access policy must allow "
                "the delegation"
            )
        if is_excluded(to, task):
            raise FourEyes(
                f"{to} may not decide {task_label(task)}: they started, forked or scheduled the run, or decided an "
                "earlier approval"
            )
        return recipient

    def _can_receive(self, task: HumanTask, to: Person) -> bool:
        if not getattr(to, "is_active", True) or not access.policy().may_delegate(self.user, task, to):
            return False
        runs = access.runs_for(to, alias=self.storage.alias)
        return runs is None or runs.filter(pk=task.run_id).exists()
