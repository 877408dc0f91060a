"""Bulk jobs: one operation on many runs, with the outcome for each run."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, unconstrained_key


class BulkJob(models.Model):
    """A bulk job: one operation on many runs.

    Workers process its items one by one. Each item is a transaction of its own that locks the job, so a worker that is
    killed leaves nothing half done and another worker continues. If an item has to replay the code of its run, the
    replay comes before that transaction and holds no lock. ``held_until`` keeps other workers away meanwhile.
    """

    class State(models.TextChoices):
        """States of a bulk job."""

        RUNNING = "running", _("Running")
        STOPPED = "stopped", _("Stopped")
        DONE = "done", _("Done")

    id = models.UUIDField(primary_key=True)
    action = models.CharField(max_length=40)
    given = models.BinaryField(help_text=_("Arguments of the action besides the reason, by name."))
    reason = models.TextField(blank=True)
    state = models.CharField(max_length=20, choices=State.choices, default=State.RUNNING)
    # NULL, not an empty text: unique constraints ignore NULL, so jobs without a token do not collide.
    token = models.CharField(  # noqa: DJ001 - many jobs without one
        max_length=300,
        null=True,
        unique=True,
        help_text=_("Digest of the user and their token: a repeated request gets the same job."),
    )
    asked = models.CharField(max_length=64, blank=True, help_text=_("Digest of the request, if it has a token."))
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False
    )
    actor_name = models.CharField(max_length=200, blank=True, help_text=_("The name of the user at that time."))
    by_code = models.BooleanField(
        default=False, help_text=_("It was not started by a person but by code, which has every permission.")
    )
    source = models.CharField(max_length=40)
    address = models.GenericIPAddressField(null=True)
    request_id = models.CharField(max_length=64, blank=True, default="", help_text=_("Id of the HTTP request."))
    program = models.BooleanField(default=False, help_text=_("A program started it on behalf of a person."))
    total = models.IntegerField()
    done = models.IntegerField(default=0)
    failed = models.IntegerField(default=0)
    already_done = models.IntegerField(
        default=0, help_text=_("How many of the failed ones were in the wanted state before the job came to them.")
    )
    created_at = SafeDateTimeField()
    finished_at = SafeDateTimeField(null=True)
    held_until = SafeDateTimeField(
        null=True,
        help_text=_("Until then, a worker is replaying the code of a run, and no other worker continues the job."),
    )

    class Meta:
        db_table = "temporalex_bulk_job"
        verbose_name = _("bulk job")
        verbose_name_plural = _("bulk jobs")
        ordering = ["-id"]
        default_permissions = ()
        indexes = [
            # Every worker looks for running jobs now and then. The index stays small, since finished jobs leave it.
            models.Index(fields=["id"], name="temporalex_bulk_running", condition=models.Q(state="running")),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.id}"

    @property
    def left(self) -> int:
        """The number of runs that are still to be processed."""
        return self.total - self.done - self.failed

    @property
    def not_possible(self) -> int:
        """The number of runs for which the operation was refused, without those for which it was done already."""
        return self.failed - self.already_done


class BulkItem(models.Model):
    """One run of a bulk job.

    ``outcome`` is empty until the run has been processed. ``code`` and ``message`` give the reason of a failure.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(BulkJob, on_delete=models.CASCADE, related_name="items")
    run = unconstrained_key("temporalex_django.Instance")
    part = models.IntegerField(
        null=True, help_text=_("Number of the activity or timer of the run, if the action applies to one.")
    )
    tries = models.SmallIntegerField(default=0, help_text=_("How many times its run was busy."))
    # Counted before the replay starts and taken back after it, so that the death of a worker in between stays counted.
    crashes = models.SmallIntegerField(
        default=0, help_text=_("How many workers started to replay the code of its run and did not finish.")
    )
    outcome = models.CharField(max_length=20, blank=True, help_text=_("done or failed."))
    code = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)
    already_done = models.BooleanField(
        default=False, help_text=_("It failed because the run was in the wanted state already.")
    )

    class Meta:
        db_table = "temporalex_bulk_item"
        verbose_name = _("run of a bulk job")
        verbose_name_plural = _("runs of bulk jobs")
        ordering = ["id"]
        default_permissions = ()
        indexes = [
            # Items whose run was busy have more tries, so they come after the others.
            models.Index(fields=["job", "tries", "id"], name="temporalex_bulk_left", condition=models.Q(outcome="")),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.outcome}"
