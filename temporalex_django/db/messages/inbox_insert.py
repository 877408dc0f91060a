"""Inserts before the messages that an inbox has. The ids of the rows give the order, so those get new rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID, uuid4

from temporalex_django.conf import codec
from temporalex_django.core.history.prefix import EXTERNAL_KINDS, PendingMessage
from temporalex_django.core.process import REQUEST
from temporalex_django.engine.contracts.run_storage import Outcome
from temporalex_django.models import Chain, Message


class InboxInserts(ABC):
    """The implementation of ``RunStorage.prepend_messages``.

    It is called seldom, so it uses the ORM.
    """

    alias: str

    @abstractmethod
    def now(self) -> datetime: ...

    def prepend_messages(self, chain: UUID, messages: Sequence[PendingMessage], *, received: int) -> None:
        """Implement ``RunStorage.prepend_messages``. Locks the rows of the chain's unread messages."""
        rows = Message.objects.using(self.alias).filter(chain_id=chain)
        unread_rows = list(rows.filter(settled=False, kind__in=EXTERNAL_KINDS).order_by("pk"))
        unread_ids = {row.request_id for row in unread_rows} - {None}
        messages = [message for message in messages if message.message_id not in unread_ids]
        message_ids = [message.message_id for message in messages if message.message_id is not None]
        # The unread messages are deleted and inserted again behind the new ones, with higher ids.
        rows.filter(pk__in=[row.pk for row in unread_rows]).delete()
        rows.filter(request_id__in=message_ids).delete()
        queue = Chain.objects.using(self.alias).values_list("queue", flat=True).get(pk=chain)
        new = [self._message_row(chain, queue, message) for message in messages]
        for row in unread_rows:
            row.pk, row.fresh, row.queue = None, True, queue
            row.after = row.after if row.after is not None and row.after <= received else None
        Message.objects.using(self.alias).bulk_create([*new, *unread_rows], batch_size=500)

    def message_statuses(self, chain: UUID, ids: Collection[str]) -> dict[str, str]:
        """Implement ``RunStorage.message_statuses``."""
        rows = Message.objects.using(self.alias).filter(chain_id=chain, request_id__in=[*ids])
        statuses = rows.values_list("request_id", "settled", "outcome_status") if ids else ()
        return {str(message): status or "" if settled else "unread" for message, settled, status in statuses}

    def copy_failed_messages(self, source_chain: UUID, target_chain: UUID, ids: Collection[str]) -> None:
        """Implement ``RunStorage.copy_failed_messages``."""
        if not ids:
            return
        rows = [
            *Message.objects.using(self.alias)
            .failed()
            .filter(chain_id=source_chain, request_id__in=[*ids])
            .order_by("pk")
        ]
        queue = Chain.objects.using(self.alias).values_list("queue", flat=True).get(pk=target_chain)
        for row in rows:
            row.pk, row.chain_id, row.queue = None, target_chain, queue
        Message.objects.using(self.alias).bulk_create(rows, batch_size=500)

    def store_settled_messages(self, chain: UUID, messages: Sequence[tuple[PendingMessage, Outcome]]) -> None:
        queue = Chain.objects.using(self.alias).values_list("queue", flat=True).get(pk=chain)
        rows = []
        for message, outcome in messages:
            row = self._message_row(chain, queue, message)
            row.fresh, row.settled, row.outcome_status = False, True, outcome.status
            row.outcome = codec().encode(outcome.value)
            rows.append(row)
        Message.objects.using(self.alias).bulk_create(rows, batch_size=500)

    def _message_row(self, chain: UUID, queue: str, message: PendingMessage) -> Message:
        sender = message.sender
        return Message(
            chain_id=chain,
            queue=queue,
            kind=message.kind,
            name=message.name,
            body=codec().encode(message.payload),
            request_id=str(uuid4()) if message.kind == REQUEST else message.message_id,
            redelivered=message.kind != "signal",  # signals wait for their consumer in any case
            sender_key=None if sender is None else sender.key,
            sender_name=None if sender is None else sender.name,
            fresh=True,
            settled=False,
            created_at=self.now(),
        )
