"""The state of a project, from which the diagnoses of ``present/diagnosis.py`` are made.

The command ``doctor`` and alerts read it, so both have one definition of what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Max, Min, Q, QuerySet, Value
from django.db.models.fields.json import KT
from django.utils import timezone

from temporalex_django.access import runs_or_all
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.routing import cluster_module
from temporalex_django.conf import get_settings, uses_cluster
from temporalex_django.core import names as aliases
from temporalex_django.core.limits import QueuePartition
from temporalex_django.core.names import TABLES, TEMPORAL
from temporalex_django.db.human_tasks import absent_deciders, undecidable_tasks
from temporalex_django.db.run_reader import semi_join
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.activity_policy import FAULT
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import (
    ActivityTask,
    Chain,
    Ending,
    HumanTask,
    Instance,
    LostWorker,
    Message,
    Outbox,
    Schedule,
    SwitchedOff,
    Worker,
)
from temporalex_django.operations.fleet.stats import LiveWorkers
from temporalex_django.operations.fleet.switches import active_switches
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.read.failure_groups import failure_groups
from temporalex_django.operations.read.run_filters import annotate_failed_messages
from temporalex_django.operations.schedules.describe import load_schedule_problems
from temporalex_django.present.human_tasks import Absent
from temporalex_django.present.project_view import (
    ClusterView,
    DueRuns,
    FailedMessages,
    LostWorkerView,
    OutgoingMessages,
    OverdueTasks,
    ProjectView,
    StoppedRuns,
    UnclaimedActivities,
    UndecidableTasks,
    WorkerView,
)
from temporalex_django.present.view_models import DUE_GRACE_PERIOD, SwitchView

#: Limits: groups of each kind of finding, the largest first; open runs and human tasks that are counted.
_MAX_GROUPS, MAX_COUNTED_RUNS, MAX_COUNTED_TASKS = 20, 10_000, 1_000
#: Human tasks that were not decided in time are reported for this period.
_OVERDUE_PERIOD = timedelta(days=1)
#: A message that should have been sent for so long is reported.
_OUTBOX_PATIENCE = timedelta(seconds=30)
_TASK_COLUMNS = ("workflow", "workflow_id", "asked", "delegated", "four_eyes", "opened_at", "due_at", "closed_at")
Runs = QuerySet[Instance] | None


def load_project_state(
    alias: str, runs: Runs = None, schedules: QuerySet[Schedule] | None = None, **setup: Any
) -> ProjectView:
    """Return the state of a project with its runs and workers, read from the database ``alias``.

    ``setup`` has fields of the result that are not read here, such as failed checks. ``runs`` and ``schedules``
    restrict what is read; None means all. About twenty reads, and no lock. Of closed runs, only the newest failed ones
    are read.
    """
    return load_project_and_workers(alias, runs, schedules, **setup)[0]


def load_project_and_workers(
    alias: str, runs: Runs = None, schedules: QuerySet[Schedule] | None = None, **setup: Any
) -> tuple[ProjectView, LiveWorkers]:
    """Return the state of a project, as ``load_project_state`` does, and the live workers for further questions."""
    local_time, database_time = timezone.now(), DjangoStorage(alias).now()
    workers = [*Worker.objects.using(alias)]
    # For display, by the clock of the database: workers are declared dead by watching their heartbeats (see decision
    # 23).
    alive_workers = [entry for entry in workers if entry.expires_at > database_time and entry.buried_at is None]
    undrained_workers = [entry for entry in alive_workers if entry.drained_at is None]
    live = LiveWorkers.from_rows((entry.queues, entry.workflows, entry.activity_names) for entry in undrained_workers)
    # A grace period: what has just become due is no finding.
    late_before = database_time - DUE_GRACE_PERIOD
    tasks = [*_open_tasks(alias, runs)]
    project = ProjectView(
        **{"database": alias, "open_count": _count_open(alias, runs) if "open_count" not in setup else 0, **setup},
        workers=[
            WorkerView(
                name=str(entry),
                queues=entry.queues,
                is_alive=entry in alive_workers,
                last_seen_at=entry.beat_at,
                skew=entry.clock_skew,
                drained_id="" if entry.drained_at is None else str(entry.pk),
                drained_at=entry.drained_at,
            )
            for entry in workers
        ],
        expected_workers=get_settings().EXPECTED_WORKERS,
        lost_workers=[
            LostWorkerView(name=entry.name, lost_at=entry.lost_at, held_count=entry.held_count)
            for entry in lost_workers(alias, now=database_time)
        ],
        switches=[switch_view(entry) for entry in active_switches(alias, now=database_time)],
        due_runs=[*_due_runs(alias, runs, live, late_before)],
        stopped_runs=[*_stopped_runs(alias, runs)],
        unclaimed_activities=[*_unclaimed_activities(alias, runs, live, late_before)],
        failures=failure_groups(alias, runs, now=database_time),
        failed_messages=[*_failed_messages(alias, runs)],
        undecidable_tasks=[*_undecidable_tasks(alias, tasks)],
        open_tasks=len(tasks),
        late_tasks=sum(task.due_at is not None and task.due_at < database_time for task in tasks),
        outgoing_messages=[*_outgoing_messages(alias, runs, database_time)],
        overdue_tasks=[*_overdue_tasks(alias, runs, database_time)],
        schedule_problems=load_schedule_problems(alias, schedules, live, database_time, runs),
        skew=(local_time - database_time).total_seconds(),
        at=database_time,
    )
    return project, live


def lost_workers(alias: str, *, now: datetime, runs: Runs = None) -> list[LostWorker]:
    """Return the workers that were declared dead in the last day, the latest first.

    The activities that they held have empty ids if their run is not in ``runs``; None means all. One read, or two.
    """
    lost_since = now - policy.LOST_WORKER_PERIOD
    rows = LostWorker.objects.using(alias).filter(lost_at__gte=lost_since).order_by("-lost_at", "-pk")
    workers = [*rows[:_MAX_GROUPS]]
    activities = [entry for worker in workers for entry in worker.held_activities]
    if runs is not None and activities:
        visible = {
            str(pk) for pk in runs.filter(pk__in={entry["run_id"] for entry in activities}).values_list("pk", flat=True)
        }
        for entry in activities:
            if entry["run_id"] not in visible:
                entry["workflow_id"] = entry["run_id"] = ""
    return workers


def load_cluster_state(alias: str) -> ClusterView | None:
    """Return the state of the Temporal cluster; None if the project has none, or lacks the SDK.

    Asks the server, which may take a few seconds if it is away.
    """
    if not uses_cluster():
        return None
    try:
        health = cluster_module("health")
    except ImportError:
        return None  # a system check says so
    cluster: ClusterView = health.read_cluster(DjangoStorage(alias))
    return cluster


def open_runs(alias: str, runs: Runs) -> QuerySet[Instance]:
    """Return the current runs of all open chains, restricted to ``runs`` (None means all)."""
    visible_runs = runs_or_all(runs, alias=alias)
    return visible_runs.filter(chain__run_id=F("id"), chain__open_key__isnull=False)


def _count_open(alias: str, runs: Runs) -> int:
    # The slice bounds the count: a large project must not wait for it.
    if runs is None:
        return Chain.objects.using(alias).filter(open_key__isnull=False)[:MAX_COUNTED_RUNS].count()
    return open_runs(alias, runs).order_by()[:MAX_COUNTED_RUNS].count()


def count_open_by_backend(alias: str, runs: Runs) -> dict[str, int]:
    """Return the number of open chains on each backend that has some, counted up to ``MAX_COUNTED_RUNS`` each."""
    rows = open_runs(alias, runs).order_by()
    counts = {backend: rows.filter(chain__backend=backend)[:MAX_COUNTED_RUNS].count() for backend in (TABLES, TEMPORAL)}
    return {backend: count for backend, count in counts.items() if count}


def _due_runs(alias: str, runs: Runs, live: LiveWorkers, late_before: datetime) -> Iterator[DueRuns]:
    """Yield runs that are due or unread for too long, without blocked and paused ones, which wait for a person."""
    # Indexes of chains and messages find the few that are due among all open runs.
    due_chains = Chain.objects.using(alias).filter(due_at__lt=late_before, open_key__isnull=False)
    unread = Message.objects.using(alias).filter(fresh=True, settled=False, created_at__lt=late_before)
    run_ids = due_chains.order_by().values("run_id").union(unread.order_by().values("chain__run_id"))
    current_runs = open_runs(alias, runs).filter(blocked__isnull=True, paused__isnull=True)
    rows = semi_join(current_runs, run_ids).order_by()
    groups = rows.values("workflow", "version", "queue").annotate(count=Count("pk"), oldest=Min("chain__due_at"))
    for row in groups.order_by("-count", "workflow")[:_MAX_GROUPS]:
        group_key: dict[str, Any] = {"workflow": row["workflow"], "version": row["version"], "queue": row["queue"]}
        missing = live.missing_worker(**group_key)
        yield DueRuns(**group_key, count=row["count"], oldest=row["oldest"] or late_before, missing=missing)


def _stopped_runs(alias: str, runs: Runs) -> Iterator[StoppedRuns]:
    """Yield groups of runs whose class is off, then of paused runs."""
    current_runs, stored = open_runs(alias, runs).order_by(), Instance.objects.using(alias).order_by()
    groups = [
        # A run that is both is reported as blocked: unpausing it would not let it continue.
        semi_join(current_runs, ids.values("pk"))
        .annotate(code=Value(code))
        .values("workflow", "code")
        .annotate(count=Count("pk"), example=Max("workflow_id"), since=Min(KT(f"{mark}__since")))
        .values_list("code", "workflow", "count", "example", "since")
        # Indexes find the few that are stopped, and the rest is looked up for those alone.
        for code, mark, ids in (
            (WorkflowSwitchedOff.code, "blocked", stored.filter(blocked__code=WorkflowSwitchedOff.code)),
            ("paused", "paused", stored.filter(paused__isnull=False, blocked__isnull=True)),
        )
    ]
    # One read. The switched off ones come first.
    rows = sorted(groups[0].union(groups[1], all=True).order_by(), key=lambda row: (row[0] == "paused", row[1]))
    for code, workflow, count, example, since in rows[: 2 * _MAX_GROUPS]:
        yield StoppedRuns(workflow=workflow, code=code, count=count, example=example, since=_time_of_mark(since))


def _time_of_mark(text: str | None) -> datetime | None:
    """Return the time of a mark on a run; None if it has none that can be read."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return at if at.tzinfo else None


def _unclaimed_activities(
    alias: str, runs: Runs, live: LiveWorkers, late_before: datetime
) -> Iterator[UnclaimedActivities]:
    """Yield groups of overdue activities that no live worker can run."""
    tasks = ActivityTask.objects.using(alias)
    if runs is not None:
        tasks = tasks.filter(run__in=runs)
    groups: Any = tasks.values("activity", "queue").annotate(count=Count("pk"))
    groups = groups.order_by("-count", "activity")
    # Each task has a partition or has none: with these words, the database uses the two indexes of due tasks.
    late_groups = groups.filter(Q(line__isnull=True) | Q(line__isnull=False), owner=None, atomic=False)
    for row in late_groups.filter(due_at__lt=late_before).annotate(since=Min("due_at"))[:_MAX_GROUPS]:
        # Atomic activities are left out: they run in the turn, so every worker that takes the run has them.
        if not live.can_run_activity(row["activity"], queue=row["queue"]):
            yield UnclaimedActivities(**row, pollers=live.count_pollers(row["queue"]))


def _failed_messages(alias: str, runs: Runs) -> Iterator[FailedMessages]:
    """Yield signals whose handler failed, and updates whose validator raised."""
    visible_runs = runs_or_all(runs, alias=alias)
    failed_runs: Any = visible_runs.order_by().filter(
        Q(chain__messages__kind="signal", chain__messages__outcome_status="failed")
        | Q(chain__messages__kind="update", chain__messages__outcome_status=FAULT),
        chain__run_id=F("id"),
    )
    groups = failed_runs.values("workflow", name=F("chain__messages__name"), kind=F("chain__messages__kind")).annotate(
        count=Count("pk"), since=Min("chain__messages__answered_at"), example=Max("workflow_id")
    )
    for row in groups.order_by("kind", "-count", "workflow", "name")[: 2 * _MAX_GROUPS]:
        # A message without the time of its answer counts from now.
        yield FailedMessages(**{**row, "since": row["since"] or timezone.now()})


def _open_tasks(alias: str, runs: Runs) -> QuerySet[HumanTask]:
    """Return the human tasks that wait for a decision, as many as are counted, those that are due first at first.

    They have the columns alone of which the state is made.
    """
    open_tasks = HumanTask.objects.using(alias).open()
    if runs is not None:
        open_tasks = open_tasks.filter(run__in=runs.order_by().values("pk"))
    # The order of the index of open tasks, so that no more of them are read.
    ordered = open_tasks.order_by(F("due_at").asc(nulls_last=True), "opened_at", "pk")
    return ordered.only(*_TASK_COLUMNS)[:MAX_COUNTED_TASKS]


def _undecidable_tasks(alias: str, tasks: Sequence[HumanTask]) -> Iterator[UndecidableTasks]:
    """Yield those of the tasks that four eyes or absence let nobody decide."""
    # Users and groups are read once for all tasks.
    undecidable_ids = undecidable_tasks(tasks, alias=alias)
    absent = absent_deciders(tasks, alias=alias)
    groups: dict[tuple[str, tuple[Absent, ...]], list[HumanTask]] = {}
    for task in tasks:
        if task.pk in undecidable_ids or task.pk in absent:
            groups.setdefault((task.workflow, tuple(absent.get(task.pk, ()))), []).append(task)
    for (workflow, missing), group in [*groups.items()][:_MAX_GROUPS]:
        oldest = min(group, key=lambda task: (task.opened_at, task.pk))
        yield UndecidableTasks(
            workflow=workflow,
            count=len(group),
            since=oldest.opened_at,
            example=oldest.workflow_id,
            task=str(oldest.pk),
            absent=missing,
        )


def _overdue_tasks(alias: str, runs: Runs, now: datetime) -> Iterator[OverdueTasks]:
    """Yield groups of tasks that ended in the last day because nobody had decided in time."""
    tasks: Any = HumanTask.objects.using(alias).filter(ending=Ending.OVERDUE, closed_at__gte=now - _OVERDUE_PERIOD)
    if runs is not None:
        tasks = tasks.filter(run__in=runs.order_by().values("pk"))
    groups = tasks.order_by().values("workflow")
    groups = groups.annotate(count=Count("pk"), since=Min("closed_at"), example=Max("workflow_id"))
    for row in groups.order_by("-count", "workflow")[:_MAX_GROUPS]:
        yield OverdueTasks(**row)


def _outgoing_messages(alias: str, runs: Runs, now: datetime) -> Iterator[OutgoingMessages]:
    """Yield the overdue messages by destination. One read, if there are none."""
    rows = Outbox.objects.using(alias)
    if runs is not None:
        rows = rows.filter(chain__in=runs.values("chain"))
    late = rows.waiting().filter(Q(due_at__lte=now) | Q(tries__gt=0), created_at__lte=now - _OUTBOX_PATIENCE)
    oldest: dict[str, Outbox] = {}
    counts: Counter[str] = Counter()
    for row in late.order_by("id")[:MAX_COUNTED_TASKS]:
        oldest.setdefault(row.destination, row)
        counts[row.destination] += 1
    for destination, row in [*oldest.items()][:_MAX_GROUPS]:
        yield OutgoingMessages(
            destination=destination,
            count=counts[destination],
            since=row.created_at,
            has_failed=bool(row.error),
            example=str(row.pk),
        )


def newest_stuck_runs(alias: str, runs: Runs, *, limit: int) -> list[Instance]:
    """Return the newest open runs that a person should look at, as the filter ``stuck`` selects them."""
    stuck_runs = run_filters.stuck_runs(open_runs(alias, runs)).select_related("chain")
    return [*annotate_failed_messages(stuck_runs).order_by("-id")[:limit]]


# --- switch views -----------------------------------------------------------------------------------------------------
#
# Switches that are off, as sentences about runs need them, and which of them keeps an activity back.


#: Switches by kind, name and key. The key is empty for all but some holds.
SwitchViews = Mapping[tuple[str, str, str], SwitchView]


def switch_view(row: SwitchedOff) -> SwitchView:
    """Convert a row of ``SwitchedOff`` to a ``SwitchView``, from which sentences about runs are built."""
    return SwitchView(
        kind=row.kind,
        name=row.name,
        since=row.since,
        actor=row.by,
        reason=row.reason,
        key=row.key,
        until=row.until,
    )


def load_switches(alias: str, *, now: datetime) -> SwitchViews:
    """Read everything that is switched off, by ``(kind, name, concurrency key)``. One read.

    The key is empty, except for a hold that keeps back only the activities with one key. Holds that are over at the
    time ``now`` are left out.
    """
    return {
        (row.kind, row.name, row.key): switch_view(row)
        for row in SwitchedOff.objects.using(alias)
        if row.until is None or row.until > now
    }


def switch_of_run(switches: SwitchViews, run: Instance) -> SwitchView | None:
    """Return the switch that stops a run, by its workflow class or its queue, or None.

    A hold, which keeps back activities of a queue for a while, stops no runs. ``switches`` is the mapping that
    ``load_switches`` returns.
    """
    names = (run.workflow, aliases.current_name(run.workflow))
    class_switches = (switches.get(("workflow", name, "")) for name in names)
    return next(filter(None, class_switches), None) or switches.get(("queue", run.queue, ""))


def switch_of_task(switches: SwitchViews, task: ActivityTask, redactor: Redactor) -> SwitchView | None:
    """Return the switch that keeps an activity from starting, or None.

    ``switches`` is the mapping that ``load_switches`` returns. A hold keeps activities back until a time; its reason is
    the text of an error, so ``redactor`` decides if the user sees it.
    """
    if not switches:
        return None
    names = (task.activity, aliases.ACTIVITIES.get(task.activity, task.activity))
    activity_switches = (switches.get(("activity", name, "")) for name in names)
    switch = next(filter(None, activity_switches), None) or switches.get(("queue", task.queue, ""))
    if switch is not None or task.atomic:
        return switch
    key = QueuePartition.from_name(task.line).key if task.line else None
    holds = [switches.get(("hold", task.queue, its_key)) for its_key in {"", key or ""}]
    # An activity that is due only when the hold has ended, such as the one that asked for it, is not kept back by it.
    ends = [(hold.until, hold) for hold in holds if hold is not None and hold.until and hold.until > task.due_at]
    if not ends:
        return None
    _, last = max(ends, key=lambda end: end[0])
    return last if redactor.shows_error_text else replace(last, reason="")
