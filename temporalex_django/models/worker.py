"""Workers: the processes that are alive, and the code that they have."""

from __future__ import annotations

from typing import Any, TypedDict

from django.db import models
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts


class _QueueLoad(TypedDict):
    rate: float
    seconds: float
    share: float


class _Load(TypedDict):
    busy: float
    run_seconds: float | None
    queues: dict[str, _QueueLoad]


class Worker(models.Model):
    """A worker process. Everything that it has claimed has its ``epoch`` as owner.

    A heartbeat updates the row with one statement. A worker that sends no heartbeat, or whose process has ended, is
    declared dead by other workers, which release its work (see decision 23).
    """

    id = models.UUIDField(primary_key=True)
    epoch = models.BigIntegerField(unique=True)
    kind = models.CharField(max_length=20, help_text=_("worker, q2 or local."))
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    process_identity = models.TextField(
        db_default="", help_text=_("Boot id, process namespace, pid and start time, for people to read.")
    )
    queues = SafeJSONField(like=Texts, help_text=_("Queues that it polls for runs and activities."))
    workflows = SafeJSONField(
        like=dict[str, list[int]], help_text=_("Workflow classes that it has: names with their lists of versions.")
    )
    activity_names = SafeJSONField(
        like=Texts, db_default=[], help_text=_("Activities that it has, including steps of graphs.")
    )
    crash_marker = models.TextField(
        db_default="",
        help_text=_("File that names what it is running; its lock shows other processes whether it is alive."),
    )
    session_lock = models.BooleanField(db_default=False, help_text=_("Whether it holds an advisory lock on its epoch."))
    exports_metrics = models.BooleanField(
        db_default=False,
        help_text=_("Whether it exports metrics; the oldest such worker samples those of the database."),
    )
    # For a worker whose crash marker no other process can read, for example in another container (see decision 22).
    trying = SafeJSONField(
        like=list[list[Any]],
        null=True,
        help_text=_("Runs and activities that it announces before their code runs, because one may crash it."),
    )
    buried_at = SafeDateTimeField(
        null=True,
        help_text=_("When it was found dead. The row is kept for a while if it is unknown what it was running."),
    )
    runs = models.IntegerField(db_default=0, help_text=_("Runs in its memory."))
    activities = models.IntegerField(db_default=0, help_text=_("Activities that it is running."))
    turns = models.BigIntegerField(db_default=0, help_text=_("Runs that it has advanced since it started."))
    load = SafeJSONField(
        like=_Load,
        instead={"busy": 0.0, "run_seconds": None, "queues": {}},
        null=True,
        help_text=_("How busy it is, and how long runs and activities take there, by its own measurement."),
    )
    clock_skew = models.FloatField(db_default=0.0, help_text=_("Its clock minus the database's, in seconds."))
    drained_at = SafeDateTimeField(null=True, help_text=_("When it was drained; since then, it has taken no new work."))
    started_at = SafeDateTimeField()
    beat_at = SafeDateTimeField()
    # Pages go by this column. Recovery does not: it measures silence by the judge's own monotonic clock.
    expires_at = SafeDateTimeField(help_text=_("When its lease expires; after that, the worker is late."))

    class Meta:
        db_table = "temporalex_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        ordering = ["-beat_at"]
        default_permissions = ("view",)
        permissions = [
            ("drain_worker", _("Can drain and undrain workers")),
            ("run_due", _("Can run due work in the web process, under DEBUG")),
        ]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class _Held(TypedDict):
    activity: str
    workflow_id: str
    run_id: str


class LostWorker(models.Model):
    """A worker that was declared dead in the last day: what it had claimed, and which process released that.

    The row of a worker itself is deleted when it is declared dead.
    """

    id = models.BigAutoField(primary_key=True)
    epoch = models.BigIntegerField(unique=True)
    name = models.CharField(max_length=300)
    kind = models.CharField(max_length=20)
    queues = SafeJSONField(like=Texts)
    started_at = SafeDateTimeField()
    beat_at = SafeDateTimeField(help_text=_("When it sent its last heartbeat."))
    lost_at = SafeDateTimeField(help_text=_("When it was declared dead."))
    held_count = models.IntegerField(default=0, help_text=_("The number of activities that it had claimed."))
    held_activities = SafeJSONField(like=list[_Held], help_text=_("The first of these activities, with their runs."))
    released_by = models.CharField(max_length=300, help_text=_("The process that released its work to others."))

    class Meta:
        db_table = "temporalex_lost_worker"
        verbose_name = _("lost worker")
        verbose_name_plural = _("lost workers")
        ordering = ["-lost_at"]
        default_permissions = ()
        indexes = [models.Index(fields=["lost_at"], name="temporalex_lost_worker_at")]

    def __str__(self) -> str:
        return self.name
