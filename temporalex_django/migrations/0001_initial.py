from __future__ import annotations

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from temporalex_django.db.storage_parameters import tune_hot_tables


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("contenttypes", "0002_remove_content_type_name"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ActivityTask",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("workflow_id", models.CharField(max_length=200)),
                ("workflow", models.CharField(max_length=200)),
                ("seq", models.IntegerField(help_text="Number of the command that scheduled it.")),
                ("activity", models.CharField(max_length=300)),
                (
                    "call",
                    models.BinaryField(help_text="Arguments: a list of the positional and the keyword arguments."),
                ),
                ("options", models.BinaryField()),
                ("queue", models.TextField()),
                (
                    "line",
                    models.TextField(
                        help_text="The partition of its queue in which it waits: that of its key, or that of its activity.",
                        null=True,
                    ),
                ),
                ("run_queue", models.TextField(help_text="Queue of the run, which receives its result as a message.")),
                ("atomic", models.BooleanField(db_default=False)),
                ("attempt", models.IntegerField(db_default=0)),
                ("max_attempts", models.IntegerField(db_default=0, help_text="0 means no limit.")),
                ("crashes", models.SmallIntegerField(db_default=0, help_text="Workers that died while they ran it.")),
                ("scheduled_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("beat_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(help_text="When the first of its timeouts expires.", null=True)),
                ("close_at", models.DateTimeField(help_text="When schedule_to_close expires.", null=True)),
                ("schedule_to_start", models.FloatField(null=True)),
                ("start_to_close", models.FloatField(null=True)),
                ("heartbeat_timeout", models.FloatField(null=True)),
                ("heartbeat", models.BinaryField(null=True)),
                (
                    "headers",
                    models.JSONField(help_text="Headers of its run, with those that interceptors add.", null=True),
                ),
                ("tags", models.JSONField(help_text="Tags of the workflow class, for filters.", null=True)),
                ("metadata", models.JSONField(null=True)),
                (
                    "priority",
                    models.SmallIntegerField(
                        db_default=0, help_text="For a background task: a higher number runs first."
                    ),
                ),
                (
                    "waits_for",
                    models.TextField(help_text="What was missing on the last worker that deferred it.", null=True),
                ),
                ("owner", models.BigIntegerField(help_text="Epoch of the worker that claimed it.", null=True)),
                (
                    "failure",
                    models.BinaryField(help_text="Why the last attempt failed: type, message, traceback.", null=True),
                ),
                (
                    "cause",
                    models.TextField(
                        help_text="Groups failing activities: the activity, the type of the error and its place in the code.",
                        null=True,
                    ),
                ),
                ("failed_at", models.DateTimeField(null=True)),
                ("failed_attempt", models.IntegerField(null=True)),
                ("failing_since", models.DateTimeField(help_text="When its first attempt failed.", null=True)),
            ],
            options={
                "verbose_name": "activity",
                "verbose_name_plural": "activities",
                "db_table": "temporalex_activity_task",
                "ordering": ["id"],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "cause",
                    models.CharField(
                        help_text="The code of the finding, and its subject.",
                        max_length=500,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("since", models.DateTimeField(help_text="When it was first seen.")),
                ("seen_at", models.DateTimeField(help_text="When it was last seen.")),
                (
                    "count",
                    models.IntegerField(default=1, help_text="The number of runs, messages or slots that have it."),
                ),
                ("sent_at", models.DateTimeField(help_text="When it was last reported to people.", null=True)),
                ("sent_count", models.IntegerField(default=0, help_text="The number that was reported then.")),
            ],
            options={
                "verbose_name": "alert",
                "verbose_name_plural": "alerts",
                "db_table": "temporalex_alert",
                "ordering": ["cause"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Chain",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("queue", models.TextField(help_text="The workers that poll this queue may advance it.")),
                (
                    "due_at",
                    models.DateTimeField(
                        help_text="It is not advanced before this time. If empty, it waits for a message.", null=True
                    ),
                ),
                ("deadline", models.DateTimeField(help_text="When the run times out.", null=True)),
                ("head_token", models.BigIntegerField(help_text="Token of the last activation that wrote.", null=True)),
                ("length", models.IntegerField(db_default=0, help_text="Events in the history of the current run.")),
                ("activations", models.IntegerField(db_default=0)),
                (
                    "activated_at",
                    models.DateTimeField(
                        help_text="When the last activation ran. This time never goes back.", null=True
                    ),
                ),
                (
                    "failed_tries",
                    models.IntegerField(
                        db_default=0, help_text="Consecutive failed attempts of the current activation."
                    ),
                ),
                (
                    "crashes",
                    models.SmallIntegerField(
                        db_default=0, help_text="Number of consecutive processes that died while they ran its code."
                    ),
                ),
                ("atomic_due", models.DateTimeField(help_text="When its next atomic activity is due.", null=True)),
                ("closed", models.BooleanField(db_default=False)),
                ("paused", models.BooleanField(db_default=False)),
                (
                    "awaits_message",
                    models.BooleanField(
                        db_default=False, help_text="The open run may wait for a message or a decision."
                    ),
                ),
                ("awaits_timer", models.BooleanField(db_default=False, help_text="The open run may wait for a timer.")),
                (
                    "awaits_child",
                    models.BooleanField(db_default=False, help_text="The open run may wait for another run."),
                ),
                (
                    "open_key",
                    models.TextField(help_text="Keeps the id unique among open runs; empty when closed.", null=True),
                ),
            ],
            options={
                "verbose_name": "chain",
                "verbose_name_plural": "chains",
                "db_table": "temporalex_chain",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(
                        help_text="Digest of the user and of the key that they sent.", max_length=64, unique=True
                    ),
                ),
                ("request", models.CharField(help_text="Digest of the request.", max_length=64)),
                ("made", models.UUIDField(help_text="The run or bulk job that the answer shows.", null=True)),
                ("new", models.BooleanField(default=False, help_text="The request created it.")),
                ("at", models.DateTimeField(db_index=True)),
            ],
            options={
                "verbose_name": "stored answer",
                "verbose_name_plural": "stored answers",
                "db_table": "temporalex_kept_answer",
                "ordering": ["-at"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("name", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("until", models.DateTimeField(help_text="When another process may take it.")),
            ],
            options={
                "verbose_name": "lease",
                "verbose_name_plural": "leases",
                "db_table": "temporalex_lease",
                "ordering": ["name"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "name",
                    models.TextField(help_text="queue:<name> or activity:<name>.", primary_key=True, serialize=False),
                ),
                (
                    "starts",
                    models.JSONField(
                        default=list, help_text="For a rate: when each slice of its period began, and its count."
                    ),
                ),
            ],
            options={
                "verbose_name": "limit",
                "verbose_name_plural": "limits",
                "db_table": "temporalex_limit",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("epoch", models.BigIntegerField(unique=True)),
                ("kind", models.CharField(help_text="worker, q2 or local.", max_length=20)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                (
                    "process_identity",
                    models.TextField(
                        db_default="", help_text="Boot id, process namespace, pid and start time, for people to read."
                    ),
                ),
                ("queues", models.JSONField(help_text="Queues that it polls for runs and activities.")),
                (
                    "workflows",
                    models.JSONField(help_text="Workflow classes that it has: names with their lists of versions."),
                ),
                (
                    "activity_names",
                    models.JSONField(db_default=[], help_text="Activities that it has, including steps of graphs."),
                ),
                (
                    "crash_marker",
                    models.TextField(
                        db_default="",
                        help_text="File that names what it is running; its lock shows other processes whether it is alive.",
                    ),
                ),
                (
                    "session_lock",
                    models.BooleanField(db_default=False, help_text="Whether it holds an advisory lock on its epoch."),
                ),
                (
                    "exports_metrics",
                    models.BooleanField(
                        db_default=False,
                        help_text="Whether it exports metrics; the oldest such worker samples those of the database.",
                    ),
                ),
                (
                    "trying",
                    models.JSONField(
                        help_text="Runs and activities that it announces before their code runs, because one may crash it.",
                        null=True,
                    ),
                ),
                (
                    "buried_at",
                    models.DateTimeField(
                        help_text="When it was found dead. The row is kept for a while if it is unknown what it was running.",
                        null=True,
                    ),
                ),
                ("runs", models.IntegerField(db_default=0, help_text="Runs in its memory.")),
                ("activities", models.IntegerField(db_default=0, help_text="Activities that it is running.")),
                (
                    "turns",
                    models.BigIntegerField(db_default=0, help_text="Runs that it has advanced since it started."),
                ),
                (
                    "load",
                    models.JSONField(
                        help_text="How busy it is, and how long runs and activities take there, by its own measurement.",
                        null=True,
                    ),
                ),
                (
                    "clock_skew",
                    models.FloatField(db_default=0.0, help_text="Its clock minus the database's, in seconds."),
                ),
                (
                    "drained_at",
                    models.DateTimeField(help_text="When it was drained: since then it takes no new work.", null=True),
                ),
                ("started_at", models.DateTimeField()),
                ("beat_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(help_text="When its lease expires: after that it is late.")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "temporalex_worker",
                "ordering": ["-beat_at"],
                "permissions": [
                    ("drain_worker", "Can drain and undrain workers"),
                    ("run_due", "Can run due work in the web process, under DEBUG"),
                ],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="EnqueuedTask",
            fields=[],
            options={
                "verbose_name": "enqueued task",
                "verbose_name_plural": "enqueued tasks",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("temporalex_django.activitytask",),
        ),
        migrations.CreateModel(
            name="BulkJob",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("action", models.CharField(max_length=40)),
                ("given", models.BinaryField(help_text="Arguments of the action besides the reason, by name.")),
                ("reason", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("running", "Running"), ("stopped", "Stopped"), ("done", "Done")],
                        default="running",
                        max_length=20,
                    ),
                ),
                (
                    "token",
                    models.CharField(
                        help_text="Digest of the user and their token: a repeated request gets the same job.",
                        max_length=300,
                        null=True,
                        unique=True,
                    ),
                ),
                (
                    "asked",
                    models.CharField(blank=True, help_text="Digest of the request, if it has a token.", max_length=64),
                ),
                (
                    "actor_name",
                    models.CharField(blank=True, help_text="The name of the user at that time.", max_length=200),
                ),
                (
                    "by_code",
                    models.BooleanField(
                        default=False,
                        help_text="It was not started by a person but by code, which has every permission.",
                    ),
                ),
                ("source", models.CharField(max_length=40)),
                ("address", models.GenericIPAddressField(null=True)),
                (
                    "request_id",
                    models.CharField(blank=True, default="", help_text="Id of the HTTP request.", max_length=64),
                ),
                (
                    "program",
                    models.BooleanField(default=False, help_text="A program started it on behalf of a person."),
                ),
                ("total", models.IntegerField()),
                ("done", models.IntegerField(default=0)),
                ("failed", models.IntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "held_until",
                    models.DateTimeField(
                        help_text="Until then, a worker is replaying the code of a run, and no other worker continues the job.",
                        null=True,
                    ),
                ),
                (
                    "actor",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "bulk job",
                "verbose_name_plural": "bulk jobs",
                "db_table": "temporalex_bulk_job",
                "ordering": ["-id"],
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="activitytask",
            name="chain",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="Empty for a background task, which belongs to no run.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="temporalex_django.chain",
            ),
        ),
        migrations.CreateModel(
            name="EndedTask",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("task", models.CharField(help_text="Dotted path of the function.", max_length=300)),
                ("backend", models.CharField(max_length=200)),
                ("queue", models.TextField()),
                ("priority", models.SmallIntegerField()),
                (
                    "status",
                    models.CharField(choices=[("SUCCESSFUL", "Successful"), ("FAILED", "Failed")], max_length=10),
                ),
                (
                    "call",
                    models.BinaryField(help_text="Arguments: a list of the positional and the keyword arguments."),
                ),
                ("options", models.BinaryField(help_text="The options for running it, and its attempts.")),
                ("outcome", models.BinaryField(help_text="Its result, or why it failed.")),
                ("attempts", models.IntegerField()),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(help_text="When its first attempt began.", null=True)),
                ("finished_at", models.DateTimeField()),
                ("keep_until", models.DateTimeField(help_text="Empty if it is kept forever.", null=True)),
            ],
            options={
                "verbose_name": "ended task",
                "verbose_name_plural": "ended tasks",
                "db_table": "temporalex_ended_task",
                "ordering": ["-id"],
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["keep_until"], name="temporalex_ended_task_keep")],
            },
        ),
        migrations.CreateModel(
            name="HumanTask",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("workflow", models.CharField(max_length=200)),
                ("workflow_id", models.CharField(max_length=200)),
                (
                    "key",
                    models.CharField(
                        help_text="Its name in the run: the number of the call, or the key of the step.", max_length=220
                    ),
                ),
                ("title", models.CharField(help_text="The question, in one line.", max_length=200)),
                ("outcomes", models.JSONField(help_text="The outcomes to choose from.")),
                (
                    "asked",
                    models.JSONField(
                        help_text="Candidates: user:<username>, group:<name>, perm:<app.codename>; those of an escalation come last."
                    ),
                ),
                ("declared", models.JSONField(help_text="The candidates that the code names, before any escalation.")),
                ("form", models.JSONField(help_text="The form of its data: kind, name, schema, digest.", null=True)),
                ("shows", models.BinaryField(help_text="What people decide about, as the codec stores it.", null=True)),
                (
                    "four_eyes",
                    models.CharField(
                        blank=True,
                        choices=[("chain", "The chain"), ("run", "The run")],
                        default="",
                        help_text="Scope in which a different person must decide: the chain, or this run.",
                        max_length=10,
                    ),
                ),
                (
                    "requested_by_key",
                    models.CharField(blank=True, default="", help_text="Who started the run.", max_length=200),
                ),
                ("requested_by_name", models.CharField(blank=True, default="", max_length=200)),
                ("opened_at", models.DateTimeField()),
                ("due_at", models.DateTimeField(null=True)),
                ("reminders", models.IntegerField(default=0)),
                ("reminded_at", models.DateTimeField(null=True)),
                ("escalated_at", models.DateTimeField(null=True)),
                ("claimed_by_key", models.CharField(blank=True, default="", max_length=200)),
                ("claimed_by_name", models.CharField(blank=True, default="", max_length=200)),
                ("claimed_until", models.DateTimeField(null=True)),
                (
                    "delegated",
                    models.JSONField(
                        default=list, help_text="Its delegations, each with the keys “to”, “by”, “at” and “reason”."
                    ),
                ),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "ending",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("decided", "Decided"),
                            ("overdue", "Overdue"),
                            ("cancelled", "Cancelled"),
                            ("run_closed", "The run ended"),
                        ],
                        default="",
                        max_length=20,
                    ),
                ),
                ("outcome", models.CharField(blank=True, default="", help_text="What was decided.", max_length=200)),
                ("decided_by_key", models.CharField(blank=True, default="", max_length=200)),
                ("decided_by_name", models.CharField(blank=True, default="", max_length=200)),
                (
                    "decided_for",
                    models.CharField(
                        blank=True, default="", help_text="Name of the person for whom they stood in.", max_length=200
                    ),
                ),
                ("comment", models.TextField(blank=True, default="")),
                (
                    "chain",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.chain",
                    ),
                ),
            ],
            options={
                "verbose_name": "human task",
                "verbose_name_plural": "human tasks",
                "db_table": "temporalex_human_task",
                "ordering": ["opened_at", "id"],
                "permissions": [
                    ("delegate_humantask", "Can delegate human tasks to others"),
                    ("release_humantask", "Can release human tasks that others have claimed"),
                ],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Candidate",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("who", models.CharField(max_length=255)),
                ("barred", models.BooleanField(default=False)),
                (
                    "task",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="candidates",
                        to="temporalex_django.humantask",
                    ),
                ),
            ],
            options={
                "verbose_name": "candidate",
                "verbose_name_plural": "candidates",
                "db_table": "temporalex_candidate",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Instance",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("workflow_id", models.CharField(help_text="The business id.", max_length=200, verbose_name="id")),
                ("workflow", models.CharField(max_length=200)),
                ("version", models.IntegerField(db_default=1)),
                ("queue", models.TextField(db_default="default")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("running", "Running"),
                            ("waiting", "Waiting"),
                            ("completed", "Completed"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("terminated", "Terminated"),
                            ("timed_out", "Timed out"),
                            ("continued_as_new", "Continued as new"),
                        ],
                        db_default="pending",
                        max_length=20,
                    ),
                ),
                (
                    "blocked",
                    models.JSONField(help_text="Why it cannot continue: code, error, since, attempt.", null=True),
                ),
                ("paused", models.JSONField(help_text="Who paused it, when and why: since, reason, by.", null=True)),
                ("waiting_for", models.JSONField(null=True)),
                (
                    "waits",
                    models.JSONField(help_text="What it waits for, without activities, for programs.", null=True),
                ),
                ("accepts", models.JSONField(help_text="Messages that the open phase accepts.", null=True)),
                ("args", models.BinaryField()),
                ("seed", models.BigIntegerField()),
                (
                    "carried_messages",
                    models.BinaryField(
                        help_text="Signals and a cancel request that the previous run passed to this one.", null=True
                    ),
                ),
                (
                    "snapshot",
                    models.BinaryField(
                        help_text="The point at which a graph continues after a move from another version.", null=True
                    ),
                ),
                ("published", models.BinaryField(null=True)),
                (
                    "stored",
                    models.JSONField(
                        help_text="Fields of the published state that its class stores for SQL.", null=True
                    ),
                ),
                ("closing", models.BinaryField(help_text="Attributes of the event that closed the run.", null=True)),
                (
                    "cause",
                    models.TextField(
                        help_text="Groups failed and blocked runs: the type of the error and its place in the code.",
                        null=True,
                    ),
                ),
                ("attempt", models.IntegerField(db_default=1)),
                ("parent", models.CharField(max_length=200, null=True)),
                ("parent_seq", models.IntegerField(null=True)),
                ("expires_at", models.DateTimeField(help_text="When the whole chain times out.", null=True)),
                ("starts_at", models.DateTimeField(help_text="When it begins, if its start named a time.", null=True)),
                (
                    "start_before",
                    models.DateTimeField(help_text="It times out if it has not begun by then.", null=True),
                ),
                (
                    "start_limit",
                    models.JSONField(help_text="Its throttle (count, seconds), or that it is debounced.", null=True),
                ),
                (
                    "run_timeout",
                    models.FloatField(help_text="Timeout of each run of the chain, in seconds.", null=True),
                ),
                ("parent_close", models.CharField(max_length=20, null=True)),
                ("headers", models.JSONField(help_text="Headers of its start; empty without any.", null=True)),
                (
                    "scheduled_for",
                    models.DateTimeField(
                        help_text="The time of the slot for which a schedule started the chain.", null=True
                    ),
                ),
                ("subject_id", models.CharField(max_length=200, null=True)),
                ("tags", models.JSONField(null=True)),
                ("metadata", models.JSONField(null=True)),
                ("search_attributes", models.JSONField(null=True)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "ended",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Case(
                            models.When(
                                status__in=["cancelled", "continued_as_new", "failed", "terminated", "timed_out"],
                                then=models.F("status"),
                            )
                        ),
                        help_text="Its status, once it has ended without a result. Turns do not change it, so it can have an index.",
                        output_field=models.CharField(max_length=20, null=True),
                    ),
                ),
                (
                    "chain",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="runs",
                        to="temporalex_django.chain",
                    ),
                ),
                (
                    "parent_chain",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.chain",
                    ),
                ),
                (
                    "parent_run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.instance",
                    ),
                ),
                (
                    "subject_type",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="contenttypes.contenttype",
                    ),
                ),
            ],
            options={
                "verbose_name": "run",
                "verbose_name_plural": "runs",
                "db_table": "temporalex_instance",
                "ordering": ["-id"],
                "permissions": [
                    ("view_payload", "Can see the arguments, results and messages of runs"),
                    ("start_instance", "Can start runs"),
                    ("signal_instance", "Can send signals to runs"),
                    ("update_instance", "Can send updates to runs"),
                    ("query_instance", "Can query runs"),
                    ("cancel_instance", "Can cancel runs"),
                    ("terminate_instance", "Can terminate runs"),
                    ("reset_instance", "Can reset and fork runs"),
                    ("bulk_actions", "Can start bulk jobs"),
                    ("pause_instance", "Can pause and unpause runs, and retry blocked ones"),
                    ("redeliver_message", "Can redeliver and discard failed messages"),
                    ("retry_activity", "Can retry activities, and skip timers"),
                    ("edit_activity_input", "Can change the input of activities"),
                    ("complete_activity", "Can complete activities by hand"),
                    ("fail_activity", "Can fail activities by hand"),
                ],
                "default_permissions": ("view", "delete"),
            },
        ),
        migrations.AddField(
            model_name="humantask",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="human_tasks",
                to="temporalex_django.instance",
            ),
        ),
        migrations.CreateModel(
            name="HistoryEvent",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "run_id", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("seq", models.IntegerField()),
                ("activation", models.IntegerField()),
                ("kind", models.CharField(max_length=40)),
                ("at", models.DateTimeField()),
                ("attributes", models.BinaryField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="events",
                        to="temporalex_django.instance",
                    ),
                ),
            ],
            options={
                "verbose_name": "history event",
                "verbose_name_plural": "history events",
                "db_table": "temporalex_history_event",
                "ordering": ["run_id", "seq"],
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="chain",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The current run.",
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="current_of",
                to="temporalex_django.instance",
            ),
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "part",
                    models.IntegerField(
                        help_text="Number of the activity or timer of the run, if the action applies to one.", null=True
                    ),
                ),
                ("tries", models.SmallIntegerField(default=0, help_text="How many times its run was busy.")),
                (
                    "crashes",
                    models.SmallIntegerField(
                        default=0,
                        help_text="How many workers started to replay the code of its run and did not finish.",
                    ),
                ),
                ("outcome", models.CharField(blank=True, help_text="done or failed.", max_length=20)),
                ("code", models.CharField(blank=True, max_length=40)),
                ("message", models.TextField(blank=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="temporalex_django.bulkjob",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.instance",
                    ),
                ),
            ],
            options={
                "verbose_name": "run of a bulk job",
                "verbose_name_plural": "runs of bulk jobs",
                "db_table": "temporalex_bulk_item",
                "ordering": ["id"],
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="activitytask",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="For a background task, its own id.",
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="activities",
                to="temporalex_django.instance",
            ),
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.TextField()),
                ("kind", models.CharField(max_length=20)),
                ("name", models.CharField(max_length=200)),
                ("body", models.BinaryField()),
                ("request_id", models.CharField(max_length=200, null=True)),
                (
                    "after",
                    models.IntegerField(
                        help_text="Number of signals received before this update began to wait.", null=True
                    ),
                ),
                ("fresh", models.BooleanField(db_default=True)),
                ("settled", models.BooleanField(db_default=False)),
                (
                    "redelivered",
                    models.BooleanField(
                        db_default=False, help_text="A reset or fork delivers it again: it waits until code accepts it."
                    ),
                ),
                (
                    "sender_key",
                    models.CharField(help_text="Key of the user who sent it, as text.", max_length=200, null=True),
                ),
                (
                    "sender_name",
                    models.CharField(help_text="The name of the user at that time.", max_length=200, null=True),
                ),
                ("headers", models.JSONField(null=True)),
                ("outcome_status", models.CharField(max_length=20, null=True)),
                ("outcome", models.BinaryField(null=True)),
                (
                    "answered_at",
                    models.DateTimeField(help_text="When its outcome was written; empty before that.", null=True),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "chain",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="messages",
                        to="temporalex_django.chain",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="For results: the run that waits for them.",
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.instance",
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "temporalex_message",
                "ordering": ["id"],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_index=True)),
                ("action", models.CharField(max_length=40)),
                (
                    "actor_name",
                    models.CharField(blank=True, help_text="The name of the user at that time.", max_length=200),
                ),
                ("workflow", models.CharField(blank=True, max_length=200)),
                ("workflow_id", models.CharField(blank=True, max_length=200)),
                ("reason", models.TextField(blank=True)),
                (
                    "source",
                    models.CharField(
                        help_text="The interface: admin, rest, pages, command or code; `turn` if a signal was refused while the run processed it.",
                        max_length=40,
                    ),
                ),
                ("address", models.GenericIPAddressField(null=True)),
                (
                    "request_id",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Id of the HTTP request (see REQUEST_ID_HEADER).",
                        max_length=64,
                    ),
                ),
                (
                    "denied",
                    models.BooleanField(
                        default=False, help_text="The user lacked the permission, and nothing was done."
                    ),
                ),
                ("forced", models.BooleanField(default=False)),
                (
                    "automatic",
                    models.BooleanField(
                        default=False,
                        help_text="It was not done by a person but by code, or by a program that sent an ordinary message.",
                    ),
                ),
                ("details", models.JSONField(default=dict)),
                (
                    "actor",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="operator_actions",
                        to="temporalex_django.instance",
                    ),
                ),
            ],
            options={
                "verbose_name": "operator action",
                "verbose_name_plural": "operator actions",
                "db_table": "temporalex_operator_action",
                "ordering": ["-id"],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("workflow", models.CharField(max_length=200)),
                ("owner", models.CharField(choices=[("code", "Code"), ("people", "People")], max_length=10)),
                (
                    "module",
                    models.CharField(blank=True, help_text="The module whose code declares it.", max_length=300),
                ),
                ("specs", models.JSONField(help_text="When it fires: see the page about schedules.")),
                (
                    "tz",
                    models.CharField(default="UTC", help_text="The time zone of the wall-clock times.", max_length=100),
                ),
                ("dst_gap", models.CharField(default="shift", max_length=10)),
                ("dst_fold", models.CharField(default="first", max_length=10)),
                ("start", models.DateTimeField(blank=True, help_text="No slot comes before this time.", null=True)),
                ("end", models.DateTimeField(blank=True, help_text="No slot comes after this time.", null=True)),
                ("args", models.BinaryField(help_text="The input of its runs.", null=True)),
                (
                    "arguments_function",
                    models.CharField(
                        blank=True,
                        help_text="The registered function that makes the input from the time of the slot.",
                        max_length=300,
                    ),
                ),
                ("workflow_id", models.CharField(max_length=200)),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("skip", "Skip the slot"),
                            ("buffer_one", "Let one slot wait"),
                            ("buffer_all", "Let all slots wait"),
                            ("cancel_other", "Cancel the open run, then start"),
                            ("terminate_other", "Terminate the open run and start"),
                            ("allow_all", "Start beside the open runs"),
                        ],
                        default="skip",
                        max_length=20,
                    ),
                ),
                ("catch_up", models.DurationField(help_text="A slot that is older than this is not started any more.")),
                (
                    "jitter",
                    models.DurationField(
                        blank=True, help_text="Each slot fires at a time of its own within this period.", null=True
                    ),
                ),
                (
                    "max_fires",
                    models.IntegerField(blank=True, help_text="It ends after this number of slots.", null=True),
                ),
                (
                    "pause_after",
                    models.IntegerField(
                        blank=True, help_text="It pauses itself after this number of failures in a row.", null=True
                    ),
                ),
                ("position", models.DateTimeField(help_text="All slots up to this time have an outcome.")),
                (
                    "last_walls",
                    models.JSONField(
                        default=dict,
                        help_text="The wall-clock time of the last slot of each spec, so that no slot comes twice.",
                    ),
                ),
                ("fires", models.IntegerField(default=0)),
                ("failures", models.IntegerField(default=0, help_text="Failures in a row.")),
                (
                    "waiting",
                    models.IntegerField(default=0, help_text="Slots that wait until an earlier run has closed."),
                ),
                ("next_at", models.DateTimeField(help_text="When a worker has to look at it again.", null=True)),
                ("backfill", models.JSONField(null=True)),
                (
                    "error",
                    models.TextField(blank=True, help_text="Why its slots cannot be computed; it is tried again."),
                ),
                ("paused_at", models.DateTimeField(null=True)),
                ("pause_reason", models.TextField(blank=True)),
                (
                    "paused_by",
                    models.CharField(blank=True, help_text="The name of the user at that time.", max_length=200),
                ),
                ("paused_by_failures", models.BooleanField(default=False)),
                ("gone_since", models.DateTimeField(help_text="Since when the code no longer declares it.", null=True)),
                (
                    "editor_name",
                    models.CharField(blank=True, help_text="The name of the user at that time.", max_length=200),
                ),
                ("created_at", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                (
                    "editor",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "temporalex_schedule",
                "ordering": ["name"],
                "permissions": [
                    ("manage_schedule", "Can create, change, pause, trigger, backfill and delete schedules")
                ],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="ScheduleSlot",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(help_text="The time of the slot.")),
                ("cause", models.CharField(max_length=10)),
                ("outcome", models.CharField(max_length=10)),
                ("reason", models.CharField(blank=True, max_length=10)),
                ("decided_at", models.DateTimeField()),
                ("workflow_id", models.CharField(blank=True, max_length=200)),
                ("running", models.BooleanField(default=False, help_text="Its run has not been seen closed.")),
                ("error_code", models.CharField(blank=True, max_length=40)),
                ("error", models.TextField(blank=True)),
                (
                    "until",
                    models.DateTimeField(help_text="The time of the last slot, if it stands for several.", null=True),
                ),
                ("count", models.IntegerField(default=1)),
                ("actor", models.CharField(blank=True, help_text="Who triggered or backfilled it.", max_length=200)),
                (
                    "chain",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.chain",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="temporalex_django.instance",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="slots",
                        to="temporalex_django.schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "slot of a schedule",
                "verbose_name_plural": "slots of schedules",
                "db_table": "temporalex_schedule_slot",
                "ordering": ["-at"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="SearchAttribute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "run_id", "name", "place", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("workflow", models.CharField(max_length=200)),
                ("name", models.CharField(max_length=100)),
                ("place", models.SmallIntegerField(db_default=0)),
                ("text", models.CharField(max_length=200, null=True)),
                ("number", models.DecimalField(decimal_places=12, max_digits=32, null=True)),
                ("moment", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="searched",
                        to="temporalex_django.instance",
                    ),
                ),
            ],
            options={
                "verbose_name": "search attribute",
                "verbose_name_plural": "search attributes",
                "db_table": "temporalex_search_attribute",
                "ordering": ["run_id", "name", "place"],
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="SwitchedOff",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("queue", "queue"),
                            ("activity", "activity"),
                            ("workflow", "workflow class"),
                            ("hold", "held activities of a queue"),
                        ],
                        max_length=10,
                    ),
                ),
                ("name", models.CharField(max_length=300)),
                ("since", models.DateTimeField()),
                (
                    "by",
                    models.CharField(
                        blank=True, help_text="Who switched it off: the name at that time.", max_length=200
                    ),
                ),
                ("reason", models.TextField(blank=True)),
                (
                    "key",
                    models.CharField(
                        blank=True, help_text="Of a hold: the concurrency key that is held.", max_length=200
                    ),
                ),
                ("until", models.DateTimeField(help_text="When a hold ends. Empty for all other switches.", null=True)),
            ],
            options={
                "verbose_name": "switch that is off",
                "verbose_name_plural": "switches that are off",
                "db_table": "temporalex_switched_off",
                "ordering": ["kind", "name"],
                "permissions": [("use_switches", "Can switch queues, activities and workflow classes off and on")],
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "name", "key"), name="temporalex_switched_off_once")
                ],
            },
        ),
        migrations.AddIndex(
            model_name="bulkjob",
            index=models.Index(condition=models.Q(("state", "running")), fields=["id"], name="temporalex_bulk_running"),
        ),
        migrations.AddIndex(
            model_name="candidate",
            index=models.Index(fields=["who", "task"], name="temporalex_candidate_who"),
        ),
        migrations.AddConstraint(
            model_name="candidate",
            constraint=models.UniqueConstraint(fields=("task", "who"), name="temporalex_candidate_task"),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                fields=["workflow_id", "workflow", "id"],
                name="temporalex_instance_business",
                opclasses=["varchar_pattern_ops", "text_ops", "uuid_ops"],
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(fields=["workflow", "id"], name="temporalex_instance_workflow"),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("subject_id__isnull", False)),
                fields=["subject_type", "subject_id", "id"],
                name="temporalex_instance_subject",
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("blocked__isnull", False)), fields=["workflow"], name="temporalex_instance_blocked"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("paused__isnull", False)), fields=["workflow"], name="temporalex_instance_paused"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("cause__isnull", False)), fields=["cause", "id"], name="temporalex_instance_cause"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("ended__isnull", False)), fields=["ended", "id"], name="temporalex_instance_ended"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("queue", "default"), _negated=True),
                fields=["queue", "id"],
                name="temporalex_instance_queue",
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("parent_run__isnull", False)),
                fields=["parent_run", "parent_seq"],
                name="temporalex_instance_parent",
            ),
        ),
        migrations.AddIndex(
            model_name="humantask",
            index=models.Index(
                condition=models.Q(("closed_at__isnull", True)),
                fields=["due_at", "opened_at", "id"],
                name="temporalex_human_task_open",
            ),
        ),
        migrations.AddIndex(
            model_name="humantask",
            index=models.Index(
                condition=models.Q(("ending", "overdue")), fields=["closed_at"], name="temporalex_human_task_overdue"
            ),
        ),
        migrations.AddConstraint(
            model_name="humantask",
            constraint=models.UniqueConstraint(fields=("run", "key"), name="temporalex_human_task_key"),
        ),
        migrations.AddIndex(
            model_name="chain",
            index=models.Index(
                condition=models.Q(("due_at__isnull", False)), fields=["queue", "due_at"], name="temporalex_chain_due"
            ),
        ),
        migrations.AddIndex(
            model_name="chain",
            index=models.Index(
                condition=models.Q(("awaits_message", True)), fields=["run"], name="temporalex_chain_message"
            ),
        ),
        migrations.AddIndex(
            model_name="chain",
            index=models.Index(
                condition=models.Q(("awaits_timer", True)), fields=["run"], name="temporalex_chain_timer"
            ),
        ),
        migrations.AddIndex(
            model_name="chain",
            index=models.Index(
                condition=models.Q(("awaits_child", True)), fields=["run"], name="temporalex_chain_child"
            ),
        ),
        migrations.AddConstraint(
            model_name="chain",
            constraint=models.UniqueConstraint(
                condition=models.Q(("open_key__isnull", False)), fields=("open_key",), name="temporalex_chain_open_key"
            ),
        ),
        migrations.AddIndex(
            model_name="bulkitem",
            index=models.Index(
                condition=models.Q(("outcome", "")), fields=["job", "tries", "id"], name="temporalex_bulk_left"
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(("atomic", False), ("line__isnull", True), ("owner__isnull", True)),
                fields=["queue", "due_at"],
                name="temporalex_task_due",
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(("atomic", False), ("line__isnull", False), ("owner__isnull", True)),
                fields=["queue", "line", "due_at"],
                name="temporalex_task_line",
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(
                    ("owner__isnull", True), models.Q(("priority__gt", 0), ("priority__lt", 0), _connector="OR")
                ),
                fields=["queue", "-priority", "due_at"],
                name="temporalex_task_priority",
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(("owner__isnull", False)), fields=["owner"], name="temporalex_task_owner"
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(("cause__isnull", False)), fields=["cause", "workflow"], name="temporalex_task_cause"
            ),
        ),
        migrations.AddIndex(
            model_name="activitytask",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False)), fields=["expires_at"], name="temporalex_task_expires"
            ),
        ),
        migrations.AddConstraint(
            model_name="activitytask",
            constraint=models.UniqueConstraint(fields=("run", "seq"), name="temporalex_task_command"),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("fresh", True)), fields=["queue", "chain"], name="temporalex_message_fresh"
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("settled", False)), fields=["chain", "id"], name="temporalex_message_inbox"
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(
                    models.Q(("kind", "signal"), ("outcome_status", "failed")),
                    ("outcome_status", "fault"),
                    _connector="OR",
                ),
                fields=["chain"],
                name="temporalex_message_attention",
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(
                condition=models.Q(("request_id__isnull", True), ("settled", True)),
                fields=["chain"],
                name="temporalex_message_settled",
            ),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(
                condition=models.Q(("request_id__isnull", False)),
                fields=("chain", "request_id"),
                name="temporalex_message_request_id",
            ),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(
                condition=models.Q(("automatic", False)), fields=["id"], name="temporalex_operator_people"
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("next_at__isnull", False)), fields=["next_at"], name="temporalex_schedule_due"
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("waiting__gt", 0)), fields=["id"], name="temporalex_schedule_waiting"
            ),
        ),
        migrations.AddIndex(
            model_name="scheduleslot",
            index=models.Index(
                condition=models.Q(("running", True)), fields=["schedule", "at"], name="temporalex_slot_running"
            ),
        ),
        migrations.AddIndex(
            model_name="scheduleslot",
            index=models.Index(
                condition=models.Q(("outcome", "waiting")), fields=["schedule", "at"], name="temporalex_slot_waiting"
            ),
        ),
        migrations.AddIndex(
            model_name="scheduleslot",
            index=models.Index(fields=["decided_at"], name="temporalex_slot_decided"),
        ),
        migrations.AddIndex(
            model_name="scheduleslot",
            index=models.Index(
                condition=models.Q(("chain__isnull", False)), fields=["chain"], name="temporalex_slot_chain"
            ),
        ),
        migrations.AddConstraint(
            model_name="scheduleslot",
            constraint=models.UniqueConstraint(fields=("schedule", "at"), name="temporalex_schedule_slot_once"),
        ),
        migrations.AddIndex(
            model_name="searchattribute",
            index=models.Index(
                condition=models.Q(("text__isnull", False)),
                fields=["workflow", "name", "text", "run"],
                name="temporalex_search_text",
                opclasses=["text_ops", "text_ops", "varchar_pattern_ops", "uuid_ops"],
            ),
        ),
        migrations.AddIndex(
            model_name="searchattribute",
            index=models.Index(
                condition=models.Q(("number__isnull", False)),
                fields=["workflow", "name", "number", "run"],
                name="temporalex_search_number",
            ),
        ),
        migrations.AddIndex(
            model_name="searchattribute",
            index=models.Index(
                condition=models.Q(("moment__isnull", False)),
                fields=["workflow", "name", "moment", "run"],
                name="temporalex_search_moment",
            ),
        ),
        migrations.RunPython(tune_hot_tables, migrations.RunPython.noop),
    ]
