"""The tables of limits and switches, which apply over all workers."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField


class Limit(models.Model):
    """A limit: how many activities of a queue or of one name run at a time, or start within a period, over all workers.

    Workers lock the row while they claim activities under that limit. The number of running activities is counted from
    the activity rows, not stored here. The limit itself is set in the settings or in code.
    """

    name = models.TextField(primary_key=True, help_text=_("queue:<name> or activity:<name>."))
    starts = SafeJSONField(
        like=list[Any], default=list, help_text=_("For a rate: when each slice of its period began, and its count.")
    )

    class Meta:
        db_table = "temporalex_limit"
        verbose_name = _("limit")
        verbose_name_plural = _("limits")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class Permit(models.Model):
    """An attempt on a Temporal cluster that runs under limits, or a place that a worker keeps for the next one.

    It counts for limits as the row of an activity does that a worker has claimed. The end of the attempt deletes it,
    and so does the end of its worker.
    """

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField()
    activity = models.CharField(max_length=300, blank=True, help_text=_("Empty for a place."))
    line = models.TextField(null=True, help_text=_("The partition of its queue, which names its key."))  # noqa: DJ001 - most have no key
    owner = models.BigIntegerField(help_text=_("Epoch of the worker."))
    started = models.BooleanField(db_default=False, help_text=_("False for a place."))

    class Meta:
        db_table = "temporalex_permit"
        verbose_name = _("permit")
        verbose_name_plural = _("permits")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.queue} {self.activity}"


class SwitchedOff(models.Model):
    """A queue, an activity or a workflow class that is off. Workers claim nothing of it while the row exists.

    A hold is a switch with an end, ``until``: an activity asked to keep back the activities of a queue, or those of one
    concurrency key in it. ``name`` is then the queue, ``key`` the key or empty, and ``by`` the name of the activity. It
    is over when ``until`` has passed on the clock of the database, also while its row exists.
    """

    class Switchable(models.TextChoices):
        """The kinds of things that can be switched off."""

        QUEUE = "queue", _("queue")
        ACTIVITY = "activity", _("activity")
        WORKFLOW = "workflow", _("workflow class")
        HOLD = "hold", _("held activities of a queue")

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=10, choices=Switchable.choices)
    name = models.CharField(max_length=300)
    since = SafeDateTimeField()
    by = models.CharField(max_length=200, blank=True, help_text=_("Who switched it off: the name at that time."))
    reason = models.TextField(blank=True)
    key = models.CharField(max_length=200, blank=True, help_text=_("For a hold: the concurrency key that is held."))
    until = SafeDateTimeField(null=True, help_text=_("When a hold ends. Empty for all other switches."))

    class Meta:
        db_table = "temporalex_switched_off"
        verbose_name = _("switch that is off")
        verbose_name_plural = _("switches that are off")
        ordering = ["kind", "name"]
        default_permissions = ("view",)
        permissions = [("use_switches", _("Can switch queues, activities and workflow classes off and on"))]
        constraints = [models.UniqueConstraint(fields=["kind", "name", "key"], name="temporalex_switched_off_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
