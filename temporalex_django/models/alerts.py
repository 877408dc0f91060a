"""Problems that alerts report, and leases for work that one process at a time does."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField


class Alert(models.Model):
    """A problem of the project that alerts report to one channel, such as the blocked runs of one class."""

    cause = models.CharField(max_length=500, help_text=_("The code of the finding, and its subject."))
    channel = models.CharField(max_length=500, help_text=_("An address of mail, or the path of a function."))
    since = SafeDateTimeField(help_text=_("When it was first seen."))
    seen_at = SafeDateTimeField(help_text=_("When it was last seen."))
    count = models.IntegerField(default=1, help_text=_("The number of runs, messages or slots that have it."))
    sent_at = SafeDateTimeField(null=True, help_text=_("When it was last reported to people."))
    sent_count = models.IntegerField(default=0, help_text=_("The number that was reported then."))

    class Meta:
        db_table = "temporalex_alert"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ["cause", "channel"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["cause", "channel"], name="temporalex_alert_per_channel"),
        ]

    def __str__(self) -> str:
        return self.cause


class Lease(models.Model):
    """A lease on work that one process at a time does for all, such as sending alerts."""

    name = models.CharField(max_length=100, primary_key=True)
    until = SafeDateTimeField(help_text=_("When another process may take it."))
    notes = SafeJSONField(default=dict, help_text=_("What its holder leaves for the next one."))

    class Meta:
        db_table = "temporalex_lease"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        ordering = ["name"]
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
