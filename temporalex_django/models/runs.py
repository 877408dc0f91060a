"""Runs: chains, runs, their histories and search attributes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NotRequired, Self, TypedDict, get_type_hints

from django.contrib.contenttypes.fields import GenericForeignKey
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.db.models import Case, F, Q, When
from django.utils.translation import gettext_lazy as _

from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import BEFORE_ALL, TABLES, TEMPORAL
from temporalex_django.core.payloads.search_attributes import MAX_FRACTION_DIGITS, MAX_INTEGER_DIGITS, MAX_TEXT_LENGTH
from temporalex_django.core.typed_dicts import AcceptedNames, WaitInfo
from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts, decode_payload, unconstrained_key

# --- instance ---------------------------------------------------------------------------------------------------------
#
# Instances: one row for each run, which people search, read and link to.


class _Block(TypedDict):
    code: str
    error: str
    since: NotRequired[datetime]
    attempt: NotRequired[int]
    last: NotRequired[datetime]
    waits_for: NotRequired[str]
    place: NotRequired[str]
    function: NotRequired[str]
    event: NotRequired[int]
    recorded: NotRequired[str]
    produced: NotRequired[str]


class _Pause(TypedDict):
    since: datetime
    reason: NotRequired[str]
    by: NotRequired[dict[str, str] | None]


#: ``WaitInfo`` as it is stored: pages need the kind, and parse the times.
_Wait: Any = TypedDict(
    "_Wait",
    {
        **{name: NotRequired[hint] for name, hint in get_type_hints(WaitInfo).items()},  # type: ignore[misc] # known late
        "kind": str,
        "since": NotRequired[datetime],
        "until": NotRequired[datetime],
    },
)

_UNREADABLE_BLOCK = {
    "code": "unreadable",
    "error": "the column blocked of the run cannot be read",
    "since": BEFORE_ALL.isoformat(),
    "attempt": 0,
}
_UNREADABLE_PAUSE = {
    "since": BEFORE_ALL.isoformat(),
    "reason": "the column paused of the run cannot be read",
    "by": None,
}


class Status(models.TextChoices):
    """The statuses of a run. That a run is blocked or paused is a mark beside its status."""

    PENDING = "pending", _("Pending")
    RUNNING = "running", _("Running")
    WAITING = "waiting", _("Waiting")
    COMPLETED = "completed", _("Completed")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")
    TERMINATED = "terminated", _("Terminated")
    TIMED_OUT = "timed_out", _("Timed out")
    CONTINUED_AS_NEW = "continued_as_new", _("Continued as new")


#: Statuses of runs that ended without a result of their own.
UNSUCCESSFUL_STATUSES = frozenset(CLOSED_STATUSES) - {Status.COMPLETED.value}


class InstanceQuerySet(models.QuerySet["Instance"]):
    """A queryset of runs."""

    def open(self) -> Self:
        """Return the runs that are not closed."""
        return self.exclude(status__in=CLOSED_STATUSES)

    def closed(self) -> Self:
        """Return the runs that are closed, however they ended."""
        return self.filter(status__in=CLOSED_STATUSES)

    def blocked(self) -> Self:
        """Return the runs that cannot continue until a person corrects something."""
        return self.filter(blocked__isnull=False)

    def paused(self) -> Self:
        """Return the runs that are paused until somebody unpauses them."""
        return self.filter(paused__isnull=False)

    def for_subject(self, subject: models.Model) -> Self:
        """Return the runs that were started with this object as ``subject=``.

        An object of the same table with the same key counts as this object. The runs stay when the object is deleted:
        ``for_subject(Order(pk=key))`` finds them. Raises ``ValueError`` for an object without a key.
        """
        if subject.pk is None:
            name = type(subject).__name__
            raise ValueError(
                f"for_subject: this {name} has no key: it was deleted, or never saved. To find the runs of a deleted "
                f"object, pass its old key: for_subject({name}(pk=key))"
            )
        kind = ContentType.objects.db_manager(self.db).get_for_model(subject)
        return self.filter(subject_type=kind, subject_id=str(subject.pk))


class Instance(models.Model):
    """A run: one execution of a workflow with one history.

    The id is a UUIDv7, so runs sort by the time at which they were started. Runs that follow each other under one
    business id form a chain; its newest run is its current one.
    """

    id = models.UUIDField(primary_key=True)
    chain = unconstrained_key("temporalex_django.Chain", db_index=True, related_name="runs")
    workflow_id = models.CharField(_("id"), max_length=200, help_text=_("The business id."))
    workflow = models.CharField(max_length=200)
    version = models.IntegerField(db_default=1)
    queue = models.TextField(db_default="default")
    status = models.CharField(max_length=20, choices=Status.choices, db_default=Status.PENDING)
    blocked = SafeJSONField(
        like=_Block,
        instead=_UNREADABLE_BLOCK,
        null=True,
        help_text=_("Why it cannot continue: code, error, since, attempt."),
    )
    paused = SafeJSONField(
        like=_Pause,
        instead=_UNREADABLE_PAUSE,
        null=True,
        help_text=_("Who paused it, when and why: since, reason, by."),
    )
    waiting_for = SafeJSONField(like=Texts, null=True)
    waits = SafeJSONField(
        like=list[_Wait], null=True, help_text=_("What it is waiting for, except activities, as machine-readable data.")
    )
    accepts = SafeJSONField(
        like=AcceptedNames,
        instead={"signals": [], "updates": []},
        null=True,
        help_text=_("Messages that the open phase accepts."),
    )

    args = models.BinaryField()
    seed = models.BigIntegerField()
    carried_messages = models.BinaryField(
        null=True, help_text=_("Signals and a cancel request that the previous run passed to this one.")
    )
    snapshot = models.BinaryField(
        null=True, help_text=_("The point at which a graph continues after a move from another version.")
    )
    published = models.BinaryField(null=True)
    published_at = SafeDateTimeField(null=True, help_text=_("When the published state was published."))
    stored = SafeJSONField(null=True, help_text=_("Fields of the published state that its class stores for SQL."))
    closing = models.BinaryField(null=True, help_text=_("Attributes of the event that closed the run."))

    cause = models.TextField(  # noqa: DJ001 - most neither fail nor block
        null=True, help_text=_("Why it failed or is blocked: the type of the error and its place in the code.")
    )
    fault = models.TextField(  # noqa: DJ001 - as above
        null=True, help_text=_("Groups failed and blocked runs: the type of the error, the file and the function.")
    )

    attempt = models.IntegerField(db_default=1)
    parent = models.CharField(max_length=200, null=True)  # noqa: DJ001 - no parent is not a parent with an empty id
    parent_chain = unconstrained_key("temporalex_django.Chain", null=True)
    parent_run = unconstrained_key("self", null=True)
    parent_seq = models.IntegerField(null=True)
    expires_at = SafeDateTimeField(null=True, help_text=_("When the whole chain times out."))
    starts_at = SafeDateTimeField(null=True, help_text=_("When it begins, if the start specified a time."))
    start_before = SafeDateTimeField(null=True, help_text=_("It times out if it has not begun by then."))
    start_limit = SafeJSONField(null=True, help_text=_("Its throttle (count, seconds), or that it is debounced."))
    run_timeout = models.FloatField(null=True, help_text=_("Timeout of each run of the chain, in seconds."))
    parent_close = models.CharField(max_length=20, null=True)  # noqa: DJ001 - as above

    headers = SafeJSONField(
        like=dict[str, str], null=True, help_text=_("Headers of its start; empty if there were none.")
    )
    scheduled_for = SafeDateTimeField(
        null=True, help_text=_("The time of the slot for which a schedule started the chain.")
    )

    subject_type = unconstrained_key("contenttypes.ContentType", null=True)
    subject_id = models.CharField(max_length=200, null=True)  # noqa: DJ001 - as above
    subject = GenericForeignKey("subject_type", "subject_id")
    tags = SafeJSONField(like=Texts, null=True)
    metadata = SafeJSONField(null=True)
    search_attributes = SafeJSONField(null=True)

    cluster_id = models.TextField(  # noqa: DJ001 - runs on these tables have none
        null=True, help_text=_("The id on its Temporal cluster that the runs of its chain share.")
    )
    cluster_run_id = models.UUIDField(
        null=True, help_text=_("The id of the run on its Temporal cluster, once it is there.")
    )
    cluster_task_at = SafeDateTimeField(
        null=True, help_text=_("When its Temporal cluster began the task that the row shows, by the cluster's clock.")
    )
    mirrored_at = SafeDateTimeField(
        null=True,
        help_text=_("When its row was last written from its Temporal cluster; empty for runs on these tables."),
    )

    created_at = SafeDateTimeField()
    started_at = SafeDateTimeField(null=True)
    closed_at = SafeDateTimeField(null=True)
    # An index on ``status`` would be rewritten by every turn. This column is NULL while the run is open, so its index
    # changes once in the life of a run, and only for runs without a result.
    ended = models.GeneratedField(
        expression=Case(When(status__in=sorted(UNSUCCESSFUL_STATUSES), then=F("status"))),
        output_field=models.CharField(max_length=20, null=True),
        db_persist=True,
        help_text=_("Its status, once it has ended without a result. Turns do not change it, so it can have an index."),
    )

    objects = InstanceQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_instance"
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        ordering = ["-id"]
        default_permissions = ("view", "delete")
        permissions = [
            ("view_payload", _("Can see the arguments, results and messages of runs")),
            ("start_instance", _("Can start runs")),
            ("signal_instance", _("Can send signals to runs")),
            ("update_instance", _("Can send updates to runs")),
            ("query_instance", _("Can query runs")),
            ("cancel_instance", _("Can cancel runs")),
            ("terminate_instance", _("Can terminate runs")),
            ("reset_instance", _("Can reset and fork runs")),
            ("bulk_actions", _("Can start bulk jobs")),
            ("pause_instance", _("Can pause and unpause runs, and retry blocked ones")),
            ("redeliver_message", _("Can redeliver and discard failed messages")),
            ("retry_activity", _("Can retry activities, and skip timers")),
            ("edit_activity_input", _("Can change the input of activities")),
            ("complete_activity", _("Can complete activities by hand")),
            ("fail_activity", _("Can fail activities by hand")),
        ]
        indexes = [
            # Serves searches by the beginning of an id, too, whatever collation the database has.
            models.Index(
                fields=["workflow_id", "workflow", "id"],
                name="temporalex_instance_business",
                opclasses=["varchar_pattern_ops", "text_ops", "uuid_ops"],
            ),
            # Lists are sorted by id, newest first. With the id as the last column an index serves the filter and the
            # order.
            models.Index(fields=["workflow", "id"], name="temporalex_instance_workflow"),
            models.Index(
                fields=["subject_type", "subject_id", "id"],
                name="temporalex_instance_subject",
                condition=Q(subject_id__isnull=False),
            ),
            # The next indexes are partial: few runs are blocked, paused or failed, so they stay small and turns rarely
            # touch them.
            models.Index(
                fields=["workflow", "fault"], name="temporalex_instance_blocked", condition=Q(blocked__isnull=False)
            ),
            models.Index(fields=["workflow"], name="temporalex_instance_paused", condition=Q(paused__isnull=False)),
            models.Index(fields=["cause", "id"], name="temporalex_instance_cause", condition=Q(cause__isnull=False)),
            models.Index(fields=["fault", "id"], name="temporalex_instance_fault", condition=Q(fault__isnull=False)),
            models.Index(fields=["ended", "id"], name="temporalex_instance_ended", condition=Q(ended__isnull=False)),
            # Most runs use the default queue, so an index over it would select nothing.
            models.Index(fields=["queue", "id"], name="temporalex_instance_queue", condition=~Q(queue="default")),
            models.Index(
                fields=["parent_run", "parent_seq"],
                name="temporalex_instance_parent",
                condition=Q(parent_run__isnull=False),
            ),
        ]
        constraints = [
            # Two workers may see a run that another program has started at the same time.
            models.UniqueConstraint(
                fields=["cluster_run_id"],
                name="temporalex_instance_cluster",
                condition=Q(cluster_run_id__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.workflow} {self.workflow_id}"

    @property
    def is_open(self) -> bool:
        """True until the run is closed."""
        return self.status not in CLOSED_STATUSES

    @property
    def backend(self) -> str:
        """The backend that the run lives on: ``tables`` or ``temporal``."""
        return TABLES if self.mirrored_at is None else TEMPORAL

    @property
    def begins_at(self) -> datetime:
        """The time at which the run begins: the one that its start named, or that of the start."""
        begin: datetime = self.starts_at or self.created_at
        return begin

    @property
    def input(self) -> Any:
        """The arguments of the run (``args``), decoded.

        Never raises: what cannot be read is an ``UnreadablePayload``.
        """
        return decode_payload(self.args)

    @property
    def published_state(self) -> Any:
        """The published state, which queries read, decoded. Never raises: see ``UnreadablePayload``."""
        return decode_payload(self.published)

    @property
    def closing_value(self) -> Any:
        """The attributes of the event that closed the run, decoded.

        For a completed run this is ``{"result": …}``. For a failed run it has the failure's type, message, reason and
        traceback. Never raises: what cannot be read is an ``UnreadablePayload``.
        """
        return decode_payload(self.closing)


# --- chain ------------------------------------------------------------------------------------------------------------
#
# Chains: one narrow row per business execution, rewritten by every turn.


#: Kinds of waits that have a column ``awaits_…``. The other kind is ``activity``.
AWAITED_KINDS = ("message", "timer", "child")


class Chain(models.Model):
    """Runs that follow each other under one id, by continue-as-new, a move or a reset.

    The process that holds the lock of this row is the only one that may advance the run. Every turn (the transaction
    that advances runs) rewrites the row, so it is narrow (fill factor 70, and only partial indexes besides the key).
    See decision 7.
    """

    id = models.UUIDField(primary_key=True)
    backend = models.TextField(
        db_default=TABLES, help_text=_("Where its runs are stored: in these tables or on a Temporal cluster.")
    )
    run = unconstrained_key("temporalex_django.Instance", related_name="current_of", help_text=_("The current run."))
    queue = models.TextField(help_text=_("The workers that poll this queue may advance it."))
    due_at = SafeDateTimeField(
        null=True, help_text=_("It is not advanced before this time. Empty if it is waiting for a message.")
    )
    deadline = SafeDateTimeField(null=True, help_text=_("When the run times out."))
    # An executor in memory is current only if it has this token (see decision 5). A rollback leaves the old token, so
    # no hook has to discard the executor.
    head_token = models.BigIntegerField(null=True, help_text=_("Token of the last activation that wrote."))
    length = models.IntegerField(db_default=0, help_text=_("Events in the history of the current run."))
    activations = models.IntegerField(db_default=0)
    activated_at = SafeDateTimeField(null=True, help_text=_("When the last activation ran. This time never goes back."))
    failed_tries = models.IntegerField(
        db_default=0, help_text=_("Consecutive failed attempts of the current activation.")
    )
    crashes = models.SmallIntegerField(
        db_default=0, help_text=_("Number of consecutive processes that died while they ran its code.")
    )
    atomic_due = SafeDateTimeField(null=True, help_text=_("When its next atomic activity is due."))
    closed = models.BooleanField(db_default=False)
    paused = models.BooleanField(db_default=False)
    # What the run may wait for, so that lists find it by an index. ``waiting_for`` of the run decides. An update that
    # would stay on its page removes no mark, so a mark may be older than the activity for which the run waits now.
    awaits_message = models.BooleanField(
        db_default=False, help_text=_("The open run may wait for a message or a decision.")
    )
    awaits_timer = models.BooleanField(db_default=False, help_text=_("The open run may wait for a timer."))
    awaits_child = models.BooleanField(db_default=False, help_text=_("The open run may wait for another run."))
    open_key = models.TextField(  # noqa: DJ001 - NULLs do not collide
        null=True, help_text=_("Keeps the id unique among open runs; empty when closed.")
    )

    cluster_first_run_id = models.UUIDField(
        null=True, help_text=_("The id of its first run on its Temporal cluster, once that has begun.")
    )

    class Meta:
        db_table = "temporalex_chain"
        verbose_name = _("chain")
        verbose_name_plural = _("chains")
        default_permissions = ("view",)
        indexes = [
            # Partial, so that parked runs, which wait for a message only, cost a claim nothing.
            models.Index(fields=["queue", "due_at"], name="temporalex_chain_due", condition=Q(due_at__isnull=False)),
            # In the order of a list. A run that only calls activities is in none of these indexes.
            *(
                models.Index(fields=["run"], name=f"temporalex_chain_{kind}", condition=Q(**{f"awaits_{kind}": True}))
                for kind in AWAITED_KINDS
            ),
        ]
        constraints = [
            # No turn, timeout or atomic activity of a worker may take a run that lives on a cluster.
            models.CheckConstraint(
                name="temporalex_chain_on_cluster",
                condition=Q(backend=TABLES)
                | Q(due_at__isnull=True, deadline__isnull=True, atomic_due__isnull=True, head_token__isnull=True),
            ),
            models.UniqueConstraint(
                fields=["open_key"], name="temporalex_chain_open_key", condition=Q(open_key__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


# --- history ----------------------------------------------------------------------------------------------------------
#
# Histories of runs. They are append-only (see decision 8).


class HistoryEvent(models.Model):
    """One event in the history of a run, such as an activity that was scheduled or a signal that arrived.

    ``seq`` counts the events of the run from 1 without gaps. ``activation`` is the number of the activation in which
    the event was recorded: one delivery of results, timers and messages to the code of the run.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = unconstrained_key("temporalex_django.Instance", related_name="events")
    seq = models.IntegerField()
    activation = models.IntegerField()
    kind = models.CharField(max_length=40)
    at = SafeDateTimeField()
    attributes = models.BinaryField()

    class Meta:
        db_table = "temporalex_history_event"
        verbose_name = _("history event")
        verbose_name_plural = _("history events")
        ordering = ["run_id", "seq"]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"

    @property
    def data(self) -> Any:
        """The attributes of the event, decoded. Never raises: what cannot be read is an ``UnreadablePayload``."""
        return decode_payload(self.attributes)


# --- search attributes ------------------------------------------------------------------------------------------------
#
# The table of search attributes: typed values of runs, as rows, so that an index can find them.


class SearchAttribute(models.Model):
    """A search attribute of a run, with its value in the column of its type.

    Turns write these rows when a workflow sets an attribute. The row of the run has a copy for display only. Turns
    rewrite that row, so it has no index on the attributes. An attribute that is a list has one row for each text,
    numbered by ``place``.
    """

    pk = models.CompositePrimaryKey("run_id", "name", "place")
    run = unconstrained_key("temporalex_django.Instance", related_name="searched")
    workflow = models.CharField(max_length=200)
    name = models.CharField(max_length=100)
    place = models.SmallIntegerField(db_default=0)
    text = models.CharField(max_length=MAX_TEXT_LENGTH, null=True)  # noqa: DJ001 - no text is not an empty text
    number = models.DecimalField(
        max_digits=MAX_INTEGER_DIGITS + MAX_FRACTION_DIGITS, decimal_places=MAX_FRACTION_DIGITS, null=True
    )
    moment = SafeDateTimeField(null=True)

    class Meta:
        db_table = "temporalex_search_attribute"
        verbose_name = _("search attribute")
        verbose_name_plural = _("search attributes")
        ordering = ["run_id", "name", "place"]
        default_permissions = ()
        # One partial index for each type: a value is in one column, and the other two are NULL.
        indexes = [
            # Serves searches by the beginning of a text, too.
            models.Index(
                fields=["workflow", "name", "text", "run"],
                name="temporalex_search_text",
                opclasses=["text_ops", "text_ops", "varchar_pattern_ops", "uuid_ops"],
                condition=Q(text__isnull=False),
            ),
            models.Index(
                fields=["workflow", "name", "number", "run"],
                name="temporalex_search_number",
                condition=Q(number__isnull=False),
            ),
            models.Index(
                fields=["workflow", "name", "moment", "run"],
                name="temporalex_search_moment",
                condition=Q(moment__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.run_id}"
