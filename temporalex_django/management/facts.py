"""What ``doctor`` looks at: settings, checks, tables, workers, and counts of runs that stand still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core import checks as django_checks
from django.db import Error as DatabaseError
from django.db import connections
from django.db.models import Count, F, Max, Min, Q, QuerySet
from django.db.models.fields.json import KT
from django.utils import timezone

from temporalex_django import checks, conf
from temporalex_django.actions import narrowing
from temporalex_django.actions.failure_groups import failure_groups
from temporalex_django.actions.live_workers import LiveWorkers
from temporalex_django.authoring import workflow as workflows
from temporalex_django.db.deciders import undecidable_tasks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.outcomes import FAULT
from temporalex_django.models import ActivityTask, Chain, HumanTask, Instance, Message, SwitchedOff, Worker
from temporalex_django.present.diagnosis import (
    ActivitiesNow,
    CheckFailed,
    MessagesFailed,
    ProjectNow,
    RunsDue,
    RunsStopped,
    TasksLonely,
    WorkerNow,
)
from temporalex_django.present.facts import PATIENCE, SwitchNow

#: Kinds of findings that are read at most, the largest first; open runs and human tasks that are counted at most.
_MOST, _COUNTED, _COUNTED_TASKS = 20, 10_000, 1_000
_SETTINGS = ("temporalex_django.E001", "temporalex_django.E002")
Runs = QuerySet[Instance] | None


def project_now(runs: Runs = None) -> ProjectNow:
    """The project as it stands; of runs those among ``runs``.

    About ten reads, which see no closed runs but the newest that failed. No lock.
    """
    alias = conf.read()[0].DATABASE
    failed = [*_checks()]
    about: dict[str, Any] = {
        "database": alias,
        "wrong_settings": [one.text for one in failed if one.id in _SETTINGS],
        "checks": [one for one in failed if one.id not in _SETTINGS],
        "classes": sum(1 for _ in workflows.concrete_classes()),
    }
    if about["wrong_settings"]:
        return ProjectNow(**about, unapplied=())
    try:
        connections[alias].ensure_connection()
    except DatabaseError as exc:
        return ProjectNow(**about, unreachable=(str(exc).splitlines() or [type(exc).__name__])[0].rstrip("."))
    if missing := checks.unapplied(alias):
        return ProjectNow(**about, unapplied=missing)
    before, database = timezone.now(), DjangoStorage(alias).now()
    workers = [*Worker.objects.using(alias)]
    alive = [one for one in workers if one.expires_at > database and one.buried_at is None]
    takers = [one for one in alive if one.drained_at is None]
    live = LiveWorkers.from_rows((one.queues, one.workflows, one.activity_names) for one in takers)
    late = database - PATIENCE
    return ProjectNow(
        **about,
        open=Chain.objects.using(alias).filter(open_key__isnull=False)[:_COUNTED].count(),
        workers=[
            WorkerNow(
                name=str(one),
                queues=one.queues,
                alive=one in alive,
                seen=one.beat_at,
                skew=one.clock_skew,
                drained="" if one.drained_at is None else str(one.pk),
            )
            for one in workers
        ],
        off=[
            SwitchNow(kind=one.kind, name=one.name, since=one.since, who=one.by, reason=one.reason)
            for one in SwitchedOff.objects.using(alias)
        ],
        due=[*_due(alias, runs, live, late)],
        stopped=[*_stopped(alias, runs)],
        activities=[*_activities(alias, runs, live, late)],
        failures=failure_groups(alias, runs, now=database),
        messages=[*_messages(alias, runs)],
        lonely=[*_lonely(alias, runs)],
        skew=(before - database).total_seconds(),
    )


def _checks() -> Iterator[CheckFailed]:
    for one in django_checks.run_checks(tags=[checks.TAG]):
        error = one.level >= django_checks.ERROR
        yield CheckFailed(id=str(one.id), error=error, text=str(one.msg), hint=str(one.hint or ""))


def open_runs(alias: str, runs: Runs) -> QuerySet[Instance]:
    """Present runs of open chains, among those."""
    there = Instance.objects.using(alias) if runs is None else runs
    return there.filter(chain__run_id=F("id"), chain__open_key__isnull=False)


def _due(alias: str, runs: Runs, live: LiveWorkers, late: datetime) -> Iterator[RunsDue]:
    """Due for a while, or with a message that nobody has read for a while; blocked and paused ones wait by right."""
    unread = Message.objects.using(alias).filter(fresh=True, settled=False, created_at__lt=late).values("chain")
    there = open_runs(alias, runs).filter(blocked__isnull=True, paused__isnull=True)
    rows = there.filter(Q(chain__due_at__lt=late) | Q(chain__in=unread)).order_by()
    groups = rows.values("workflow", "version", "queue").annotate(count=Count("pk"), oldest=Min("chain__due_at"))
    for row in groups.order_by("-count", "workflow")[:_MOST]:
        named: dict[str, Any] = {"workflow": row["workflow"], "version": row["version"], "queue": row["queue"]}
        missing = live.missing_worker(**named)
        yield RunsDue(**named, count=row["count"], oldest=row["oldest"] or late, missing=missing)


def _stopped(alias: str, runs: Runs) -> Iterator[RunsStopped]:
    there = open_runs(alias, runs).order_by()
    rows: Any = there.filter(blocked__isnull=False).annotate(code=KT("blocked__code")).values("workflow", "code")
    for row in rows.annotate(count=Count("pk"), example=Max("workflow_id"))[:_MOST]:
        yield RunsStopped(**{**row, "code": row["code"] or "blocked"})
    rows = there.filter(paused__isnull=False, blocked__isnull=True).values("workflow")
    for row in rows.annotate(count=Count("pk"), example=Max("workflow_id"))[:_MOST]:
        yield RunsStopped(**row, code="paused")


def _activities(alias: str, runs: Runs, live: LiveWorkers, late: datetime) -> Iterator[ActivitiesNow]:
    tasks = ActivityTask.objects.using(alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs)
    groups: Any = tasks.values("activity", "queue").annotate(count=Count("pk"))
    groups = groups.order_by("-count", "activity")
    for row in groups.filter(owner=None, atomic=False, due_at__lt=late).annotate(since=Min("due_at"))[:_MOST]:
        if not live.can_run_activity(row["activity"], queue=row["queue"]):
            yield ActivitiesNow(**row, pollers=live.count_pollers(row["queue"]))


def _messages(alias: str, runs: Runs) -> Iterator[MessagesFailed]:
    """Failed messages, and updates whose validator failed, of chains whose present run is among those."""
    there = Instance.objects.using(alias) if runs is None else runs
    for kind, status in (("signal", "failed"), ("update", FAULT)):
        failed: Any = there.order_by().filter(
            chain__run_id=F("id"), chain__messages__kind=kind, chain__messages__outcome_status=status
        )
        groups = failed.values("workflow", name=F("chain__messages__name")).annotate(
            count=Count("pk"), since=Min("chain__messages__answered_at"), example=Max("workflow_id")
        )
        for row in groups.order_by("-count", "workflow", "name")[:_MOST]:
            yield MessagesFailed(kind=kind, **{**row, "since": row["since"] or timezone.now()})


def _lonely(alias: str, runs: Runs) -> Iterator[TasksLonely]:
    """Human tasks under four eyes that nobody may decide, of the oldest open ones."""
    there = HumanTask.objects.using(alias).open().exclude(four_eyes="")
    if runs is not None:
        there = there.filter(run__in=runs.order_by().values("pk"))
    tasks = [*there.order_by("opened_at", "pk")[:_COUNTED_TASKS]]
    found = undecidable_tasks(tasks, alias=alias)
    groups: dict[str, list[HumanTask]] = {}
    for task in tasks:
        if task.pk in found:
            groups.setdefault(task.workflow, []).append(task)
    for workflow, some in [*groups.items()][:_MOST]:
        yield TasksLonely(
            workflow=workflow,
            count=len(some),
            since=some[0].opened_at,
            example=some[0].workflow_id,
            task=str(some[0].pk),
        )


def stuck(alias: str, runs: Runs, *, most: int) -> list[Instance]:
    """The newest runs that somebody should look at, as lists and the admin mean it."""
    return [*narrowing.stuck_runs(open_runs(alias, runs)).select_related("chain").order_by("-id")[:most]]
