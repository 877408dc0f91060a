"""Operations on failed messages: signals whose handler failed."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar
from uuid import UUID

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.db.messages.failed_messages import HandledMessage, failed_count, failed_messages
from temporalex_django.models import Instance
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction


class FailedMessageAction(OperatorRunAction[None]):
    """Base class of ``Redeliver`` and ``Discard``.

    Runs in the caller's transaction. Locks the chain (see ``OperatorRunAction.lock_run``) and the rows of the messages.
    Raises ``ActionNotPossible`` if the run has no failed message of that id, or none at all. The audit contains the id
    of each message and the digest of its payload.
    """

    permission: ClassVar[str] = "redeliver_message"
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="message",
            kind=str,
            label=_("Message"),
            help=_("The id of one failed message. If empty, all failed messages of the run."),
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        return None if failed_count(run) else str(_("the run has no failed message"))

    @abstractmethod
    def act(self, chain: UUID, message_id: str) -> HandledMessage | None:
        """Act on one failed message. Return None if it does not exist any more."""

    def perform(self) -> None:
        alias = self.storage.alias
        with self.storage.transaction():
            run = self.lock_run()
            chosen_id = self.input_values.get("message")
            message_ids = (
                [chosen_id]
                if chosen_id
                else [str(row.request_id) for row in failed_messages(run.chain_id, alias=alias)]
            )
            for message_id in message_ids:
                handled = self.act(run.chain_id, message_id)
                if handled is None:
                    self.refuse(
                        format_lazy(_("the run has no failed message with the id {id}"), id=message_id), closed=False
                    )
                else:
                    self.record(
                        self.target.audit_subject,
                        reason=self.reason,
                        message=handled.id,
                        signal=handled.name,
                        digest=handled.digest,
                    )
            self.finish(run.queue)

    def finish(self, queue: str) -> None:
        """Do what follows after all messages were handled.

        ``queue`` is the queue of the run.
        """
