"""Statistics of queues and workers, and the number of workers that they ask for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, Min, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from temporalex_django.authoring import activity, django_tasks
from temporalex_django.authoring.workflow import concrete_classes
from temporalex_django.backends.host import host
from temporalex_django.backends.routing import cluster_module
from temporalex_django.conf import get_settings, queue_limits, uses_cluster
from temporalex_django.core.limits import NO_LIMITS, Limits, QueuePartition
from temporalex_django.core.names import TABLES, TEMPORAL
from temporalex_django.db.claims.limited import Switches, count_live, read_recent_starts, read_switches
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.scheduling import LimitUsage
from temporalex_django.liveness.health import WorkerLoad, activity_threads
from temporalex_django.models import ActivityTask, Instance, SwitchedOff, Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.switches import switchable_names
from temporalex_django.present.problems import no_code_text, no_poller_text
from temporalex_django.present.view_models import DUE_GRACE_PERIOD

# --- queue stats ------------------------------------------------------------------------------------------------------
#
# Figures about the work that waits in each queue, cheap enough for monitoring every few seconds.


#: Most rows that are counted of one kind in one queue.
MAX_COUNT = 10_000
#: Most queues of open runs on a cluster that are asked for.
MAX_QUEUES = 50
_RUNS = "from temporalex_chain where queue = %s and due_at <= {now}"
_TASKS = "from temporalex_activity_task where queue = %s and owner is null and not atomic and line is {which} and due_at <= {now}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """The current figures of a queue, in the tables or on a Temporal cluster. What a cluster does not tell is None.

    - ``due_runs`` and ``due_activities``: the numbers of those that wait for a worker, each counted up to
      ``MAX_COUNT``.
    - ``held_activities``: the number of the due activities that wait in a partition of the queue.
    - ``running``: the number of activities that workers have claimed.
    - ``workers``: the names of the live workers that poll the queue and are not drained.
    - ``oldest_due``: the time since which the oldest run or activity is due.
    - ``lag``: the seconds since ``oldest_due``; 0.0 if nothing is due.
    - ``kept_back``: how many of the due ones no worker may take now, because of a switch, a hold or a limit.
    - ``waiting_since``: like ``oldest_due``, without what is kept back.
    - ``backend``: where the work waits: "tables" or "temporal".
    - ``problem``: a sentence that says why a cluster tells nothing, or None.
    - ``off``: True if the queue is switched off.
    - ``held_until``: the time until which an activity asked to hold back all activities of the queue, or None.
    - ``concurrency``: the largest number of activities that run at a time, or None without a limit.
    - ``rate``: the largest number of starts within a period, as text such as ``100/m``, or None without a limit.
    """

    queue: str
    due_runs: int | None
    due_activities: int | None
    held_activities: int | None
    running: int | None
    workers: Sequence[str]
    oldest_due: datetime | None
    lag: float | None
    off: bool
    held_until: datetime | None
    concurrency: int | None
    rate: str | None
    kept_back: int = 0
    waiting_since: datetime | None = None
    backend: str = TABLES
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures(QueueRow):
    """The current figures of a queue in the tables, all of which are known."""

    due_runs: int
    due_activities: int
    held_activities: int
    running: int
    lag: float


def queue_figures(queues: Collection[str] | None = None) -> list[QueueFigures]:
    """Return the figures of queues, sorted by name.

    By default these are all queues that this process or a worker knows, and those in which something waits. At most
    five reads and those of ``_count_kept_back``; locks nothing.
    """
    store = storage()
    sql, limits = store.sql, queue_limits()
    queue_names = sorted(
        switchable_names(SwitchedOff.Switchable.QUEUE, alias=store.alias) if queues is None else queues
    )
    if not queue_names:
        return []
    now, parameters = sql.now_expression(None)
    parts = [_RUNS.format(now=now), _TASKS.format(which="null", now=now), _TASKS.format(which="not null", now=now)]
    columns = [f"(select min(due_at) {part})" for part in parts]
    columns += [f"(select count(*) from (select 1 {part} limit {MAX_COUNT}) x{n})" for n, part in enumerate(parts)]  # noqa: S608 - constants
    # Count behind a limit, so that a queue with a million waiting rows costs no more than one with ten thousand. All
    # queues go into one statement, which also returns the time of the database.
    queue_sql = f"select {', '.join(columns)}, {now}"
    rows = sql.select(
        " union all ".join([queue_sql] * len(queue_names)),
        [value for queue in queue_names for value in (*((queue, *parameters) * len(columns)), *parameters)],
        (*["timestamptz"] * 3, *["int8"] * 3, "timestamptz"),
    )
    running = dict(
        sql.select(
            "select queue, count(*) from temporalex_activity_task where owner is not null group by queue",
            [],
            ("text", "int8"),
        )
    )
    switches = read_switches(sql)
    *_, task_counts, partitioned_counts, _ = zip(*rows, strict=True)
    busy_queues = [
        queue for queue, *counts in zip(queue_names, task_counts, partitioned_counts, strict=True) if any(counts)
    ]
    kept_back = _count_kept_back(store, busy_queues, switches)
    live_workers = Worker.objects.using(store.alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    pollers = [
        (str(worker), {*worker.queues}) for worker in live_workers.only("host", "pid", "queues").order_by("host", "pid")
    ]
    return [
        _build_figures(
            queue,
            row,
            running.get(queue, 0),
            workers=[name for name, queues in pollers if queue in queues],
            switches=switches,
            limits=limits.get(queue, NO_LIMITS),
            kept_back=kept_back.get(queue, _KeptBack()),
        )
        for queue, row in zip(queue_names, rows, strict=True)
    ]


def all_queue_figures() -> list[QueueRow]:
    """Return the figures of all queues, those of a Temporal cluster beside those of the tables, sorted by name.

    Without a cluster it is ``queue_figures``. The cluster is asked for two seconds at most. Of its queues, those are
    left out in which nothing waits and that nobody polls, unless a class or an open run on the cluster uses them.
    """
    figures: list[QueueRow] = [*queue_figures()]
    if not uses_cluster():
        return figures
    store = storage()
    open_runs = Instance.objects.using(store.alias).filter(closed_at=None, cluster_id__isnull=False)
    used = {cls.task_queue for cls in concrete_classes() if (cls.backend or get_settings().BACKEND) == TEMPORAL}
    used |= {*open_runs.values_list("queue", flat=True).order_by().distinct()[:MAX_QUEUES]}
    names = used | {row.queue for row in figures}
    problem = _("The Temporal cluster has not answered in time.")
    try:
        answers = cluster_module("queues").read_queues(names, storage=store)
    except ImportError:
        answers, problem = None, _("The package temporalio is not installed, so the Temporal cluster is not asked.")
    switches, now = read_switches(store.sql), store.now()
    for name in sorted(used if answers is None else names):
        queue = None if answers is None else answers[name]
        if queue is None or name in used or queue.runs or queue.activities or queue.pollers:
            figures.append(_cluster_figures(name, queue, switches, now, problem=problem))
    return sorted(figures, key=lambda row: (row.queue, row.backend))


def _cluster_figures(name: str, queue: Any, switches: Switches, now: datetime, *, problem: str) -> QueueRow:
    """Build the figures from the server's ``queue``, None for a ``problem``. No worker polls it while off or held."""
    waits = [] if queue is None else [wait for wait in (queue.runs_wait, queue.activities_wait) if wait is not None]
    oldest_due = now - max(waits) if waits else None
    is_kept_back = name in switches.queues or name in switches.held_queues
    return QueueRow(
        queue=name,
        backend=TEMPORAL,
        due_runs=None if queue is None else queue.runs,
        due_activities=None if queue is None else queue.activities,
        held_activities=None,
        running=None,
        workers=() if queue is None else queue.pollers,
        oldest_due=oldest_due,
        lag=None if queue is None else max(waits, default=timedelta()).total_seconds(),
        off=name in switches.queues,
        held_until=switches.holds.get((name, "")),
        concurrency=None,
        rate=None,
        kept_back=queue.runs + queue.activities if queue is not None and is_kept_back else 0,
        waiting_since=None if is_kept_back else oldest_due,
        problem=problem if queue is None else None,
    )


class _KeptBack(NamedTuple):
    """Due activities of a queue that no worker may start now, because of their name, their key or a limit.

    ``number`` counts them, and ``oldest_other`` is the time since which the oldest other one is due.
    """

    number: int = 0
    oldest_other: datetime | None = None


class _DueGroup(NamedTuple):
    """Due activities of a queue with one name and one partition."""

    activity: str
    line: str | None
    number: int
    oldest: datetime

    def is_kept_back(self, queue: str, switches: Switches, usage: LimitUsage | None) -> bool:
        """Return True if no worker may start one of them now."""
        key = QueuePartition.from_name(self.line).key if self.line else None
        if self.activity in switches.activities or (key and (queue, key) in switches.holds):
            return True
        return usage is not None and usage.wait_seconds(self.activity, key) is not None


def _count_kept_back(store: DjangoStorage, queues: Sequence[str], switches: Switches) -> dict[str, _KeptBack]:
    """Return due activities that are off, held or limited, from ``MAX_COUNT`` of each queue; others are left out.

    No read without such queues. Otherwise one, two more for limits, and one for each queue with more activities.
    """
    queue_settings = queue_limits()
    limits = {queue: queue_settings.get(queue, NO_LIMITS) for queue in queues}
    concerned = [*queues]
    if not activity.limits_by_name and not switches.activities:
        concerned = [queue for queue in queues if limits[queue].is_limited or switches.holds_keys_of(queue)]
    groups_by_queue = _read_due_groups(store.alias, concerned)
    usages = _read_usages(store, {queue: limits[queue] for queue in groups_by_queue})
    return {
        queue: _kept_back_of(
            groups,
            {group for group in groups if group.is_kept_back(queue, switches, usages.get(queue))},
            due_tasks=_due_activities(store.alias, queue),
        )
        for queue, groups in groups_by_queue.items()
    }


def _kept_back_of(
    groups: Sequence[_DueGroup], kept_groups: set[_DueGroup], *, due_tasks: QuerySet[ActivityTask]
) -> _KeptBack:
    """Read ``due_tasks`` only if there may be more of them than the groups have."""
    other_groups = [group for group in groups if group not in kept_groups]
    oldest_other = min((group.oldest for group in other_groups), default=None)
    if kept_groups and sum(group.number for group in groups) >= MAX_COUNT:
        oldest_other = _oldest_without(due_tasks, kept_groups, other_groups)
    return _KeptBack(sum(group.number for group in kept_groups), oldest_other)


def _oldest_without(
    due_tasks: QuerySet[ActivityTask], kept_groups: Collection[_DueGroup], other_groups: Collection[_DueGroup]
) -> datetime | None:
    """Return since when the oldest other activity is due, without names and partitions that are wholly kept back.

    One read, whose length does not depend on the number of groups: a queue may have thousands of keys.
    """
    names = {group.activity for group in kept_groups} - {group.activity for group in other_groups}
    lines = {group.line for group in kept_groups if group.line} - {group.line for group in other_groups}
    others = due_tasks.exclude(activity__in=names).exclude(line__in=lines)
    return others.order_by("due_at").values_list("due_at", flat=True).first()


def _read_usages(store: DjangoStorage, limits: Mapping[str, Limits]) -> dict[str, LimitUsage]:
    """Return the use by queue; empty if neither these queues nor any activity has limits."""
    if not limits or not (activity.limits_by_name or any(limit.is_limited for limit in limits.values())):
        return {}
    live_counts, starts, now = [*count_live(store.sql)], read_recent_starts(store.sql), store.now().timestamp()
    return {
        queue: LimitUsage(queue, limit, activity.limits_by_name, live_counts, starts, now)
        for queue, limit in limits.items()
    }


def _due_activities(alias: str, queue: str) -> QuerySet[ActivityTask]:
    due_tasks = ActivityTask.objects.using(alias).filter(queue=queue, owner=None, atomic=False, due_at__lte=Now())
    return due_tasks.order_by()


def _read_due_groups(alias: str, queues: Sequence[str]) -> dict[str, list[_DueGroup]]:
    """Return the groups of queues in which activities are due. One read."""
    if not queues:
        return {}
    selections = [
        ActivityTask.objects.using(alias)
        .filter(pk__in=_due_activities(alias, queue).values("pk")[:MAX_COUNT])
        .order_by()
        .values_list("queue", "activity", "line")
        .annotate(number=Count("pk"), oldest=Min("due_at"))
        for queue in queues
    ]
    groups: dict[str, list[_DueGroup]] = {}
    for queue, *group in selections[0].union(*selections[1:], all=True).order_by():
        groups.setdefault(queue, []).append(_DueGroup(*group))
    return groups


def _build_figures(
    queue: str,
    row: Sequence[Any],
    running: int,
    *,
    workers: Sequence[str],
    switches: Switches,
    limits: Limits,
    kept_back: _KeptBack,
) -> QueueFigures:
    """Build them from a row of the statement in ``queue_figures``. ``kept_back`` ignores switches of the queue."""
    *oldest, runs, tasks, partitioned_tasks, now = row
    oldest_due = min((at for at in oldest if at is not None), default=None)
    oldest_run = oldest[0]
    is_off, all_tasks = queue in switches.queues, tasks + partitioned_tasks
    if is_off:
        kept_back_count, waiting = runs + all_tasks, []
    elif (queue, "") in switches.holds:
        kept_back_count, waiting = all_tasks, [oldest_run]
    else:
        kept_back_count = min(kept_back.number, all_tasks)
        waiting = [oldest_run, kept_back.oldest_other] if kept_back.number else oldest
    return QueueFigures(
        queue=queue,
        due_runs=runs,
        due_activities=tasks + partitioned_tasks,
        held_activities=partitioned_tasks,
        running=running,
        workers=workers,
        oldest_due=oldest_due,
        lag=0.0 if oldest_due is None else max(0.0, (now - oldest_due).total_seconds()),
        off=is_off,
        held_until=switches.holds.get((queue, "")),
        concurrency=limits.concurrency,
        rate=None if limits.rate is None else str(limits.rate),
        kept_back=kept_back_count,
        waiting_since=min((at for at in waiting if at is not None), default=None),
    )


# --- live workers -----------------------------------------------------------------------------------------------------
#
# The live workers, and the runs and activities that they can claim.


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkers:
    """The queues and the code of all live workers, to answer whether one of them can claim given work.

    ``workflow_versions`` has a pair for each worker: its queues, and the versions that it has of each class.
    ``activities`` has a pair for each worker: its queues, and the names of its activities. The methods read nothing.
    """

    workflow_versions: Sequence[tuple[frozenset[str], dict[str, frozenset[int]]]]
    activities: Sequence[tuple[frozenset[str], frozenset[str]]] = ()

    @classmethod
    def from_rows(
        cls, workers: Iterable[tuple[Sequence[str], Mapping[str, Sequence[int]], Sequence[str]]]
    ) -> LiveWorkers:
        """Build the object from a tuple for each worker: its queues, its versions by class, and its activities.

        On a host that does the work of workers itself, the result can claim everything.
        """
        if host().run_pending is not None:
            return _WorkingHost(workflow_versions=())
        rows = list(workers)
        return cls(
            workflow_versions=[
                (frozenset(queues), {name: frozenset(versions) for name, versions in workflows.items()})
                for queues, workflows, _ in rows
            ],
            activities=[(frozenset(queues), frozenset(names)) for queues, _, names in rows],
        )

    def missing_worker(self, *, workflow: str, version: int, queue: str) -> str | None:
        """Return why no live worker can claim a run of that class, version and queue, or None if one can.

        The text is a noun phrase that begins with "a worker: ", because messages continue "waiting for" with it.
        """
        pollers = [workflows for queues, workflows in self.workflow_versions if queue in queues]
        if not pollers:
            return f"a worker: {no_poller_text(queue)}"
        if not any(version in workflows.get(workflow, ()) for workflows in pollers):
            return f"a worker: {no_code_text(f'{workflow} (version {version})', queue=queue, pollers=len(pollers))}"
        return None

    def missing_if_overdue(self, run: Instance, *, since: datetime | None, now: datetime) -> str | None:
        """Return why no live worker can claim a run that has been due since ``since`` (``missing_worker``), or None.

        It is None if a worker can claim the run, if nothing is due (``since`` None), and in the first seconds after
        ``since``: a live worker may need them.
        """
        if since is None or now - since < DUE_GRACE_PERIOD:
            return None
        return self.missing_worker(workflow=run.workflow, version=run.version, queue=run.queue)

    def unpolled_tasks(self) -> Q:
        """Return a condition for the activity tasks that no live worker can claim, by their queue and name."""
        polled = Q(pk__in=[])
        for queues, names in {*self.activities}:
            polled |= Q(queue__in=sorted(queues), activity__in=sorted(names))
        return ~polled

    def count_pollers(self, queue: str) -> int:
        """Return the number of live workers that poll a queue, whatever code they have."""
        return sum(queue in queues for queues, _ in self.workflow_versions)

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        """Return True if a live worker polls the queue and has the code of the activity."""
        # A worker imports the module of a Django task when it gets one, so its row need not name the task.
        is_django_task = activity.startswith(f"{django_tasks.KIND}:")
        return any(queue in queues and (is_django_task or activity in names) for queues, names in self.activities)


class _WorkingHost(LiveWorkers):
    """The ``LiveWorkers`` of a host that does the work of workers itself: it can claim every run and activity."""

    def missing_worker(self, *, workflow: str, version: int, queue: str) -> str | None:
        return None

    def unpolled_tasks(self) -> Q:
        return Q(pk__in=[])

    def can_run_activity(self, activity: str, *, queue: str) -> bool:
        return True


def live_workers_from(workers: Iterable[Worker], *, now: datetime) -> LiveWorkers:
    """Return the ``LiveWorkers`` among rows that were read already.

    These are the workers whose lease is valid at ``now``, that nobody has declared dead and that are not drained.
    """
    active_workers = [worker for worker in workers if worker.buried_at is None and worker.drained_at is None]
    leased_workers = [worker for worker in active_workers if worker.expires_at > now]
    return LiveWorkers.from_rows((worker.queues, worker.workflows, worker.activity_names) for worker in leased_workers)


def live_workers(*, alias: str) -> LiveWorkers:
    """Read the workers whose lease is valid, that nobody has declared dead and that are not drained. One read."""
    leased_workers = Worker.objects.using(alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    return LiveWorkers.from_rows(leased_workers.values_list("queues", "workflows", "activity_names"))


# --- scaling ----------------------------------------------------------------------------------------------------------
#
# The number of workers that each queue needs, for autoscalers: computed from lag, rates and durations.


#: Seconds that an attempt is assumed to take in a queue of which no worker has measured one.
UNMEASURED_ATTEMPT_SECONDS = 1.0
#: Seconds that it is assumed to take to advance a run, as long as no worker has measured it.
UNMEASURED_RUN_SECONDS = 0.005
#: The part of its capacity that a worker should use; the rest is for peaks.
UTILISATION = 0.8
#: However late a queue is, what waits is to be done in no less than this part of the target.
_SHORTEST_DRAIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """The number of workers that a queue needs, and the figures from which it was computed.

    - ``workers_needed``: the number of workers; 0 if nothing is due and nothing runs.
    - ``need``: the same before it is rounded up. Add the needs of queues that the same workers poll.
    - ``workers``: the number of live workers that poll the queue and are not drained.
    - ``lag``, ``due_runs``, ``due_activities``, ``running``: those of ``QueueFigures``.
    - ``attempt_rate`` and ``attempt_seconds``: attempts of activities that end in a second, and their mean duration;
      None if no worker has measured any.
    - ``run_seconds``: the mean time to advance a run; None if no worker has measured it.
    - ``slots``: the number of such activities that one worker runs at a time.
    """

    queue: str
    workers_needed: int
    need: float
    workers: int
    lag: float
    due_runs: int
    due_activities: int
    running: int
    attempt_rate: float | None
    attempt_seconds: float | None
    run_seconds: float | None
    slots: float


def queue_demands() -> list[QueueDemand]:
    """Return the demand of all queues, sorted by name. At most seven reads; locks nothing."""
    return demands_of(queue_figures())


def demands_of(figures: Sequence[QueueFigures]) -> list[QueueDemand]:
    """Return the demand of queues whose figures were read already. Reads the rows of the live workers."""
    live_workers = Worker.objects.using(storage().alias).filter(expires_at__gt=Now(), buried_at=None, drained_at=None)
    loads = [(frozenset(names), load) for names, load in live_workers.values_list("queues", "load") if load is not None]
    target, slots = get_settings().TARGET_LAG_SECONDS, activity_threads()
    return [
        compute_demand(
            queue, [load for names, load in loads if queue.queue in names], target=target, default_slots=slots
        )
        for queue in figures
    ]


def compute_demand(
    figures: QueueFigures, loads: Sequence[WorkerLoad], *, target: float, default_slots: int
) -> QueueDemand:
    """Return the demand of one queue. Reads nothing.

    ``loads`` are those of the workers that poll the queue. ``target`` is the number of seconds within which work that
    is due should begin. ``default_slots`` is the number of activities that a worker runs at a time if ``loads`` is
    empty.

    The need has two parts for activities and two for runs. One is what runs all the time: rate times duration (Little's
    law). The other is what waits: it should be done within the target, or sooner if the queue is late already.
    Activities that wait because of a limit or a hold do not count, because more workers would not start them.
    """
    measured = _combine(figures.queue, loads)
    share = measured.share or 1 / default_slots
    drain = max(target - figures.lag, target * _SHORTEST_DRAIN)
    waiting = _startable_activities(figures)
    running = max((measured.rate or 0.0) * (measured.attempt_seconds or 0.0), float(figures.running))
    running += waiting * (measured.attempt_seconds or UNMEASURED_ATTEMPT_SECONDS) / drain
    running = min(running, float("inf") if figures.concurrency is None else float(figures.concurrency))
    due_runs = 0 if figures.off else figures.due_runs
    turns = sum(load["busy"] for load in loads) + due_runs * (measured.run_seconds or UNMEASURED_RUN_SECONDS) / drain
    need = round(max(running * share, turns) / UTILISATION, 4)
    has_work = bool(figures.running or waiting or due_runs)
    return QueueDemand(
        queue=figures.queue,
        workers_needed=max(math.ceil(need), int(has_work)),
        need=need,
        workers=len(figures.workers),
        lag=figures.lag,
        due_runs=figures.due_runs,
        due_activities=figures.due_activities,
        running=figures.running,
        attempt_rate=measured.rate,
        attempt_seconds=measured.attempt_seconds,
        run_seconds=measured.run_seconds,
        slots=round(1 / share, 1),
    )


class _CombinedLoad(NamedTuple):
    """The load of all workers of a queue: the sum of their rates, and their mean times; None if nobody measured it."""

    rate: float | None
    attempt_seconds: float | None
    share: float | None
    run_seconds: float | None


def _combine(queue: str, loads: Sequence[WorkerLoad]) -> _CombinedLoad:
    """Combine the measured loads; a worker that is busier counts more."""
    measured = [load["queues"][queue] for load in loads if queue in load["queues"]]
    return _CombinedLoad(
        rate=round(sum(queue_load["rate"] for queue_load in measured), 4) if measured else None,
        attempt_seconds=_mean([(queue_load["seconds"], queue_load["rate"]) for queue_load in measured]),
        share=_mean([(queue_load["share"], queue_load["rate"]) for queue_load in measured]),
        run_seconds=_mean([(seconds, load["busy"]) for load in loads if (seconds := load["run_seconds"]) is not None]),
    )


def _startable_activities(figures: QueueFigures) -> int:
    """Return the number of due activities that no limit or switch keeps from a further worker."""
    if figures.off or figures.held_until is not None:
        return 0
    return figures.due_activities - figures.held_activities


def _mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of ``(value, weight)``."""
    weight = sum(part for _, part in pairs)
    if not pairs:
        return None
    if not weight:
        return round(sum(value for value, _ in pairs) / len(pairs), 6)
    return round(sum(value * part for value, part in pairs) / weight, 6)
