"""Release a human task that a person has claimed."""

from __future__ import annotations

from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.authoring import authorization
from temporalex_django.authoring.authorization import APP
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import HumanTask
from temporalex_django.operations.human_tasks.base import HumanTaskAction, task_label


class Release(HumanTaskAction[None]):
    """Operation that ends the claim of a human task, so that others may decide it again.

    Ending a claim of somebody else requires the permission ``release_humantask``. Raises ``ActionNotPossible`` if there
    is no claim, ``HumanTaskClaimed`` and ``ActionNotPermitted``. The audit says whose claim it was.
    """

    name: ClassVar[str] = "release"
    label: ClassVar[Promise] = _("Release")
    effect: ClassVar[Promise] = _("Others can claim and decide it again.")
    done: ClassVar[Promise] = _("The claim is released.")

    def perform(self) -> None:
        with self.storage.transaction():
            task = self.lock_task()
            is_own_claim = task.claimed_until is not None and task.claimed_by_key == authorization.sender_key(self.user)
            if not is_own_claim and not (task.claimed_until is not None and self._may_release(task)):
                # These raise the error that fits best; without a claim, only the one below is left.
                self.require_candidate(task)
                self.require_unclaimed(task)
                raise ActionNotPossible(f"{self.user} has not claimed {task_label(task)}: there is nothing to release")
            claimed_by = task.claimed_by_name
            task.claimed_by_key = task.claimed_by_name = ""
            task.claimed_until = None
            task.save(using=self.storage.alias, update_fields=["claimed_by_key", "claimed_by_name", "claimed_until"])
            self.record(
                self.audit_subject,
                reason=self.reason,
                task=str(task.pk),
                **({} if is_own_claim else {"claimed_by": claimed_by}),
            )

    def _may_release(self, task: HumanTask) -> bool:
        """Return True if the access policy lets this user end claims of others."""
        operation = access.Operation(action=self.name, permission=f"{APP}.release_humantask")
        return access.policy().allows(self.user, operation.of(task.run))
