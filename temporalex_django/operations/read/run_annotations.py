"""Annotations of runs with facts of other tables, so that a page of runs needs few statements."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, When, Window
from django.db.models.functions import Coalesce, RowNumber

from temporalex_django.authoring import workflow as workflows
from temporalex_django.models import ActivityTask, FailedAttempt, Instance, Message, OperatorAction, SwitchedOff

#: Statuses of closed runs for which more can be said than the time.
STATUSES_WITH_REASON = ("failed", "cancelled", "terminated", "timed_out")


def leading_tasks(runs: Sequence[UUID], *, alias: str, limit: int) -> QuerySet[ActivityTask]:
    """Return the first ``limit`` activity tasks of each run: failed ones first, then in the order of their commands.

    Each row has the number of all activity tasks of its run as ``count``. One query.
    """
    order = [F("failed_at").asc(nulls_last=True), F("seq").asc()]
    rows = ActivityTask.objects.using(alias).filter(run_id__in=runs)
    rows = rows.annotate(
        place=Window(RowNumber(), partition_by=F("run_id"), order_by=order),
        count=Window(Count("*"), partition_by=F("run_id")),
    )
    return rows.filter(place__lte=limit).order_by("run_id", "place")


def annotate_ends(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with how they ended, so that ``RunStateLoader`` needs no further read for it.

    ``ended_with`` has the attributes of the event that closed the run, ``ended_by`` the person who ended it, and
    ``ended_why`` their reason. It also adds the annotation of ``annotate_switches``.
    """
    actions = OperatorAction.objects.filter(run_id=OuterRef("pk"), action__in=("cancel", "terminate"), denied=False)
    last_actions = actions.order_by("-id")
    # The closing attributes of a completed run can be large. Read them only for classes that summarize a result.
    class_names = [cls.name for cls in workflows.concrete_classes() if cls.summary]
    has_reason = Q(status__in=STATUSES_WITH_REASON) | Q(status="completed", workflow__in=class_names)
    return annotate_switches(runs).annotate(
        ended_with=Case(When(has_reason, then=F("closing")), default=None),
        ended_by=Subquery(last_actions.values("actor_name")[:1]),
        ended_why=Subquery(last_actions.values("reason")[:1]),
    )


def annotate_switches(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``anything_off``: True if any switch is off, so that switches have to be read."""
    return runs.annotate(anything_off=Exists(SwitchedOff.objects.all()))


def annotate_messages(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with facts about the messages of their chains.

    ``failed_count`` is the number of failed messages, and ``unread_since`` the time of the oldest unread message.
    """
    unread_messages = Message.objects.filter(chain_id=OuterRef("chain_id"), settled=False, fresh=True).order_by("id")
    return annotate_failed_messages(runs).annotate(unread_since=Subquery(unread_messages.values("created_at")[:1]))


def annotate_failed_messages(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``failed_count``, the number of failed messages of their chains."""
    failed_messages = Message.objects.failed().filter(chain_id=OuterRef("chain_id")).order_by().values("chain_id")
    return runs.annotate(failed_count=Coalesce(Subquery(failed_messages.annotate(n=Count("pk")).values("n")), 0))


def annotate_attempts(runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Annotate runs with ``attempt_count``, the number of the kept attempts of their activities that failed."""
    attempts = FailedAttempt.objects.filter(run=OuterRef("pk")).order_by().values("run")
    return runs.annotate(attempt_count=Coalesce(Subquery(attempts.annotate(n=Count("pk")).values("n")), 0))
