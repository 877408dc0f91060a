"""Claim a human task, so that nobody else decides it meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django import signals
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.conf import get_settings
from temporalex_django.core.messages.sender import Sender
from temporalex_django.models import HumanTask
from temporalex_django.operations.human_tasks.base import HumanTaskAction


class Claim(HumanTaskAction[datetime]):
    """Operation that claims a human task; its result is the time at which the claim ends.

    A claim lasts ``CLAIM_SECONDS`` by the clock of the database. Claiming again extends the person's own claim.
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
