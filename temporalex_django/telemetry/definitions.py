"""The table of metrics, with a row for each. Exporters and the page of the reference are made from it.

It imports nothing of the package and has no I/O. ``telemetry.recording`` records the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

#: Most combinations of open label values (names of classes, activities and queues) that one metric has in one process.
MAX_NAMES = 200
#: The value of the open labels of everything beyond ``MAX_NAMES``.
OTHER = "other"
#: The exporters, with a module that the extra of the same name installs.
EXPORTERS = {"prometheus": "prometheus_client", "otel": "opentelemetry"}
#: Seconds between two samples of the facts of the database.
FACTS_SECONDS = 15.0
#: Seconds after which a sample is too old to be exported.
FACTS_MAX_AGE = 60.0
#: Facts count at most this many rows of one kind: of a queue, or of a class.
MAX_COUNT = 10_000


class Kind(Enum):
    """The kinds of metrics, by their names in the formats of exporters."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# Both are compared by identity: they are keys in the path of each value, and a hash of all fields costs more than the
# value does.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Label:
    """A label of a metric. ``values`` are all values that it can have; without any, its values are names."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """The definition of a metric.

    ``buckets`` are the upper bounds of a histogram, in seconds, without infinity. ``is_fact`` is True if the metric is
    sampled from the database by one worker, and not recorded where something happens.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    is_fact: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @property
    def max_series(self) -> int:
        """The largest number of label sets that a process exports; a histogram has several series for each."""
        has_names = any(not label.values for label in self.labels)
        return prod(len(label.values) for label in self.labels if label.values) * (MAX_NAMES + 1 if has_names else 1)


WORKFLOW = Label(name="workflow")
ACTIVITY = Label(name="activity")
QUEUE = Label(name="queue")

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LONG = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_DELAYS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)

ACTIVATIONS = Metric(
    name="temporalex_activations_total",
    kind=Kind.COUNTER,
    help="Activations of runs that were committed. open: the run continues; closed: its code ended it; blocked: it cannot be advanced.",
    labels=(WORKFLOW, Label(name="outcome", values=("open", "closed", "blocked"))),
)
ACTIVATION_SECONDS = Metric(
    name="temporalex_activation_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="Seconds that the code of a run took in one activation that was committed.",
    labels=(WORKFLOW,),
    buckets=_SHORT,
)
ACTIVITY_ATTEMPTS = Metric(
    name="temporalex_activity_attempts_total",
    kind=Kind.COUNTER,
    help="Attempts of activities whose end was committed. retried: another attempt follows; completed, failed and timed_out: the run has the result; dropped: the result came when the run no longer waited for it; deferred: the attempt does not count.",
    labels=(
        ACTIVITY,
        Label(name="outcome", values=("completed", "failed", "timed_out", "dropped", "retried", "deferred")),
    ),
)
ACTIVITY_SECONDS = Metric(
    name="temporalex_activity_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="Seconds from the start to the end of an attempt of an activity, however it ended.",
    labels=(ACTIVITY,),
    buckets=_LONG,
)
UPDATES = Metric(
    name="temporalex_updates_total",
    kind=Kind.COUNTER,
    help="Updates, resumes and decisions that this process sent and waited for. refused: the run does not accept any now, for example because it is paused or closed.",
    labels=(WORKFLOW, Label(name="outcome", values=("completed", "rejected", "failed", "timeout", "refused", "error"))),
)
UPDATE_SECONDS = Metric(
    name="temporalex_update_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="Seconds that the sender of an update waited for its outcome.",
    labels=(WORKFLOW,),
    buckets=_LONG,
)
CONFLICTS = Metric(
    name="temporalex_conflicts_total",
    kind=Kind.COUNTER,
    help="Transactions that were rolled back, or did not get the lock of a run, and have to be tried again.",
    labels=(Label(name="place", values=("turn", "atomic", "update")),),
)
CACHE_HITS = Metric(
    name="temporalex_cache_hits_total",
    kind=Kind.COUNTER,
    help="Runs of a turn that were in memory and needed no rebuild.",
)
REBUILDS = Metric(
    name="temporalex_rebuilds_total",
    kind=Kind.COUNTER,
    help="Runs that were rebuilt from their histories, because they were not in memory or not current there.",
)
WORKER_SLOTS = Metric(
    name="temporalex_worker_slots",
    kind=Kind.GAUGE,
    help="Places for activities of a worker, by lane: threads for plain functions, tasks for async ones.",
    labels=(Label(name="lane", values=("threads", "tasks")), Label(name="state", values=("used", "free"))),
)
LEASES_LOST = Metric(
    name="temporalex_leases_lost_total",
    kind=Kind.COUNTER,
    help="How often a worker of this process was declared dead while it was alive, and lost its activities to other workers.",
)
DEAD_WORKERS = Metric(
    name="temporalex_dead_workers_total",
    kind=Kind.COUNTER,
    help="Other workers that a worker of this process declared dead.",
)
SCHEDULE_DELAY = Metric(
    name="temporalex_schedule_delay_seconds",
    kind=Kind.HISTOGRAM,
    help="Seconds from the time of a slot to the start of its run. Backfills and triggers do not count.",
    labels=(WORKFLOW,),
    buckets=_DELAYS,
)
TURN_DATABASE_SECONDS = Metric(
    name="temporalex_turn_database_seconds",
    kind=Kind.HISTOGRAM,
    help="Seconds that the transaction of a turn of many runs took, without the time in which code of runs ran or was replayed.",
    buckets=_SHORT,
)
HUMAN_TASKS_CLOSED = Metric(
    name="temporalex_human_tasks_closed_total",
    kind=Kind.COUNTER,
    help="Human tasks that were closed.",
    labels=(WORKFLOW, Label(name="ending", values=("decided", "overdue", "cancelled", "run_closed"))),
)
LABELS_LIMITED = Metric(
    name="temporalex_metric_names_limited_total",
    kind=Kind.COUNTER,
    help=f"Values that were recorded under the name {OTHER}, because the metric has {MAX_NAMES} names already.",
    labels=(Label(name="metric"),),
)
VALUES_DROPPED = Metric(
    name="temporalex_metric_values_dropped_total",
    kind=Kind.COUNTER,
    help="Values that another exporter of this process refused with an exception.",
)

QUEUE_LAG = Metric(
    name="temporalex_queue_lag_seconds",
    kind=Kind.GAUGE,
    help="Seconds for which the oldest due run or activity of a queue has been due; 0 if nothing is due.",
    labels=(QUEUE,),
    is_fact=True,
)
QUEUE_BACKLOG = Metric(
    name="temporalex_queue_backlog",
    kind=Kind.GAUGE,
    help=f"Runs and activities that are due and are waiting for a worker, each counted up to {MAX_COUNT}.",
    labels=(QUEUE, Label(name="kind", values=("runs", "activities"))),
    is_fact=True,
)
QUEUE_RUNNING = Metric(
    name="temporalex_queue_running_activities",
    kind=Kind.GAUGE,
    help="Activities of a queue that workers have claimed.",
    labels=(QUEUE,),
    is_fact=True,
)
QUEUE_WORKERS = Metric(
    name="temporalex_queue_workers",
    kind=Kind.GAUGE,
    help="Live workers that poll a queue and are not drained.",
    labels=(QUEUE,),
    is_fact=True,
)
QUEUE_WORKERS_NEEDED = Metric(
    name="temporalex_queue_workers_needed",
    kind=Kind.GAUGE,
    help="Workers that a queue needs, computed from its lag, backlog, rates and durations; not rounded, so that you can add those of several queues.",
    labels=(QUEUE,),
    is_fact=True,
)
OPEN_RUNS = Metric(
    name="temporalex_open_runs",
    kind=Kind.GAUGE,
    help=f"Open runs by class. blocked and paused: each counted up to {MAX_COUNT} for a class; open: the others. If the project has more than {MAX_COUNT} open runs, open is {MAX_COUNT} under the name {OTHER}. Runs whose id need not be unique do not count as open.",
    labels=(WORKFLOW, Label(name="status", values=("open", "blocked", "paused"))),
    is_fact=True,
)
HUMAN_TASKS_OPEN = Metric(
    name="temporalex_human_tasks_open",
    kind=Kind.GAUGE,
    help=f"Open human tasks, counted up to {MAX_COUNT}.",
    is_fact=True,
)
HUMAN_TASKS_OVERDUE = Metric(
    name="temporalex_human_tasks_overdue",
    kind=Kind.GAUGE,
    help=f"Open human tasks whose due time has passed, counted up to {MAX_COUNT}.",
    is_fact=True,
)
SCHEDULES_LATE = Metric(
    name="temporalex_schedules_lag_seconds",
    kind=Kind.GAUGE,
    help="Seconds for which the most overdue schedule has been due; 0 if none is due.",
    is_fact=True,
)
OUTBOX_AGE = Metric(
    name="temporalex_outbox_age_seconds",
    kind=Kind.GAUGE,
    help="Seconds for which the oldest outgoing message has been overdue; 0 if none is waiting. Dead letters do not count.",
    is_fact=True,
)
OUTBOX_DEAD_LETTERS = Metric(
    name="temporalex_outbox_dead_letters",
    kind=Kind.GAUGE,
    help=f"Outgoing messages that are not sent again unless a person requests it, counted up to {MAX_COUNT}.",
    is_fact=True,
)
WORKERS = Metric(
    name="temporalex_workers",
    kind=Kind.GAUGE,
    help="Workers by state. late: the lease has expired, or the worker was declared dead and its row is kept for a while.",
    labels=(Label(name="state", values=("live", "drained", "late")),),
    is_fact=True,
)

#: All metrics, in the order of the reference.
METRICS: tuple[Metric, ...] = (
    ACTIVATIONS,
    ACTIVATION_SECONDS,
    ACTIVITY_ATTEMPTS,
    ACTIVITY_SECONDS,
    UPDATES,
    UPDATE_SECONDS,
    CONFLICTS,
    CACHE_HITS,
    REBUILDS,
    WORKER_SLOTS,
    LEASES_LOST,
    DEAD_WORKERS,
    SCHEDULE_DELAY,
    TURN_DATABASE_SECONDS,
    HUMAN_TASKS_CLOSED,
    LABELS_LIMITED,
    VALUES_DROPPED,
    QUEUE_LAG,
    QUEUE_BACKLOG,
    QUEUE_RUNNING,
    QUEUE_WORKERS,
    QUEUE_WORKERS_NEEDED,
    OPEN_RUNS,
    HUMAN_TASKS_OPEN,
    HUMAN_TASKS_OVERDUE,
    SCHEDULES_LATE,
    OUTBOX_AGE,
    OUTBOX_DEAD_LETTERS,
    WORKERS,
)
