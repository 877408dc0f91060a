"""Audit of the operations that people and programs perform."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField


class OperatorAction(models.Model):
    """One operation through any interface: performed, denied, or a read that is audited.

    Operations of people are recorded. A forced operation, such as a termination, is recorded even if code performs it.
    Ordinary messages from code are in the history alone. The rows are append-only.
    """

    id = models.BigAutoField(primary_key=True)
    at = SafeDateTimeField(db_index=True)
    action = models.CharField(max_length=40)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False
    )
    actor_name = models.CharField(max_length=200, blank=True, help_text=_("The name of the user at that time."))
    run = models.ForeignKey(
        "temporalex_django.Instance",
        null=True,
        # The audit log outlives the run, so deleting a run leaves this key as it is. The columns below still name it.
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="operator_actions",
    )
    workflow = models.CharField(max_length=200, blank=True)
    workflow_id = models.CharField(max_length=200, blank=True)
    reason = models.TextField(blank=True)
    source = models.CharField(
        max_length=40,
        help_text=_(
            "The interface: admin, rest, pages, command or code; `turn` if a signal was refused while the run processed it."
        ),
    )
    address = models.GenericIPAddressField(null=True)
    request_id = models.CharField(
        max_length=64, blank=True, default="", help_text=_("Id of the HTTP request (see REQUEST_ID_HEADER).")
    )
    denied = models.BooleanField(default=False, help_text=_("The user lacked the permission, and nothing was done."))
    forced = models.BooleanField(default=False)
    automatic = models.BooleanField(
        default=False,
        help_text=_("Not done by a person, but by code or by a program that sent an ordinary message."),
    )
    details = SafeJSONField(default=dict)

    class Meta:
        db_table = "temporalex_operator_action"
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        ordering = ["-id"]
        default_permissions = ("view",)
        # Lists of what people did skip automatic rows, which are far more.
        indexes = [models.Index(fields=["id"], name="temporalex_operator_people", condition=Q(automatic=False))]

    def __str__(self) -> str:
        return f"{self.action} {self.workflow_id}"
