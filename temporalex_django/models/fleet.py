"""Operation: workers, bulk jobs, the audit log and alerts."""

from __future__ import annotations

from typing import Any, TypedDict

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts, unconstrained_key

# --- bulk -------------------------------------------------------------------------------------------------------------
#
# Bulk jobs: one operation on many runs, with the outcome for each run.


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


# --- audit ------------------------------------------------------------------------------------------------------------
#
# Audit of the operations that people and programs perform.


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


# --- alerts -----------------------------------------------------------------------------------------------------------
#
# Problems that alerts report, and leases for work that one process at a time does.


class Alert(models.Model):
    """A problem of the project that alerts report to one channel, such as the blocked runs of one class."""

    cause = models.CharField(max_length=500, help_text=_("The code of the finding, and its subject."))
    channel = models.CharField(max_length=500, help_text=_("An address of mail, or the path of a function."))
    since = SafeDateTimeField(help_text=_("When it was first seen."))
    seen_at = SafeDateTimeField(help_text=_("When it was last seen."))
    count = models.IntegerField(default=1, help_text=_("The number of runs, messages or slots that have it."))
    sent_at = SafeDateTimeField(null=True, help_text=_("When it was last reported to people."))
    sent_count = models.IntegerField(default=0, help_text=_("The number that was reported then."))

    class Meta:
        db_table = "temporalex_alert"
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ["cause", "channel"]
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["cause", "channel"], name="temporalex_alert_per_channel"),
        ]

    def __str__(self) -> str:
        return self.cause


class Lease(models.Model):
    """A lease on work that one process at a time does for all, such as sending alerts."""

    name = models.CharField(max_length=100, primary_key=True)
    until = SafeDateTimeField(help_text=_("When another process may take it."))
    notes = SafeJSONField(default=dict, help_text=_("What its holder leaves for the next one."))

    class Meta:
        db_table = "temporalex_lease"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        ordering = ["name"]
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


# --- deploy -----------------------------------------------------------------------------------------------------------
#
# Releases whose code was compared with the open runs.


class _ClassCheck(TypedDict):
    workflow: str
    version: int
    open: int
    replayed: int


class _MismatchRecord(TypedDict):
    kind: str
    name: str
    count: int
    place: str
    reason: str


class DeployCheck(models.Model):
    """The result of a comparison of a release with the open runs, by ``temporalex doctor --deploy --record``.

    Only the last releases are kept. The rows have no payloads.
    """

    id = models.BigAutoField(primary_key=True)
    release = models.CharField(max_length=100, unique=True)
    at = SafeDateTimeField(help_text=_("When it was compared."))
    fits = models.BooleanField(help_text=_("Whether the release has all that the open runs need."))
    classes = SafeJSONField(
        like=list[_ClassCheck], help_text=_("Classes of open runs, with the runs replayed of each.")
    )
    mismatches = SafeJSONField(
        like=list[_MismatchRecord], help_text=_("What the code of the release lacks or changes.")
    )

    class Meta:
        db_table = "temporalex_deploy_check"
        verbose_name = _("deploy check")
        verbose_name_plural = _("deploy checks")
        ordering = ["-at", "-id"]
        default_permissions = ()

    def __str__(self) -> str:
        return self.release


# --- worker -----------------------------------------------------------------------------------------------------------
#
# Workers: the processes that are alive, and the code that they have.


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
