"""Deliver failed messages again."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.messages.failed_messages import HandledMessage, redeliver
from temporalex_django.models import Instance
from temporalex_django.operations.runs.failed_message import FailedMessageAction


class Redeliver(FailedMessageAction):
    """Operation that sends the signal to the run once more, with the same payload and id, after the messages that wait.

    A paused run receives it when it is unpaused. See ``FailedMessageAction``.
    """

    name: ClassVar[str] = "redeliver"
    label: ClassVar[Promise] = _("Deliver again")
    effect: ClassVar[Promise] = _(
        "The run receives the signal again, with the same payload, after the messages that already wait."
    )
    done: ClassVar[Promise] = _("The run receives the message in its next turn.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        return cls.why_not_open(run) or super().why_not(run, seq=seq)

    def act(self, chain: UUID, message_id: str) -> HandledMessage | None:
        return redeliver(chain, message_id, alias=self.storage.alias)

    def finish(self, queue: str) -> None:
        notify_on_commit(alias=self.storage.alias, queues=[queue])
