"""Operations on failed messages: signals whose handler failed."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.backends.routing import backend_of
from temporalex_django.db.messages.inbox import HandledMessage, failed_count, failed_messages
from temporalex_django.models import Instance, Message
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction


class FailedMessageAction(OperatorRunAction[None]):
    """Base class of ``Redeliver`` and ``Discard``, which act on one failed message of a run or on all of them.

    The operation runs in the caller's transaction. It locks the chain (see ``OperatorRunAction.lock_run``) and the rows
    of the messages. It raises ``ActionNotPossible`` if the run has no failed message, or none with the given id. The
    audit log records the id of each message and the digest of its payload.
    """

    permission: ClassVar[str] = "redeliver_message"
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="message",
            kind=str,
            label=_("Message"),
            help=_("The id of one failed message. Without it, the action applies to all failed messages of the run."),
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        del seq
        if failed_count(run):
            return None
        return str(_("the run has no failed message"))

    @abstractmethod
    def act(self, message_id: str) -> HandledMessage | None:
        """Redeliver or discard the failed message with that id.

        Returns the id, name and digest that the audit log records, or None if the chain has no such failed message.
        """

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
                handled = self.act(message_id)
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


class Redeliver(FailedMessageAction):
    """Operation that delivers failed messages to the run again, with the same payload and id.

    A failed message is a signal whose handler failed. ``message`` is the id of one; without it, all of the run are
    delivered. They come after the messages that wait already. A paused run receives them when it is unpaused. Locks the
    chain, in the caller's transaction. Raises ``ActionNotPossible`` if there is no such message.
    """

    name: ClassVar[str] = "redeliver"
    label: ClassVar[Promise] = _("Deliver again")
    summary: ClassVar[Promise] = _("Deliver failed messages again.")
    effect: ClassVar[Promise] = _(
        "The run receives the message again, with the same payload, after the messages that are already waiting."
    )
    done: ClassVar[Promise] = _("The run receives the message in its next turn.")

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        return cls.why_not_open(run) or super().why_not(run, seq=seq)

    def act(self, message_id: str) -> HandledMessage | None:
        return backend_of(self.target).redeliver(self, message_id)


class Discard(FailedMessageAction):
    """Operation that discards failed messages, so that their signals are never delivered again.

    A failed message is a signal whose handler failed. ``message`` is the id of one; without it, all of the run are
    discarded. A signal that is sent again with the id of a discarded message is not delivered either. The rows stay. A
    closed run can have its failed messages discarded as well. Locks the chain, in the caller's transaction. Raises
    ``ActionNotPossible`` if there is no such message.
    """

    name: ClassVar[str] = "discard"
    label: ClassVar[Promise] = _("Discard message")
    summary: ClassVar[Promise] = _("Discard failed messages.")
    effect: ClassVar[Promise] = _(
        "The run never receives a discarded message, even if it is sent again with the same id. The message stays in the list of messages."
    )
    done: ClassVar[Promise] = _("The message was discarded.")
    destructive: ClassVar[bool] = True

    def is_done(self, run: Instance) -> bool:
        discarded = Message.objects.using(self.storage.alias).filter(chain_id=run.chain_id, outcome_status="discarded")
        return not failed_count(run) and discarded.exists()

    def act(self, message_id: str) -> HandledMessage | None:
        return backend_of(self.target).discard(self, message_id)
