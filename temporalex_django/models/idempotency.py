"""Objects that requests with an ``Idempotency-Key`` created.

A repeated request gets the answer of the first one.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField


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
