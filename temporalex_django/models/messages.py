"""Messages: what runs receive, what leaves for other systems, and answers that are kept."""

from __future__ import annotations

from typing import Any, NotRequired, Self, TypedDict

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, decode_payload, unconstrained_key

# --- message ----------------------------------------------------------------------------------------------------------
#
# Messages: the inbox of a chain. Workers find the chain by its unread messages (see decision 6).


#: Condition for messages that need attention: failed signals, and updates whose validator failed by a fault.
ATTENTION = Q(outcome_status="failed", kind="signal") | Q(outcome_status="fault")


class MessageQuerySet(models.QuerySet["Message"]):
    """A queryset of messages."""

    def failed(self) -> Self:
        """Return the signals whose handler failed and that are neither delivered again nor discarded."""
        return self.filter(kind="signal", outcome_status="failed")

    def faults(self) -> Self:
        """Return the updates whose validator failed because of a fault in the code."""
        return self.filter(outcome_status="fault")


class Message(models.Model):
    """A message of a chain: a signal, update, cancel request, resume, or result of an activity or child.

    Senders only insert rows. ``fresh`` means that no turn has read the message. ``settled`` means that no turn will
    read it again; it is kept for its outcome.
    """

    id = models.BigAutoField(primary_key=True)
    chain = unconstrained_key("temporalex_django.Chain", related_name="messages")
    run = unconstrained_key(
        "temporalex_django.Instance", null=True, help_text=_("For results: the run that is waiting for them.")
    )
    queue = models.TextField()
    kind = models.CharField(max_length=20)
    name = models.CharField(max_length=200)
    body = models.BinaryField()
    request_id = models.CharField(max_length=200, null=True)  # noqa: DJ001 - many messages without one
    after = models.IntegerField(null=True, help_text=_("Number of signals received before this update began to wait."))
    fresh = models.BooleanField(db_default=True)
    settled = models.BooleanField(db_default=False)
    redelivered = models.BooleanField(
        db_default=False, help_text=_("A reset or fork delivers it again: it waits until code accepts it.")
    )
    sender_key = models.CharField(  # noqa: DJ001 - none: code sent it
        max_length=200, null=True, help_text=_("Key of the user who sent it, as text.")
    )
    sender_name = models.CharField(  # noqa: DJ001 - as above
        max_length=200, null=True, help_text=_("The name of the user at that time.")
    )
    headers = SafeJSONField(like=dict[str, str], null=True)
    outcome_status = models.CharField(max_length=20, null=True)  # noqa: DJ001 - none yet
    outcome = models.BinaryField(null=True)
    answered_at = SafeDateTimeField(null=True, help_text=_("When its outcome was written; empty before that."))
    created_at = SafeDateTimeField()

    objects = MessageQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_message"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ["id"]
        default_permissions = ("view",)
        indexes = [
            # Workers find the chains with unread messages by this index, so senders never touch the row of the chain.
            models.Index(fields=["queue", "chain"], name="temporalex_message_fresh", condition=Q(fresh=True)),
            models.Index(fields=["chain", "id"], name="temporalex_message_inbox", condition=Q(settled=False)),
            # Few messages need attention, so this index is small.
            models.Index(
                fields=["chain"],
                name="temporalex_message_attention",
                condition=ATTENTION,
            ),
            # For retention: each message is in this index, in that of the inbox, or in that of message ids. So a delete
            # by chain needs no index over all messages.
            models.Index(
                fields=["chain"],
                name="temporalex_message_settled",
                condition=Q(settled=True, request_id__isnull=True),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["chain", "request_id"],
                name="temporalex_message_request_id",
                condition=Q(request_id__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def payload(self) -> Any:
        """The payload (``body``), decoded. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.body)

    @property
    def failed(self) -> bool:
        """True if this is a signal whose handler failed and that is neither delivered again nor discarded."""
        return self.kind == "signal" and self.outcome_status == "failed"

    @property
    def failure(self) -> dict[str, str]:
        """The type and the message of the exception by which the handler of this signal failed, as a dict.

        The keys are ``type`` and ``message``; both are texts. Never raises.
        """
        outcome = self.outcome_value
        facts = outcome if isinstance(outcome, dict) else {}
        return {"type": str(facts.get("type", "")), "message": str(facts.get("message", outcome if not facts else ""))}

    @property
    def outcome_value(self) -> Any:
        """The value of the outcome, decoded. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.outcome)


# --- outbox -----------------------------------------------------------------------------------------------------------
#
# The outbox: messages that were committed here and are to be sent to another system.


class _Failed(TypedDict):
    code: str
    error: NotRequired[str]
    at: NotRequired[str]


class OutboxQuerySet(models.QuerySet["Outbox"]):
    """A queryset of rows of the outbox."""

    def waiting(self) -> OutboxQuerySet:
        """Return the rows that are still to be sent."""
        return self.filter(failed__isnull=True)

    def refused(self) -> OutboxQuerySet:
        """Return the dead letters: rows that are not sent again unless a person says so."""
        return self.filter(failed__isnull=False)


class Outbox(models.Model):
    """One message for one destination, written in the transaction of the caller and sent after its commit.

    Rows of one chain and one destination are sent in the order of their ids. ``kind`` names the code that sends the
    row, and ``body`` is plain JSON data for that code, whose payloads are encoded by the codec.
    """

    id = models.UUIDField(primary_key=True)
    chain = unconstrained_key("temporalex_django.Chain", related_name="outbox")
    destination = models.CharField(max_length=200)
    kind = models.CharField(max_length=40)
    body = models.BinaryField()
    sender = models.CharField(max_length=200, null=True, help_text=_("The user who sent it; empty for code."))  # noqa: DJ001 - none: code sent it
    created_at = SafeDateTimeField()
    due_at = SafeDateTimeField(help_text=_("It is not sent before this time."))
    tries = models.IntegerField(db_default=0)
    failed = SafeJSONField(
        like=_Failed,
        instead={"code": "unreadable", "error": "?", "at": ""},
        null=True,
        help_text=_("Why it is not sent again: code, error, at."),
    )
    error = models.TextField(null=True, help_text=_("The error of the last attempt."))  # noqa: DJ001 - none yet

    objects = OutboxQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_outbox"
        verbose_name = _("outgoing message")
        verbose_name_plural = _("outgoing messages")
        ordering = ["id"]
        default_permissions = ("view",)
        permissions = [("operate_outbox", _("Can send outgoing messages again, and drop them"))]
        indexes = [
            models.Index(fields=["chain", "destination", "id"], name="temporalex_outbox_order"),
            models.Index(fields=["due_at"], name="temporalex_outbox_due", condition=Q(failed__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


# --- idempotency ------------------------------------------------------------------------------------------------------
#
# Objects that requests with an ``Idempotency-Key`` created.
#
# A repeated request gets the answer of the first one.


class KeptAnswer(models.Model):
    """The record of a request with an ``Idempotency-Key``.

    It commits together with the changes of the request. It holds no payloads: the answer to a repeated request is built
    again from the present rows.
    """

    id = models.UUIDField(primary_key=True)
    key = models.CharField(max_length=64, unique=True, help_text=_("Digest of the user and of the key that they sent."))
    request = models.CharField(max_length=64, help_text=_("Digest of the request."))
    made = models.UUIDField(null=True, help_text=_("The run or bulk job that the answer shows."))
    new = models.BooleanField(default=False, help_text=_("The request created it."))
    at = SafeDateTimeField(db_index=True)

    class Meta:
        db_table = "temporalex_kept_answer"
        verbose_name = _("stored answer")
        verbose_name_plural = _("stored answers")
        ordering = ["-at"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.made} at {self.at:%Y-%m-%d %H:%M}"
