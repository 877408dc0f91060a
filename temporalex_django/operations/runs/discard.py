"""Discard failed messages."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from temporalex_django.db.messages.failed_messages import HandledMessage, discard
from temporalex_django.operations.runs.failed_message import FailedMessageAction


class Discard(FailedMessageAction):
    """Operation that discards a failed message, so that its signal is never delivered again.

    A signal that is sent again under the same id is not delivered either. The row of the message stays. This also works
    for a closed run. See ``FailedMessageAction``.
    """

    name: ClassVar[str] = "discard"
    label: ClassVar[Promise] = _("Discard message")
    effect: ClassVar[Promise] = _(
        "The run never receives the signal, even if it is sent again with the same id. The message stays in the list."
    )
    done: ClassVar[Promise] = _("The message is discarded.")
    destructive: ClassVar[bool] = True

    def act(self, chain: UUID, message_id: str) -> HandledMessage | None:
        return discard(chain, message_id, alias=self.storage.alias)
