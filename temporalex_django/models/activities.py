"""Activities and background tasks, with what limits them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring.backend import EndedAttempt, OpenActivity
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts, decode_payload, unconstrained_key

# --- activity ---------------------------------------------------------------------------------------------------------
#
# Scheduled activities.


_OPEN_FIELDS = [f.name for f in fields(OpenActivity) if f.name not in ("last_failure", "progress")]


class ActivityTask(models.Model):
    """An activity that is scheduled and has no final result yet. Its result deletes the row.

    A background task (a Django task that was enqueued) belongs to no run. No run waits for it, and its end is kept as
    an ``EndedTask``.

    ``(id, attempt, owner)`` identifies an attempt, where ``owner`` is the epoch of the worker. A report about an
    attempt that the worker no longer owns changes nothing.
    """

    id = models.BigAutoField(primary_key=True)
    chain = unconstrained_key(
        "temporalex_django.Chain", null=True, help_text=_("Empty for a background task, which belongs to no run.")
    )
    run = unconstrained_key(
        "temporalex_django.Instance", related_name="activities", help_text=_("For a background task, its own id.")
    )
    workflow_id = models.CharField(max_length=200)
    workflow = models.CharField(max_length=200)
    seq = models.IntegerField(help_text=_("Number of the command that scheduled it."))
    activity = models.CharField(max_length=300)
    call = models.BinaryField(help_text=_("Arguments: a list of the positional and the keyword arguments."))
    options = models.BinaryField()
    queue = models.TextField()
    # Activities that share a key, a limit or a switch wait in a partition of their queue. Each partition has a claim of
    # its own, so that a blocked partition does not hide the work behind it.
    line = models.TextField(  # noqa: DJ001 - most are in no partition
        null=True,
        help_text=_("The partition of its queue in which it waits: that of its key, or that of its activity."),
    )
    run_queue = models.TextField(help_text=_("Queue of the run, which receives its result as a message."))
    atomic = models.BooleanField(db_default=False)
    attempt = models.IntegerField(db_default=0)
    max_attempts = models.IntegerField(db_default=0, help_text=_("0 means no limit."))
    crashes = models.SmallIntegerField(db_default=0, help_text=_("Number of workers that died while running it."))
    scheduled_at = SafeDateTimeField()
    due_at = SafeDateTimeField()
    # An attempt is counted when a worker claims it and starts when a thread reaches it (see decision 35). So ``owner``
    # can be set while ``started_at`` is empty.
    started_at = SafeDateTimeField(null=True)
    beat_at = SafeDateTimeField(null=True)
    expires_at = SafeDateTimeField(null=True, help_text=_("When the first of its timeouts expires."))
    close_at = SafeDateTimeField(null=True, help_text=_("When schedule_to_close expires."))
    schedule_to_start = models.FloatField(null=True)
    start_to_close = models.FloatField(null=True)
    heartbeat_timeout = models.FloatField(null=True)
    heartbeat = models.BinaryField(null=True)
    headers = SafeJSONField(
        like=dict[str, str], null=True, help_text=_("Headers of its run, with those that interceptors add.")
    )
    tags = SafeJSONField(like=Texts, null=True, help_text=_("Tags of the workflow class, for filters."))
    metadata = SafeJSONField(null=True)
    priority = models.SmallIntegerField(db_default=0, help_text=_("For a background task: a higher number runs first."))
    waits_for = models.TextField(null=True, help_text=_("What was missing on the last worker that deferred it."))  # noqa: DJ001 - NULL: it lacked nothing
    owner = models.BigIntegerField(null=True, help_text=_("Epoch of the worker that claimed it."))
    failure = models.BinaryField(null=True, help_text=_("Why the last attempt failed: type, message, traceback."))
    cause = models.TextField(  # noqa: DJ001 - most never failed
        null=True,
        help_text=_("Why its last attempt failed: the activity, the type of the error and its place in the code."),
    )
    fault = models.TextField(  # noqa: DJ001 - as above
        null=True,
        help_text=_("Groups failing activities: the activity, the type of the error, the file and the function."),
    )
    failed_at = SafeDateTimeField(null=True)
    failed_attempt = models.IntegerField(null=True)
    failing_since = SafeDateTimeField(null=True, help_text=_("When its first attempt failed."))
    cancelled_at = SafeDateTimeField(
        null=True, help_text=_("When somebody asked a background task to end while it was running.")
    )
    progress = models.BinaryField(
        null=True, help_text=_("The last progress that an attempt reported: done, total, text.")
    )
    enqueued_by = unconstrained_key(
        "temporalex_django.Instance",
        null=True,
        related_name="enqueued_tasks",
        help_text=_("For a background task: the run whose activity enqueued it."),
    )

    class Meta:
        db_table = "temporalex_activity_task"
        verbose_name = _("activity")
        verbose_name_plural = _("activities")
        ordering = ["id"]
        default_permissions = ("view",)
        # The indexes are partial, so that each holds only the rows that its statement looks for. Atomic activities are
        # in none of the first two: the turn of their run runs them, and no worker claims them.
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
                # Only background tasks have priorities. The index does not hold 0, so a queue without priorities costs
                # one empty probe.
                name="temporalex_task_priority",
                condition=Q(owner__isnull=True) & (Q(priority__gt=0) | Q(priority__lt=0)),
            ),
            models.Index(fields=["owner"], name="temporalex_task_owner", condition=Q(owner__isnull=False)),
            models.Index(fields=["cause", "workflow"], name="temporalex_task_cause", condition=Q(cause__isnull=False)),
            models.Index(fields=["fault", "workflow"], name="temporalex_task_fault", condition=Q(fault__isnull=False)),
            models.Index(fields=["expires_at"], name="temporalex_task_expires", condition=Q(expires_at__isnull=False)),
            models.Index(fields=["enqueued_by"], name="temporalex_task_source", condition=Q(enqueued_by__isnull=False)),
        ]
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="temporalex_task_command")]

    def __str__(self) -> str:
        return f"{self.activity} #{self.seq}"

    @property
    def arguments(self) -> Any:
        """The arguments, decoded: ``[args, kwargs]``. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.call)

    @property
    def last_failure(self) -> AttemptFailure | None:
        """The failure of the last attempt that failed, or None if no attempt has failed."""
        if self.failed_at is None:
            return None
        failure = decode_payload(self.failure)
        failure_fields: dict[str, Any] = (
            failure if isinstance(failure, dict) and "type" in failure else {"message": repr(failure)}
        )
        return AttemptFailure(
            type=str(failure_fields.get("type", "")),
            message=str(failure_fields.get("message", "")),
            traceback=failure_fields.get("traceback"),
            at=self.failed_at,
            attempt=self.failed_attempt or 0,
            since=self.failing_since,
            details=failure_fields.get("details"),
            retry_later=failure_fields.get("retry_later", False),
        )

    @property
    def as_open(self) -> OpenActivity:
        """The activity in the form in which descriptions of runs show it."""
        shared = {name: getattr(self, name) for name in _OPEN_FIELDS}
        return OpenActivity(**shared, last_failure=self.last_failure, progress=read_progress(self))

    @property
    def heartbeat_details(self) -> Any:
        """The details of the last heartbeat, decoded. Never raises."""
        return decode_payload(self.heartbeat)


def read_progress(row: Any) -> dict[str, Any] | None:
    """Return the last progress of the row of an activity or a task: ``done``, ``total`` and ``text``.

    Returns None if there is none, or one that cannot be read.
    """
    progress = None if row.progress is None else decode_payload(row.progress)
    if not isinstance(progress, dict):
        return None
    done, total, text = (progress.get(name) for name in ("done", "total", "text"))
    is_valid = isinstance(done, int | float) and isinstance(total, int | float) and isinstance(text, str)
    return {"done": done, "total": total, "text": text} if is_valid else None


class FailedAttempt(models.Model):
    """An attempt of an activity that failed, timed out or was lost. The last ones of each activity stay with its run.

    A successful attempt has no row.
    """

    class AttemptEnd(models.TextChoices):
        """The ways in which such an attempt ends."""

        FAILED = "failed", _("Failed")
        TIMED_OUT = "timed_out", _("Timed out")
        LOST = "lost", _("Lost")

    id = models.BigAutoField(primary_key=True)
    run = unconstrained_key("temporalex_django.Instance", related_name="failed_attempts")
    seq = models.IntegerField(help_text=_("Number of the command that scheduled the activity."))
    activity = models.CharField(max_length=300)
    attempt = models.IntegerField()
    outcome = models.CharField(max_length=10, choices=AttemptEnd.choices)
    began_at = SafeDateTimeField(null=True)
    ended_at = SafeDateTimeField()
    worker = models.TextField(null=True)  # noqa: DJ001 - NULL: the row of the worker is gone
    failure = models.BinaryField(help_text=_("Type, message and traceback of the error."))

    class Meta:
        db_table = "temporalex_failed_attempt"
        verbose_name = _("failed attempt")
        verbose_name_plural = _("failed attempts")
        ordering = ["id"]
        default_permissions = ()
        indexes = [models.Index(fields=["run", "seq", "id"], name="temporalex_failed_attempt_run")]

    def __str__(self) -> str:
        return f"{self.activity} #{self.seq}, {self.attempt}"

    @property
    def as_record(self) -> EndedAttempt:
        """The attempt in the form in which descriptions of runs show it. What cannot be read is named."""
        failure = decode_payload(self.failure)
        if not isinstance(failure, dict):
            failure = {"message": repr(failure)}
        return EndedAttempt(
            seq=self.seq,
            activity=self.activity,
            attempt=self.attempt,
            outcome=self.outcome,
            began_at=self.began_at,
            ended_at=self.ended_at,
            worker=self.worker or "",
            type=str(failure.get("type") or ""),
            message=str(failure.get("message") or ""),
            traceback=failure.get("traceback"),
        )


# --- background tasks -------------------------------------------------------------------------------------------------
#
# Background tasks: Django tasks that were enqueued on their own.
#
# An open one is the row of an activity, and an ended one has a row of its own. See decision 44.


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
        permissions = [("operate_tasks", _("Can retry, cancel, run and requeue background tasks"))]

    def __str__(self) -> str:
        # Activities of background tasks are named ``task:<dotted path>``.
        return self.activity.partition(":")[2]


class EndedTask(models.Model):
    """A background task that has ended. The row is kept for the retention of the task's backend.

    It is written in the transaction that deletes the row of the activity, so one of the two always exists.
    """

    class TaskStatus(models.TextChoices):
        """Statuses of ended tasks, with the names that ``django.tasks`` uses.

        Its results have no status for a cancelled task: there it is ``FAILED``.
        """

        SUCCESSFUL = "SUCCESSFUL", _("Successful")
        FAILED = "FAILED", _("Failed")
        CANCELLED = "CANCELLED", _("Cancelled")

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
    progress = models.BinaryField(null=True, help_text=_("The last progress that it reported: done, total, text."))
    enqueued_by = unconstrained_key(
        "temporalex_django.Instance",
        null=True,
        related_name="ended_tasks",
        help_text=_("The run whose activity enqueued it."),
    )

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
            models.Index(
                fields=["enqueued_by"], name="temporalex_ended_task_source", condition=Q(enqueued_by__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.task

    @property
    def arguments(self) -> Any:
        """The arguments, decoded: ``[args, kwargs]``. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.call)


# --- limits and switches ----------------------------------------------------------------------------------------------
#
# The tables of limits and switches, which apply over all workers.


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


# --- once -------------------------------------------------------------------------------------------------------------
#
# The table of work that was done once, with its results.


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
