"""Messages: the inbox of a chain, and at the same time its doorbell."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import decoded, hot_key


class Message(models.Model):
    """A signal, update, cancel request, resume, or result of an activity or child; senders only ever insert.

    ``fresh``: no turn has read it. ``settled``: nothing more will be done with it; it is kept for its outcome.
    """

    id = models.BigAutoField(primary_key=True)
    chain = hot_key("temporalex_django.Chain", related_name="messages")
    run = hot_key("temporalex_django.Instance", null=True, help_text=_("For results: the run that asked."))
    queue = models.TextField()
    kind = models.CharField(max_length=20)
    name = models.CharField(max_length=200)
    body = models.BinaryField()
    request_id = models.CharField(max_length=200, null=True)  # noqa: DJ001 - many messages without one
    after = models.IntegerField(null=True, help_text=_("Signals received before this update began to wait."))
    fresh = models.BooleanField(db_default=True)
    settled = models.BooleanField(db_default=False)
    sender_key = models.CharField(  # noqa: DJ001 - none: code sent it
        max_length=200, null=True, help_text=_("Of the user who sent it, as text.")
    )
    sender_name = models.CharField(max_length=200, null=True, help_text=_("Who, as it read then."))  # noqa: DJ001
    outcome_status = models.CharField(max_length=20, null=True)  # noqa: DJ001 - none yet
    outcome = models.BinaryField(null=True)
    answered_at = models.DateTimeField(null=True, help_text=_("When a turn wrote its outcome; none yet, or not told."))
    created_at = models.DateTimeField()

    class Meta:
        db_table = "temporalex_message"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ["id"]
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "chain"], name="temporalex_message_fresh", condition=Q(fresh=True)),
            models.Index(fields=["chain", "id"], name="temporalex_message_inbox", condition=Q(settled=False)),
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
        return decoded(self.body)

    @property
    def outcome_value(self) -> Any:
        """What became of it, decoded."""
        return decoded(self.outcome)
