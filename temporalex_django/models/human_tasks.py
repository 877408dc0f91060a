"""Human tasks: decisions that people are asked for, and their candidates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NotRequired, Self, TypedDict

from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import SafeDateTimeField, SafeJSONField, Texts, decode_payload, unconstrained_key


class _Form(TypedDict):
    kind: str
    name: str
    digest: str
    schema: NotRequired[dict[str, Any] | None]


class _Delegation(TypedDict):
    to: str
    by: NotRequired[str]
    at: NotRequired[datetime]
    reason: NotRequired[str]


class _Deciding(TypedDict):
    by: str
    outcome: str


class Ending(models.TextChoices):
    """The ways in which a human task is closed."""

    DECIDED = "decided", _("Decided")
    OVERDUE = "overdue", _("Overdue")
    CANCELLED = "cancelled", _("Cancelled")
    RUN_CLOSED = "run_closed", _("The run ended")


class FourEyesScope(models.TextChoices):
    """The scope of the four-eyes rule: where an earlier decision of a person excludes that person.

    ``CHAIN`` means the runs of the chain and those that it comes from: a parent, or a run that was forked. ``RUN``
    means the one run alone. See decision 49.
    """

    CHAIN = "chain", _("The chain")
    RUN = "run", _("The run")


class HumanTaskQuerySet(models.QuerySet["HumanTask"]):
    """A queryset of human tasks."""

    def open(self) -> Self:
        """Return the tasks that are open: not decided, and not closed in another way."""
        return self.filter(closed_at=None)

    def claimed_at(self, now: datetime) -> Self:
        """Return the tasks that a person has claimed at ``now``; an expired claim does not count."""
        return self.filter(claimed_until__gt=now)


class HumanTask(models.Model):
    """A decision that a person is asked for.

    The transaction that advances the run writes this row when the run opens, changes or closes the task. Only what
    people do before they decide (``claimed_…``, ``delegated``) is stored here alone. The id is derived from the id of
    the run and the ``key``.
    """

    id = models.UUIDField(primary_key=True)
    run = unconstrained_key("temporalex_django.Instance", related_name="human_tasks")
    chain = unconstrained_key("temporalex_django.Chain")
    workflow = models.CharField(max_length=200)
    workflow_id = models.CharField(max_length=200)
    key = models.CharField(  # a step's key; if the step asks again, its number follows a #
        max_length=220, help_text=_("Its name in the run: the number of the call, or the key of the step.")
    )
    title = models.CharField(max_length=200, help_text=_("The question, in one line."))
    outcomes = SafeJSONField(like=Texts, help_text=_("The outcomes to choose from."))
    asked = SafeJSONField(
        like=Texts,
        help_text=_(
            "Candidates: user:<username>, group:<name>, perm:<app.codename>; those of an escalation come last."
        ),
    )
    declared = SafeJSONField(like=Texts, help_text=_("The candidates that the code names, before any escalation."))
    form = SafeJSONField(
        like=_Form,
        instead={"kind": "type", "name": "", "digest": "", "schema": {}},
        null=True,
        help_text=_("The form of its data: kind, name, schema, digest."),
    )
    shows = models.BinaryField(null=True, help_text=_("What people decide about, as the codec stores it."))
    four_eyes = models.CharField(
        max_length=10,
        choices=FourEyesScope.choices,
        blank=True,
        default="",
        help_text=_("Scope in which a different person must decide: the chain, or this run."),
    )
    requested_by_key = models.CharField(max_length=200, blank=True, default="", help_text=_("Who started the run."))
    requested_by_name = models.CharField(max_length=200, blank=True, default="")
    opened_at = SafeDateTimeField()
    due_at = SafeDateTimeField(null=True)
    reminders = models.IntegerField(default=0)
    reminded_at = SafeDateTimeField(null=True)
    escalated_at = SafeDateTimeField(null=True)

    # The history does not know the next four columns. Claims and delegations concern people only, and a replay of the
    # run must not depend on them.
    claimed_by_key = models.CharField(max_length=200, blank=True, default="")
    claimed_by_name = models.CharField(max_length=200, blank=True, default="")
    claimed_until = SafeDateTimeField(null=True)
    delegated = SafeJSONField(
        like=list[_Delegation],
        default=list,
        help_text=_("Its delegations, each with the keys “to”, “by”, “at” and “reason”."),
    )

    deciding = SafeJSONField(
        like=_Deciding,
        instead={"by": "?", "outcome": "?"},
        null=True,
        help_text=_("Who decided and how, until its run on a Temporal cluster has processed the decision."),
    )
    closed_at = SafeDateTimeField(null=True)
    ending = models.CharField(max_length=20, choices=Ending.choices, blank=True, default="")
    outcome = models.CharField(max_length=200, blank=True, default="", help_text=_("What was decided."))
    decided_by_key = models.CharField(max_length=200, blank=True, default="")
    decided_by_name = models.CharField(max_length=200, blank=True, default="")
    decided_for = models.CharField(
        max_length=200, blank=True, default="", help_text=_("Name of the person on whose behalf they decided.")
    )
    comment = models.TextField(blank=True, default="")

    #: True if the four-eyes rule excludes everybody who is asked. Not a column:
    #: ``operations.human_tasks.base.mark_nobody_left`` sets it.
    nobody_left = False
    #: Those whom an open task asks, if none of them is there. Not a column either, and set by that function, too.
    absent: Sequence[Any] = ()

    objects = HumanTaskQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_human_task"
        verbose_name = _("human task")
        verbose_name_plural = _("human tasks")
        ordering = ["opened_at", "id"]
        default_permissions = ("view",)
        permissions = [
            ("delegate_humantask", _("Can delegate human tasks to others")),
            ("release_humantask", _("Can release human tasks that others have claimed")),
        ]
        indexes = [
            # In the order of an inbox, so that the first page of open tasks needs no sort.
            models.Index(
                fields=["due_at", "opened_at", "id"],
                name="temporalex_human_task_open",
                condition=Q(closed_at__isnull=True),
            ),
            # Reports count those that nobody decided in time.
            models.Index(fields=["closed_at"], name="temporalex_human_task_overdue", condition=Q(ending="overdue")),
        ]
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="temporalex_human_task_key")]

    def __str__(self) -> str:
        return self.title

    @property
    def is_open(self) -> bool:
        """True until the task is closed."""
        return self.closed_at is None

    @cached_property
    def shown_value(self) -> Any:
        """The data that people decide about, decoded. The title is not part of it. Never raises."""
        return decode_payload(self.shows)


class Candidate(models.Model):
    """A user, a group or a permission that may decide an open human task.

    ``who`` has the format of an entry of ``HumanTask.asked``. A row with ``barred`` is an excluded user: that person
    may not decide, whatever else they are, because a different person has to. Its ``who`` is ``key:<primary key>``. The
    rows are deleted when the task is closed, so that the table stays small.
    """

    id = models.BigAutoField(primary_key=True)
    task = models.ForeignKey(HumanTask, on_delete=models.CASCADE, related_name="candidates", db_index=False)
    who = models.CharField(max_length=255)
    barred = models.BooleanField(default=False)

    class Meta:
        db_table = "temporalex_candidate"
        verbose_name = _("candidate")
        verbose_name_plural = _("candidates")
        default_permissions = ()
        # An inbox looks up what the person is (user, groups, permissions) and gets the tasks from the index.
        indexes = [models.Index(fields=["who", "task"], name="temporalex_candidate_who")]
        constraints = [models.UniqueConstraint(fields=["task", "who"], name="temporalex_candidate_task")]

    def __str__(self) -> str:
        return self.who
