"""The metrics that are facts of the database: one worker of the project samples them every ``FACTS_SECONDS``.

All reads use indexes and are bounded, and none locks anything. Lag and backlog are those of ``queue_figures``.
"""

from __future__ import annotations

import logging
import time

from django.db import Error as DatabaseError
from django.db.models import Min
from django.db.models.functions import Now

from temporalex_django.backends.host import host
from temporalex_django.core.failures import error_line
from temporalex_django.db.outbox import oldest_due
from temporalex_django.models import HumanTask, Outbox, Schedule, SwitchedOff, Worker
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.stats import demands_of, queue_figures
from temporalex_django.operations.fleet.switches import switchable_names
from temporalex_django.telemetry import definitions
from temporalex_django.telemetry.definitions import FACTS_SECONDS, MAX_COUNT, MAX_NAMES, OTHER
from temporalex_django.telemetry.recording import Facts, recorder

logger = logging.getLogger("temporalex_django.operations")

#: Counts the blocked or the paused runs of each class that has any, up to a limit for each class. The recursion asks a
#: partial index for the next name, as ``switches.waiting_queues`` does.
_MARKED_RUNS = (
    "with recursive name(workflow) as (select min(workflow) from temporalex_instance where {mark} is not null union all"  # noqa: S608 - constants
    " select (select min(i.workflow) from temporalex_instance i where i.{mark} is not null and i.workflow > name.workflow)"
    " from name where name.workflow is not null)"
    " select workflow, (select count(*) from (select 1 from temporalex_instance i where i.{mark} is not null"
    f" and i.workflow = name.workflow limit {MAX_COUNT}) marked) from name where workflow is not null limit {MAX_NAMES}"
)
#: Counts the open runs by class, without the blocked and the paused ones. The last column is the number of rows that
#: were looked at. The order makes the database use the index of open keys, and a join would let it read all runs.
_OPEN_RUNS = (
    "with open_chain as (select run_id from temporalex_chain where open_key is not null"  # noqa: S608 - constants
    f" order by open_key limit {MAX_COUNT + 1})"
    " select workflow, count(*), (select count(*) from open_chain) from (select (select i.workflow from temporalex_instance i"
    " where i.id = open_chain.run_id and i.blocked is null and i.paused is null) as workflow from open_chain) found"
    " where workflow is not null group by workflow"
)

_sampled_at = float("-inf")


def is_due() -> bool:
    """Return True if this process samples the facts, and the last sample was ``FACTS_SECONDS`` ago."""
    return recorder.samples_facts and time.monotonic() - _sampled_at >= FACTS_SECONDS


def sample(alias: str) -> bool:
    """Sample the facts if that is due, and publish them. Returns False: there is no more to do now.

    A sample that fails is logged, and the next one is taken at its time.
    """
    global _sampled_at  # noqa: PLW0603 - one sampler in a process
    if not is_due():
        return False
    _sampled_at = time.monotonic()
    try:
        facts = read_facts(alias)
    except DatabaseError as exc:
        if host().storage(alias).is_connection_lost(exc):
            raise
        logger.warning("the metrics of the database could not be sampled: %s", error_line(exc))
        return False
    if recorder.samples_facts:  # it may have lost its lease meanwhile
        recorder.publish_facts(facts)
    return False


def read_facts(alias: str) -> Facts:
    """Read all facts of the database, and return their values by metric and label values."""
    # In the order of the index of open tasks, so that closed ones are not read.
    tasks = HumanTask.objects.using(alias).open().order_by("due_at", "opened_at", "id")
    return {
        **_queue_facts(),
        definitions.OPEN_RUNS: _run_facts(alias),
        definitions.HUMAN_TASKS_OPEN: {(): float(tasks[:MAX_COUNT].count())},
        definitions.HUMAN_TASKS_OVERDUE: {(): float(tasks.filter(due_at__lt=Now())[:MAX_COUNT].count())},
        definitions.SCHEDULES_LATE: {(): _schedule_lag(alias)},
        definitions.OUTBOX_AGE: {(): _outbox_age(alias)},
        definitions.OUTBOX_DEAD_LETTERS: {(): float(Outbox.objects.using(alias).refused()[:MAX_COUNT].count())},
        definitions.WORKERS: _worker_facts(alias),
    }


def _queue_facts() -> Facts:
    """Return first the queues that workers poll, then others in which something waits."""
    alias = storage().alias
    polled_queues = {
        queue for queues in Worker.objects.using(alias).values_list("queues", flat=True) for queue in queues
    }
    names = switchable_names(SwitchedOff.Switchable.QUEUE, alias=alias)
    figures = queue_figures(sorted(names, key=lambda name: (name not in polled_queues, name))[:MAX_NAMES])
    demands = demands_of(figures)
    return {
        definitions.QUEUE_LAG: {(queue.queue,): queue.lag for queue in figures},
        definitions.QUEUE_BACKLOG: {
            **{(queue.queue, "runs"): float(queue.due_runs) for queue in figures},
            **{(queue.queue, "activities"): float(queue.due_activities) for queue in figures},
        },
        definitions.QUEUE_RUNNING: {(queue.queue,): float(queue.running) for queue in figures},
        definitions.QUEUE_WORKERS: {(queue.queue,): float(len(queue.workers)) for queue in figures},
        definitions.QUEUE_WORKERS_NEEDED: {(demand.queue,): demand.need for demand in demands},
    }


def _run_facts(alias: str) -> dict[tuple[str, ...], float]:
    """Return the numbers of open runs by class and status."""
    sql = host().storage(alias).sql
    numbers: dict[tuple[str, ...], float] = {}
    for workflow, number, seen in sql.select(_OPEN_RUNS, [], ("text", "int8", "int8")):
        # The rows are in no random order, so a part of them says nothing about the classes.
        if seen > MAX_COUNT:
            numbers[OTHER, "open"] = float(MAX_COUNT)
            break
        numbers[workflow, "open"] = float(number)
    for status in ("blocked", "paused"):
        for workflow, number in sql.select(_MARKED_RUNS.format(mark=status), [], ("text", "int8")):
            numbers[workflow, status] = float(number)
    return numbers


def _schedule_lag(alias: str) -> float:
    """Return for how many seconds the most overdue schedule has been due; 0.0 if none is."""
    rows = Schedule.objects.using(alias).filter(next_at__lte=Now())
    first, now = rows.aggregate(first=Min("next_at"))["first"], host().storage(alias).now()
    return 0.0 if first is None else max(0.0, (now - first).total_seconds())


def _outbox_age(alias: str) -> float:
    """Return for how many seconds the oldest outgoing message has been overdue; 0.0 if none is."""
    store = host().storage(alias)
    oldest = oldest_due(store)
    return 0.0 if oldest is None else max(0.0, (store.now() - oldest).total_seconds())


def _worker_facts(alias: str) -> dict[tuple[str, ...], float]:
    now = host().storage(alias).now()
    numbers: dict[tuple[str, ...], float] = {("live",): 0.0, ("drained",): 0.0, ("late",): 0.0}
    for worker in Worker.objects.using(alias).only("expires_at", "buried_at", "drained_at"):
        if worker.buried_at is not None or worker.expires_at <= now:
            state = "late"
        else:
            state = "live" if worker.drained_at is None else "drained"
        numbers[state,] += 1
    return numbers
