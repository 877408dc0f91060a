"""Claim a human task, so that nobody else decides it meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import access, signals
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP
from temporalex_django.conf import get_settings
from temporalex_django.core.messages.sender import Sender
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import HumanTask
from temporalex_django.operations.human_tasks.base import HumanTaskAction, task_label


class Claim(HumanTaskAction[datetime]):
    """Operation that claims a human task for the user, and returns the time at which the claim ends.

    A claim lasts ``CLAIM_SECONDS`` by the clock of the database. A user who claims a task again extends their claim.
    Runs in the caller's transaction and locks the row of the task. Raises ``HumanTaskClosed``, ``HumanTaskClaimed`` if
    somebody else has claimed it, ``ActionNotPermitted``, ``UpdateTimeout`` (code ``busy``), and ``FourEyes`` for a user
    whom four eyes exclude.
    """

    name: ClassVar[str] = "claim"
    label: ClassVar[Promise] = _("Claim")
    effect: ClassVar[Promise] = _("Nobody else can decide it for a while.")
    done: ClassVar[Promise] = _("You have claimed it.")

    def perform(self) -> datetime:
        with self.storage.transaction():
            task = self.lock_task()
            self.require_candidate(task)
            self.require_unclaimed(task)
            sender = authorization.sender_of(self.user) or Sender("", "")
            task.claimed_by_key, task.claimed_by_name = sender.key, str(sender)
            until = task.claimed_until = self.storage.now() + timedelta(seconds=get_settings().CLAIM_SECONDS)
            task.save(using=self.storage.alias, update_fields=["claimed_by_key", "claimed_by_name", "claimed_until"])
            self.record(self.audit_subject, reason=self.reason, task=str(task.pk), until=until.isoformat())
            self.storage.on_commit(lambda: _send_claimed_signal(task, self.user))
        return until


def _send_claimed_signal(task: HumanTask, actor: object) -> None:
    signals.send(
        "human_task_claimed",
        workflows.signal_sender(task.workflow),
        workflow=task.workflow,
        workflow_id=task.workflow_id,
        run_id=str(task.run_id),
        task=str(task.pk),
        title=task.title,
        key=task.key,
        actor=actor,
        until=task.claimed_until,
    )


class Release(HumanTaskAction[None]):
    """Operation that ends the claim of a human task, so that others may decide it again.

    To end the claim of another person, the user needs the permission ``release_humantask``. Raises
    ``ActionNotPossible`` if nobody has claimed the task, ``HumanTaskClaimed`` and ``ActionNotPermitted``. The audit log
    records whose claim it was.
    """

    name: ClassVar[str] = "release"
    label: ClassVar[Promise] = _("Release")
    effect: ClassVar[Promise] = _("Others can claim and decide it again.")
    done: ClassVar[Promise] = _("The claim was released.")

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
        """Return True if the user may end claims of other people on this task."""
        operation = access.Operation(action=self.name, permission=f"{APP}.release_humantask")
        return access.policy().allows(self.user, operation.of(task.run))
