"""Schedules, and their slots with the outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts, unconstrained_key


class _Backfill(TypedDict):
    after: datetime
    until: datetime
    next_at: datetime


class Schedule(models.Model):
    """A schedule: it starts runs of a workflow class, or enqueues a task, at the times that its specs say.

    A spec is a cron expression, an interval, a calendar rule or a one-off time. Each of the times is a slot. A worker
    that fires the schedule locks the row, so a slot has one outcome. ``next_at`` is the only column that idle schedules
    are looked up by.
    """

    class Owner(models.TextChoices):
        """The owners of schedules."""

        CODE = "code", _("Code")
        PEOPLE = "people", _("People")

    class OverlapPolicy(models.TextChoices):
        """Policies for a slot while a run of an earlier slot is open."""

        SKIP = "skip", _("Skip the slot")
        BUFFER_ONE = "buffer_one", _("Let one slot wait")
        BUFFER_ALL = "buffer_all", _("Let all slots wait")
        CANCEL_OTHER = "cancel_other", _("Cancel the open run, then start")
        TERMINATE_OTHER = "terminate_other", _("Terminate the open run, then start")
        ALLOW_ALL = "allow_all", _("Start alongside the open runs")

    name = models.CharField(max_length=100, unique=True)
    workflow = models.CharField(max_length=200, blank=True, help_text=_("The class of its runs, unless it has a task."))
    task = models.CharField(max_length=300, blank=True, help_text=_("The dotted path of the task that it enqueues."))
    owner = models.CharField(max_length=10, choices=Owner.choices)
    module = models.CharField(max_length=300, blank=True, help_text=_("The module whose code declares it."))

    specs = SafeJSONField(like=list[dict[str, Any]], help_text=_("When it fires: see the page about schedules."))
    tz = models.CharField(max_length=100, default="UTC", help_text=_("The time zone of the wall-clock times."))
    dst_gap = models.CharField(max_length=10, default="shift")
    dst_fold = models.CharField(max_length=10, default="first")
    start = SafeDateTimeField(null=True, blank=True, help_text=_("No slot comes before this time."))
    end = SafeDateTimeField(null=True, blank=True, help_text=_("No slot comes after this time."))

    args = models.BinaryField(null=True, help_text=_("The input of its runs."))
    arguments_function = models.CharField(
        max_length=300,
        blank=True,
        help_text=_("The registered function that makes the input from the time of the slot."),
    )
    workflow_id = models.CharField(max_length=200)
    overlap = models.CharField(max_length=20, choices=OverlapPolicy.choices, default=OverlapPolicy.SKIP)
    catch_up = models.DurationField(help_text=_("A slot that is older than this is no longer started."))
    jitter = models.DurationField(
        null=True, blank=True, help_text=_("Each slot fires at its own time within this period.")
    )
    max_fires = models.IntegerField(null=True, blank=True, help_text=_("The schedule ends after this number of slots."))
    pause_after = models.IntegerField(
        null=True, blank=True, help_text=_("The schedule pauses itself after this number of failures in a row.")
    )

    # -- the position ------------------------------------------------------------------------------------------------
    position = SafeDateTimeField(help_text=_("All slots up to this time have an outcome."))
    last_walls = SafeJSONField(
        default=dict, help_text=_("The wall-clock time of the last slot of each spec, so that no slot comes twice.")
    )
    fires = models.IntegerField(default=0)
    failures = models.IntegerField(default=0, help_text=_("Failures in a row."))
    waiting = models.IntegerField(default=0, help_text=_("Slots that are waiting for an earlier run to close."))
    next_at = SafeDateTimeField(null=True, help_text=_("When a worker next has to check it."))
    backfill = SafeJSONField(like=_Backfill, null=True)
    error = models.TextField(blank=True, help_text=_("Why its slots cannot be computed; workers try again."))

    # -- pauses ------------------------------------------------------------------------------------------------------
    paused_at = SafeDateTimeField(null=True)
    pause_reason = models.TextField(blank=True)
    paused_by = models.CharField(max_length=200, blank=True, help_text=_("The name of the user at that time."))
    paused_by_failures = models.BooleanField(default=False)
    gone_since = SafeDateTimeField(null=True, help_text=_("When the code stopped declaring it."))

    # The starter of its runs. Runs of a schedule that code owns have none.
    editor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", db_constraint=False
    )
    editor_name = models.CharField(max_length=200, blank=True, help_text=_("The name of the user at that time."))
    editors = SafeJSONField(
        like=Texts,
        default=list,
        help_text=_("The keys of all users who edited its times or its input, for the four-eyes rule."),
    )
    created_at = SafeDateTimeField()
    changed_at = SafeDateTimeField()

    class Meta:
        db_table = "temporalex_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ["name"]
        default_permissions = ("view",)
        permissions = [("manage_schedule", _("Can create, change, pause, trigger, backfill and delete schedules"))]
        indexes = [
            models.Index(fields=["next_at"], name="temporalex_schedule_due", condition=Q(next_at__isnull=False)),
            models.Index(fields=["id"], name="temporalex_schedule_waiting", condition=Q(waiting__gt=0)),
        ]

    def __str__(self) -> str:
        return self.name


class ScheduleSlot(models.Model):
    """A slot, which is a time at which a schedule fires, and its outcome: a run that was started, or why there is none.

    One row can stand for several slots that have the same outcome; ``count`` is their number.
    """

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="slots")
    at = SafeDateTimeField(help_text=_("The time of the slot."))
    cause = models.CharField(max_length=10)
    outcome = models.CharField(max_length=10)
    reason = models.CharField(max_length=10, blank=True)
    decided_at = SafeDateTimeField()
    workflow_id = models.CharField(max_length=200, blank=True)
    run = unconstrained_key("temporalex_django.Instance", null=True, help_text=_("For a task, the id of the task."))
    chain = unconstrained_key("temporalex_django.Chain", null=True)
    running = models.BooleanField(default=False, help_text=_("Its run is not known to have closed."))
    error_code = models.CharField(max_length=40, blank=True)
    error = models.TextField(blank=True)
    until = SafeDateTimeField(null=True, help_text=_("The time of the last slot, if this row stands for several."))
    count = models.IntegerField(default=1)
    actor = models.CharField(max_length=200, blank=True, help_text=_("Who triggered or backfilled it."))
    actor_key = models.CharField(max_length=200, blank=True, help_text=_("The key of that user."))

    class Meta:
        db_table = "temporalex_schedule_slot"
        verbose_name = _("slot of a schedule")
        verbose_name_plural = _("slots of schedules")
        ordering = ["-at"]
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["schedule", "at"], name="temporalex_schedule_slot_once")]
        indexes = [
            models.Index(fields=["schedule", "at"], name="temporalex_slot_running", condition=Q(running=True)),
            models.Index(fields=["schedule", "at"], name="temporalex_slot_waiting", condition=Q(outcome="waiting")),
            models.Index(fields=["decided_at"], name="temporalex_slot_decided"),  # for the cleanup
            # The page of a run names the schedule that started it.
            models.Index(fields=["chain"], name="temporalex_slot_chain", condition=Q(chain__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.at:%Y-%m-%d %H:%M} {self.outcome}"
