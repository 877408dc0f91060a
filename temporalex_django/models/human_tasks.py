"""Human tasks: what people are asked to decide, and who may."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self

from django.db import models
from django.db.models import Q
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from temporalex_django.models.fields import decode_payload, unconstrained_key


class Ending(models.TextChoices):
    """What became of a human task."""

    DECIDED = "decided", _("Decided")
    OVERDUE = "overdue", _("Overdue")
    CANCELLED = "cancelled", _("Cancelled")
    RUN_CLOSED = "run_closed", _("The run ended")


class FourEyesScope(models.TextChoices):
    """How far four eyes look: at the chain and the runs that it comes from, or at one run."""

    CHAIN = "chain", _("The chain")
    RUN = "run", _("The run")


class HumanTaskQuerySet(models.QuerySet["HumanTask"]):
    """Human tasks."""

    def open(self) -> Self:
        """Those that nobody has decided, and that are still to be."""
        return self.filter(closed_at=None)

    def claimed_at(self, now: datetime) -> Self:
        """Those that somebody has claimed at that time."""
        return self.filter(claimed_until__gt=now)


class HumanTask(models.Model):
    """What a person is asked to decide.

    The turn that opens, changes or closes it in the run writes it; what people do with it before they decide
    (``claimed_…``, ``delegated``) stands here alone. The id is made of that of the run and the ``key``.
    """

    id = models.UUIDField(primary_key=True)
    run = unconstrained_key("temporalex_django.Instance", related_name="human_tasks")
    chain = unconstrained_key("temporalex_django.Chain")
    workflow = models.CharField(max_length=200)
    workflow_id = models.CharField(max_length=200)
    key = models.CharField(  # of a step, and where it asks again its number behind a #
        max_length=220, help_text=_("Its name in the run: the number of the call, or the key of the step.")
    )
    title = models.CharField(max_length=200, help_text=_("What is asked, in one line."))
    outcomes = models.JSONField(help_text=_("What may be decided."))
    asked = models.JSONField(
        help_text=_("Who is asked: user:<username>, group:<name>, perm:<app.codename>; those of an escalation last.")
    )
    declared = models.JSONField(help_text=_("Whom the code asks, before any escalation."))
    form = models.JSONField(null=True, help_text=_("What its data are to be: kind, name, schema, digest."))
    shows = models.BinaryField(null=True, help_text=_("What people decide about, as the codec stores it."))
    four_eyes = models.CharField(
        max_length=10,
        choices=FourEyesScope.choices,
        blank=True,
        default="",
        help_text=_("Among whom somebody else has to decide: in the whole chain, or in this run."),
    )
    requested_by_key = models.CharField(max_length=200, blank=True, default="", help_text=_("Who started the run."))
    requested_by_name = models.CharField(max_length=200, blank=True, default="")
    opened_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True)
    reminders = models.IntegerField(default=0)
    reminded_at = models.DateTimeField(null=True)
    escalated_at = models.DateTimeField(null=True)

    claimed_by_key = models.CharField(max_length=200, blank=True, default="")
    claimed_by_name = models.CharField(max_length=200, blank=True, default="")
    claimed_until = models.DateTimeField(null=True)
    delegated = models.JSONField(default=list, help_text=_("To whom, by whom, when and why: to, by, at, reason."))

    closed_at = models.DateTimeField(null=True)
    ending = models.CharField(max_length=20, choices=Ending.choices, blank=True, default="")
    outcome = models.CharField(max_length=200, blank=True, default="", help_text=_("What was decided."))
    decided_by_key = models.CharField(max_length=200, blank=True, default="")
    decided_by_name = models.CharField(max_length=200, blank=True, default="")
    decided_for = models.CharField(
        max_length=200, blank=True, default="", help_text=_("The name of the one for whom he stood in.")
    )
    comment = models.TextField(blank=True, default="")

    #: Whether four eyes shut out everybody whom it asks; no column: ``actions.deciding.mark_nobody_left`` looks.
    nobody_left = False

    objects = HumanTaskQuerySet.as_manager()

    class Meta:
        db_table = "temporalex_human_task"
        verbose_name = _("human task")
        verbose_name_plural = _("human tasks")
        ordering = ["opened_at", "id"]
        default_permissions = ("view",)
        permissions = [
            ("delegate_humantask", _("Can hand human tasks on to others")),
            ("release_humantask", _("Can release human tasks that others have claimed")),
        ]
        indexes = [
            models.Index(
                fields=["due_at", "opened_at", "id"],
                name="temporalex_human_task_open",
                condition=Q(closed_at__isnull=True),
            ),
        ]
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="temporalex_human_task_key")]

    def __str__(self) -> str:
        return self.title

    @property
    def is_open(self) -> bool:
        """Whether it is still to be decided."""
        return self.closed_at is None

    @cached_property
    def shown_value(self) -> Any:
        """What people decide about, beside the title."""
        return decode_payload(self.shows)


class Candidate(models.Model):
    """Who may decide an open human task: ``who`` is a word as in ``HumanTask.asked``.

    ``barred``: he may not, whatever else he is, since another pair of eyes is wanted; ``who`` is ``key:<primary key>``.
    The rows go when the task is closed, so that there are few.
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
        indexes = [models.Index(fields=["who", "task"], name="temporalex_candidate_who")]
        constraints = [models.UniqueConstraint(fields=["task", "who"], name="temporalex_candidate_task")]

    def __str__(self) -> str:
        return self.who
