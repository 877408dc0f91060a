"""What requests with an ``Idempotency-Key`` made, so that the same one again gets the same answer."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class KeptAnswer(models.Model):
    """Commits with what the request did. No payloads: an answer is made anew of what stands in the tables."""

    id = models.UUIDField(primary_key=True)
    key = models.CharField(max_length=64, unique=True, help_text=_("Digest of who asked, and of his key."))
    request = models.CharField(max_length=64, help_text=_("Digest of what he asked for."))
    made = models.UUIDField(null=True, help_text=_("The run or bulk job that the answer shows."))
    new = models.BooleanField(default=False, help_text=_("It was not there before."))
    at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "temporalex_kept_answer"
        verbose_name = _("kept answer")
        verbose_name_plural = _("kept answers")
        ordering = ["-at"]
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.made} at {self.at:%Y-%m-%d %H:%M}"
