"""The outbox: messages that were committed here and are to be sent to another system."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, unconstrained_key


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
