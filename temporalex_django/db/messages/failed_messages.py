"""Failed messages in the database: signals whose handler failed. They are kept until redelivered or discarded.

A failed message is the row of its signal, settled with the outcome ``failed``. If the sender gave the signal no message
id, it has the id ``<run id>:<number>`` from then on. See decision 46.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.conf import codec
from temporalex_django.core.payloads.codec import digest
from temporalex_django.db.sql_columns import sender_columns
from temporalex_django.engine.contracts.records import RunWrite
from temporalex_django.models import Chain, Instance, Message


@dataclass(frozen=True, slots=True)
class HandledMessage:
    """A failed message that somebody has delivered again or discarded.

    ``id`` is its message id, ``name`` the name of the signal, and ``digest`` the digest of its payload.
    """

    id: str
    name: str
    digest: str


def write_failed_messages(writes: Iterable[RunWrite], *, alias: str) -> None:
    """Store the signals that failed in these turns, in the open transaction. Their chains are locked."""
    for write in writes:
        for failed in write.failed_signals:
            outcome = {
                "fresh": False,
                "settled": True,
                "outcome_status": "failed",
                "outcome": codec().encode({**failed.failure, "run": str(write.run.run_id), "number": failed.number}),
                "answered_at": write.run.activated_at,
            }
            rows = Message.objects.using(alias).filter(chain_id=write.run.chain_id, request_id=failed.id)
            # A signal with a message id still has its row. One without an id was deleted when a turn consumed it.
            if rows.update(**outcome):
                continue
            sender_key, sender_name = sender_columns(failed.sender)
            Message.objects.using(alias).create(
                chain_id=write.run.chain_id,
                queue=write.run.queue,
                kind="signal",
                name=failed.name,
                body=codec().encode(failed.payload),
                request_id=failed.id,
                sender_key=sender_key,
                sender_name=sender_name,
                headers=failed.headers,
                created_at=write.run.activated_at or timezone.now(),
                **outcome,
            )


def failed_messages(chain: UUID, *, alias: str) -> QuerySet[Message]:
    """Return the failed messages (signals whose handler failed) of a chain, oldest first."""
    return Message.objects.using(alias).failed().filter(chain_id=chain).order_by("pk")


def failed_count(run: Instance) -> int:
    """Return the number of failed messages (signals whose handler failed) of the chain of ``run``.

    The object keeps the number, so a second call with it sends no statement.
    """
    if "failed_count" not in run.__dict__:
        alias = run._state.db or "default"  # noqa: SLF001 - Django documents it
        run.__dict__["failed_count"] = failed_messages(run.chain_id, alias=alias).count()
    count: int = run.__dict__["failed_count"]
    return count


def redeliver(chain: UUID, message_id: str, *, alias: str) -> HandledMessage | None:
    """Put a failed message (a signal) at the end of its inbox again, in the open transaction. Locks its row.

    ``message_id`` is its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is None:
        return None
    message = handled_message(row)
    # Deleted and inserted anew: the id of the row gives the position in the inbox.
    row.delete()
    row.pk, row.fresh, row.settled = None, True, False
    row.outcome_status = row.outcome = row.answered_at = row.after = None
    row.queue = Chain.objects.using(alias).values_list("queue", flat=True).get(pk=chain)
    row.save(force_insert=True, using=alias)
    return message


def take_failed(chain: UUID, message_id: str, *, alias: str) -> Message | None:
    """Mark a failed message as sent again, in the open transaction, and return its row. Locks it.

    ``message_id`` is its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is not None:
        row.outcome_status, row.outcome, row.answered_at = "sent", None, None
        row.save(update_fields=["outcome_status", "outcome", "answered_at"])
    return row


def discard(chain: UUID, message_id: str, *, alias: str) -> HandledMessage | None:
    """Settle a failed message as discarded, in the open transaction. Locks its row.

    No other message of the chain can get its message id. Returns None if the chain has no failed message with that id.
    """
    row = failed_messages(chain, alias=alias).select_for_update().filter(request_id=message_id).first()
    if row is None:
        return None
    row.outcome_status = "discarded"
    row.save(update_fields=["outcome_status"])
    return handled_message(row)


def handled_message(row: Message) -> HandledMessage:
    """Return a failed message as the audit log records it."""
    return HandledMessage(id=str(row.request_id), name=row.name, digest=digest(codec().decode(bytes(row.body))))
