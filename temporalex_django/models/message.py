"""Messages: the inbox of a chain, and at the same time its doorbell."""

from __future__ import annotations

from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import decode_payload, unconstrained_key

#: Statuses of messages that somebody has to look at: failed ones, and updates whose validator failed.
ATTENTION = Q(outcome_status="failed", kind="signal") | Q(outcome_status="fault")


class MessageQuerySet(models.QuerySet["Message"]):
    """Messages."""

    def failed(self) -> Self:
        """Signals whose handler failed, and that nobody has delivered again or discarded."""
        return self.filter(kind="signal", outcome_status="failed")

    def faults(self) -> Self:
        """Updates whose validator failed by a fault of the code."""
        return self.filter(outcome_status="fault")


class Message(models.Model):
    """A signal, update, cancel request, resume, or result of an activity or child; senders only ever insert.

    ``fresh``: no turn has read it. ``settled``: nothing more will be done with it; it is kept for its outcome.
    """

    id = models.BigAutoField(primary_key=True)
    chain = unconstrained_key("temporalex_django.Chain", related_name="messages")
    run = unconstrained_key("temporalex_django.Instance", null=True, help_text=_("For results: the run that asked."))
    queue = models.TextField()
    kind = models.CharField(max_length=20)
    name = models.CharField(max_length=200)
    body = models.BinaryField()
    request_id = models.CharField(max_length=200, null=True)  # noqa: DJ001 - many messages without one
    after = models.IntegerField(null=True, help_text=_("Signals received before this update began to wait."))
    fresh = models.BooleanField(db_default=True)
    settled = models.BooleanField(db_default=False)
    redelivered = models.BooleanField(
        db_default=False, help_text=_("A reset or fork delivers it again: it waits for what takes it.")
    )
    sender_key = models.CharField(  # noqa: DJ001 - none: code sent it
        max_length=200, null=True, help_text=_("Of the user who sent it, as text.")
    )
    sender_name = models.CharField(max_length=200, null=True, help_text=_("Who, as it read then."))  # noqa: DJ001
    outcome_status = models.CharField(max_length=20, null=True)  # noqa: DJ001 - none yet
    outcome = models.BinaryField(null=True)
    answered_at = models.DateTimeField(null=True, help_text=_("When a turn wrote its outcome; none yet, or not told."))
    created_at = models.DateTimeField()

    objects = MessageQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_message"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ["id"]
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "chain"], name="temporalex_message_fresh", condition=Q(fresh=True)),
            models.Index(fields=["chain", "id"], name="temporalex_message_inbox", condition=Q(settled=False)),
            models.Index(  # of those that need attention there are few
                fields=["chain"],
                name="temporalex_message_attention",
                condition=ATTENTION,
            ),
            models.Index(  # for retention: each message is in this one, in the one before, or in that of request ids
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
        """The body, decoded; never raises (see ``fields.decoded``)."""
        return decode_payload(self.body)

    @property
    def failed(self) -> bool:
        """Whether it is a signal whose handler failed, and that nobody has delivered again or discarded."""
        return self.kind == "signal" and self.outcome_status == "failed"

    @property
    def failure(self) -> dict[str, str]:
        """Type and message of the exception of a failed message; never raises (see ``fields.decoded``)."""
        outcome = self.outcome_value
        facts = outcome if isinstance(outcome, dict) else {}
        return {"type": str(facts.get("type", "")), "message": str(facts.get("message", outcome if not facts else ""))}

    @property
    def outcome_value(self) -> Any:
        """What became of it, decoded."""
        return decode_payload(self.outcome)
