"""Scheduled activities."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring.backend import OpenActivity
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.models.fields import decode_payload, unconstrained_key

_OPEN_FIELDS = [f.name for f in fields(OpenActivity) if f.name != "last_failure"]


class ActivityTask(models.Model):
    """An activity that was scheduled and has no final result yet; its result deletes it.

    A lone one (a Django task that was enqueued) belongs to no run: nobody waits for it, and its end is kept as an
    ``EndedTask``.

    ``(id, attempt, owner)`` fences: whatever a worker says about an attempt that is no longer its own changes nothing.
    """

    id = models.BigAutoField(primary_key=True)
    chain = unconstrained_key("temporalex_django.Chain", null=True, help_text=_("Empty: a lone one, of no run."))
    run = unconstrained_key(
        "temporalex_django.Instance", related_name="activities", help_text=_("Of a lone one its own id.")
    )
    workflow_id = models.CharField(max_length=200)
    workflow = models.CharField(max_length=200)
    seq = models.IntegerField(help_text=_("Number of the command that scheduled it."))
    activity = models.CharField(max_length=300)
    call = models.BinaryField(help_text=_("Arguments: a list of the positional ones and the ones by name."))
    options = models.BinaryField()
    queue = models.TextField()
    line = models.TextField(  # noqa: DJ001 - most wait in the common one
        null=True, help_text=_("The line of its queue in which it waits: of its key, or of its activity.")
    )
    run_queue = models.TextField(help_text=_("Queue of the run: where its result is a message."))
    atomic = models.BooleanField(db_default=False)
    attempt = models.IntegerField(db_default=0)
    max_attempts = models.IntegerField(db_default=0, help_text=_("0: without limit."))
    crashes = models.SmallIntegerField(db_default=0, help_text=_("Workers that ended while they ran it."))
    scheduled_at = models.DateTimeField()
    due_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    beat_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True, help_text=_("When the first of its timeouts passes."))
    close_at = models.DateTimeField(null=True, help_text=_("End of schedule_to_close."))
    schedule_to_start = models.FloatField(null=True)
    start_to_close = models.FloatField(null=True)
    heartbeat_timeout = models.FloatField(null=True)
    heartbeat = models.BinaryField(null=True)
    tags = models.JSONField(null=True, help_text=_("Those of the workflow's class, to filter by."))
    metadata = models.JSONField(null=True)
    priority = models.SmallIntegerField(db_default=0, help_text=_("Of a lone one: more comes first."))
    waits_for = models.TextField(null=True, help_text=_("What the worker lacked that gave it back."))  # noqa: DJ001 - nothing
    owner = models.BigIntegerField(null=True, help_text=_("Epoch of the worker that has it."))
    failure = models.BinaryField(null=True, help_text=_("Why the last attempt failed: type, message, traceback."))
    cause = models.TextField(  # noqa: DJ001 - most never failed
        null=True, help_text=_("What failing activities are grouped by: activity, type of the error, place.")
    )
    failed_at = models.DateTimeField(null=True)
    failed_attempt = models.IntegerField(null=True)
    failing_since = models.DateTimeField(null=True, help_text=_("When its first attempt failed."))

    class Meta:
        db_table = "temporalex_activity_task"
        verbose_name = _("activity")
        verbose_name_plural = _("activities")
        ordering = ["id"]
        default_permissions = ("view",)
        indexes = [
            models.Index(
                fields=["queue", "due_at"],
                name="temporalex_task_due",
                condition=Q(owner__isnull=True, atomic=False, line__isnull=True),
            ),
            models.Index(
                fields=["queue", "line", "due_at"],
                name="temporalex_task_line",
                condition=Q(owner__isnull=True, atomic=False, line__isnull=False),
            ),
            models.Index(
                fields=["queue", "-priority", "due_at"],
                name="temporalex_task_priority",
                condition=Q(owner__isnull=True) & (Q(priority__gt=0) | Q(priority__lt=0)),
            ),
            models.Index(fields=["owner"], name="temporalex_task_owner", condition=Q(owner__isnull=False)),
            models.Index(fields=["cause", "workflow"], name="temporalex_task_cause", condition=Q(cause__isnull=False)),
            models.Index(fields=["expires_at"], name="temporalex_task_expires", condition=Q(expires_at__isnull=False)),
        ]
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="temporalex_task_command")]

    def __str__(self) -> str:
        return f"{self.activity} #{self.seq}"

    @property
    def arguments(self) -> Any:
        """``[args, kwargs]``, decoded; never raises (see ``fields.decoded``)."""
        return decode_payload(self.call)

    @property
    def last_failure(self) -> AttemptFailure | None:
        """Why its last attempt failed; None when none did."""
        if self.failed_at is None:
            return None
        failure = decode_payload(self.failure)
        failure_fields = failure if isinstance(failure, dict) else {"type": "", "message": repr(failure)}
        return AttemptFailure(
            type=failure_fields["type"],
            message=failure_fields["message"],
            traceback=failure_fields.get("traceback"),
            at=self.failed_at,
            attempt=self.failed_attempt or 0,
            since=self.failing_since,
        )

    @property
    def as_open(self) -> OpenActivity:
        """It as descriptions show it."""
        shared = {name: getattr(self, name) for name in _OPEN_FIELDS}
        return OpenActivity(**shared, last_failure=self.last_failure)

    @property
    def heartbeat_details(self) -> Any:
        """What the activity said last, decoded."""
        return decode_payload(self.heartbeat)
