"""Histories of runs. They are append-only (see decision 8)."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, decode_payload, unconstrained_key


class HistoryEvent(models.Model):
    """One event in the history of a run, such as an activity that was scheduled or a signal that arrived.

    ``seq`` counts the events of the run from 1 without gaps. ``activation`` is the number of the activation in which
    the event was recorded: one delivery of results, timers and messages to the code of the run.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = unconstrained_key("temporalex_django.Instance", related_name="events")
    seq = models.IntegerField()
    activation = models.IntegerField()
    kind = models.CharField(max_length=40)
    at = SafeDateTimeField()
    attributes = models.BinaryField()

    class Meta:
        db_table = "temporalex_history_event"
        verbose_name = _("history event")
        verbose_name_plural = _("history events")
        ordering = ["run_id", "seq"]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"

    @property
    def data(self) -> Any:
        """The attributes of the event, decoded. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.attributes)
