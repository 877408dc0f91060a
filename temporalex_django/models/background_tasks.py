"""Background tasks: Django tasks that were enqueued on their own.

An open one is the row of an activity, and an ended one has a row of its own. See decision 44.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.activity import ActivityTask
from temporalex_django.models.fields import SafeDateTimeField, decode_payload


class _BackgroundTaskManager(models.Manager["EnqueuedTask"]):
    def get_queryset(self) -> models.QuerySet[EnqueuedTask]:
        # An empty chain is the only mark of a background task. Its ``run`` is not empty: it holds the task's own id.
        return super().get_queryset().filter(chain=None)


class EnqueuedTask(ActivityTask):
    """A background task that has not ended: the row of an activity that belongs to no run."""

    objects = _BackgroundTaskManager()  # type: ignore[misc] # the stubs know no manager of a proxy

    class Meta:
        proxy = True
        verbose_name = _("enqueued task")
        verbose_name_plural = _("enqueued tasks")
        default_permissions = ("view",)

    def __str__(self) -> str:
        # Activities of background tasks are named ``task:<dotted path>``.
        return self.activity.partition(":")[2]


class EndedTask(models.Model):
    """A background task that has ended. The row is kept for the retention of the task's backend.

    It is written in the transaction that deletes the row of the activity, so one of the two always exists.
    """

    class TaskStatus(models.TextChoices):
        """Statuses of ended tasks, with the names that ``django.tasks`` uses."""

        SUCCESSFUL = "SUCCESSFUL", _("Successful")
        FAILED = "FAILED", _("Failed")

    id = models.UUIDField(primary_key=True)
    task = models.CharField(max_length=300, help_text=_("Dotted path of the function."))
    backend = models.CharField(max_length=200)
    queue = models.TextField()
    priority = models.SmallIntegerField()
    status = models.CharField(max_length=10, choices=TaskStatus.choices)
    call = models.BinaryField(help_text=_("Arguments: a list of the positional and the keyword arguments."))
    options = models.BinaryField(help_text=_("The options for running it, and its attempts."))
    outcome = models.BinaryField(help_text=_("Its result, or why it failed."))
    cause = models.TextField(  # noqa: DJ001 - most have not failed
        null=True, help_text=_("Why it failed: the type of the error and its place in the code.")
    )
    fault = models.TextField(  # noqa: DJ001 - as above
        null=True, help_text=_("Groups failed tasks: the type of the error, the file and the function.")
    )
    attempts = models.IntegerField()
    enqueued_at = SafeDateTimeField()
    started_at = SafeDateTimeField(null=True, help_text=_("When its first attempt began."))
    finished_at = SafeDateTimeField()
    keep_until = SafeDateTimeField(null=True, help_text=_("Empty if it is kept forever."))

    class Meta:
        db_table = "temporalex_ended_task"
        verbose_name = _("ended task")
        verbose_name_plural = _("ended tasks")
        ordering = ["-id"]
        default_permissions = ("view",)
        # Cleanup deletes rows in this order.
        indexes = [
            models.Index(fields=["keep_until"], name="temporalex_ended_task_keep"),
            models.Index(
                fields=["finished_at"], name="temporalex_ended_task_failed", condition=models.Q(fault__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.task

    @property
    def arguments(self) -> Any:
        """The arguments, decoded: ``[args, kwargs]``. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.call)
