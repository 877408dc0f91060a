"""The table of work that was done once, with its results."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField


class DoneOnce(models.Model):
    """Work that has been done, and its result. It commits with the writes of the work.

    A repeat finds the row and returns the result instead. ``run_id`` is the run that did it, as its activities see it.
    The row is deleted with that run.
    """

    key = models.CharField(primary_key=True, max_length=300)
    run_id = models.UUIDField(db_index=True)
    result = models.BinaryField(null=True, help_text=_("The encoded result."))
    created_at = SafeDateTimeField()

    class Meta:
        db_table = "temporalex_done_once"
        verbose_name = _("work done once")
        verbose_name_plural = _("work done once")
        default_permissions = ()

    def __str__(self) -> str:
        return self.key
