"""Operations on the fleet: switches, drains and clean-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from temporalex_django.access import VIEW_PAYLOAD, policy
from temporalex_django.authoring import activity
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import AuditSubject
from temporalex_django.conf import queue_limits, uses_cluster
from temporalex_django.core.names import fit_note, quoted
from temporalex_django.core.payloads.codec import check_text
from temporalex_django.db import background_tasks
from temporalex_django.errors import ActionNotPossible, WorkerNotFound
from temporalex_django.models import (
    ActivityTask,
    BulkItem,
    BulkJob,
    EndedTask,
    KeptAnswer,
    ScheduleSlot,
    SwitchedOff,
    Worker,
)
from temporalex_django.operations import audit
from temporalex_django.operations.base import CODE, Action, Actor
from temporalex_django.present.problems import unstopped_text

# --- switches ---------------------------------------------------------------------------------------------------------
#
# Switch off a queue, an activity or a workflow class for all workers.


_MAX_NAMES = 10
#: Tables whose rows wait for a worker, each with the condition of its partial index.
_WAITING_SOURCES = (
    ("chains", "temporalex_chain", "due_at is not null"),
    ("tasks", "temporalex_activity_task", "owner is null and not atomic and line is null"),
    ("lines", "temporalex_activity_task", "owner is null and not atomic and line is not null"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A queue, activity or workflow class that is switched off, or was before the command that reports it.

    ``kind`` says which of these it is, or is "hold": an activity then asked to keep back all activities of the queue
    ``name``, or only those with the concurrency key ``key``, until the time ``until``. ``since``, ``by`` and ``reason``
    say when, by whom and why it was switched off.
    """

    kind: str
    name: str
    since: datetime
    by: str
    reason: str
    key: str = ""
    until: datetime | None = None


def active_switches(alias: str, *, now: datetime | None = None) -> QuerySet[SwitchedOff]:
    """Return the rows of everything that is switched off now: queues, activities, workflow classes and holds.

    A hold keeps back activities of a queue until a time. Holds whose time has passed, by the clock of the database, are
    left out; ``now`` is its time, if the caller has read it.
    """
    return SwitchedOff.objects.using(alias).filter(Q(until=None) | Q(until__gt=now or host().storage(alias).now()))


def redact_holds(switches: Iterable[SwitchedOff], user: Person | None) -> list[SwitchedOff]:
    """Return the rows of switches, with the reasons of holds removed unless the user may see payloads.

    A hold keeps back activities of a queue until a time, and its reason is the message of the error with which an
    activity asked for it. ``user`` None is code, which sees everything. The rows are changed in place; do not save
    them.
    """
    rows = list(switches)
    if user is None or policy().allows(user, VIEW_PAYLOAD):
        return rows
    for row in rows:
        if row.until is not None:
            row.reason = ""
    return rows


class SwitchOff(Action[SwitchedOff]):
    """Operation that switches a queue, an activity or a workflow class off, and returns the row of the switch.

    ``kind`` is "queue", "activity" or "workflow", and ``switch_name`` is the name of what is switched off.

    Workers notice it within a second. Work that is under way continues to its end. If a queue is off, no runs and no
    activities are claimed from it. If an activity is off, it is not started, while other activities of its queue are.
    Runs of a workflow class that is off stop where they are, and refuse updates. Whatever arrives meanwhile waits.

    Raises ``ActionNotPossible`` if it is off already, for a name that neither this process nor a worker knows, for an
    atomic activity, and for a hold, which only activities set. Writes one row, in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "switch_off"
    permission: ClassVar[str] = "use_switches"
    forced: ClassVar[bool] = True

    def __init__(self, kind: str, switch_name: str, *, reason: str = "", key: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        if kind not in SwitchedOff.Switchable.values:
            raise ActionNotPossible(
                f"there is no switch for {quoted(kind)}: choose one of {', '.join(SwitchedOff.Switchable.values)}"
            )
        self.kind = kind
        self.switch_name = check_text(switch_name, label=f"the name of the {kind}")
        self.reason = fit_note(reason, label="the reason")
        self.key = check_text(key, label="the key")
        if self.key and kind != SwitchedOff.Switchable.HOLD:
            raise ActionNotPossible("only holds have a key: leave out the key")

    def perform(self) -> SwitchedOff:
        if self.kind == SwitchedOff.Switchable.HOLD:
            raise ActionNotPossible(
                "only activities hold work back, by RetryLater(hold=...): switch the queue or the activity off instead"
            )
        alias = self.storage.alias
        names = switchable_names(self.kind, alias=alias)
        if self.switch_name not in names and not self._is_enqueued():
            suggestions = ""
            if names:
                suggestions = f". Known names: {', '.join(sorted(names)[:_MAX_NAMES])}"
            raise ActionNotPossible(
                f"neither this process nor a worker knows the {self.kind} {quoted(self.switch_name)}{suggestions}"
            )
        local_activity = None
        if self.kind == SwitchedOff.Switchable.ACTIVITY:
            local_activity = activity.registry.get(self.switch_name)
        if local_activity is not None and local_activity.options_set.atomic:
            raise ActionNotPossible(
                f"{self.switch_name} is atomic: it runs in the turns of its runs, and no worker claims it. "
                "Switch off the workflow classes that call it"
            )
        with self.storage.transaction():
            # The unique constraint decides if two people switch at once; the second one gets the error below.
            row, is_new = SwitchedOff.objects.using(alias).get_or_create(
                kind=self.kind,
                name=self.switch_name,
                defaults={
                    "since": self.storage.now(),
                    "by": audit.actor_columns(self.by)["actor_name"],
                    "reason": self.reason,
                },
            )
            if not is_new:
                raise ActionNotPossible(f"the {self.kind} {self.switch_name} is already switched off")
            self.record_switch(self.reason)
        return row

    @property
    def notice(self) -> str:
        """A sentence about the work that the switch does not stop; empty if it stops everything."""
        return unstopped_text(self.kind) if uses_cluster() else ""

    def _is_enqueued(self) -> bool:
        """Return True if a background task of that name waits: this process may not know the name yet."""
        waiting_tasks = ActivityTask.objects.using(self.storage.alias).filter(chain=None, activity=self.switch_name)
        return self.kind == SwitchedOff.Switchable.ACTIVITY and waiting_tasks.exists()

    def record_switch(self, reason: str) -> None:
        """Write the audit row of this operation, with the kind and the name of what is switched off or on."""
        workflow = self.switch_name if self.kind == SwitchedOff.Switchable.WORKFLOW else ""
        subject = AuditSubject(run_id=None, workflow=workflow, workflow_id="")
        key = {"key": self.key} if self.key else {}
        self.record(subject, reason=reason, kind=self.kind, name=self.switch_name, **key)


def waiting_queues(*, alias: str) -> list[str]:
    """Return the names of the queues in which runs or activities wait for a worker.

    One read, which looks at an index once for each queue.
    """
    sql = host().storage(alias).sql
    return [
        name
        for (name,) in sql.select(
            " union ".join(_distinct_queues_sql(*source) for source in _WAITING_SOURCES), [], ("text",)
        )
    ]


def _distinct_queues_sql(name: str, table: str, where: str) -> str:
    """Select the names of the queues. ``name`` is an alias, different for each SELECT of a UNION."""
    # ``select distinct`` would read all waiting rows. This recursion asks the index for the next larger name each time,
    # so a queue with a million rows costs one look (a loose index scan).
    first = f"select min(queue) from {table} where {where}"  # noqa: S608 - constants
    return (
        f"select queue from (with recursive {name}(queue) as ({first} union all"  # noqa: S608
        f" select ({first} and queue > {name}.queue) from {name} where {name}.queue is not null)"
        f" select queue from {name}) {name}_all where queue is not null"
    )


def switchable_names(kind: str, *, alias: str) -> set[str]:
    """Return the names that can be switched off; ``kind`` is "queue", "activity" or "workflow" (for classes).

    This process or a live worker knows them. For queues, those in which something waits are included.
    """
    rows = [*Worker.objects.using(alias).filter(buried_at=None)]
    names: Iterable[str]
    if kind == SwitchedOff.Switchable.WORKFLOW:
        names = [*workflows.registry, *(name for row in rows for name in row.workflows)]
    elif kind == SwitchedOff.Switchable.ACTIVITY:
        names = [*activity.registry, *(name for row in rows for name in row.activity_names)]
    else:
        workflow_queues = (cls.task_queue for cls in workflows.concrete_classes())
        activity_queues = (definition.options_set.queue or "default" for definition in activity.registry.values())
        task_queues = background_tasks.backend_queues() or ()
        names = [
            *workflow_queues,
            *activity_queues,
            *task_queues,
            *queue_limits(),
            *(name for row in rows for name in row.queues),
        ]
        names += waiting_queues(alias=alias)
    return set(names)


class SwitchOn(SwitchOff):
    """Operation that switches a queue, an activity or a workflow class on again, and returns the row that was deleted.

    It also ends a hold before its time: ``kind`` is then "hold", ``switch_name`` the queue, and ``key`` the concurrency
    key or empty. The activity that asked for the hold still waits for its own next attempt.

    Work that has waited continues within a second. Raises ``ActionNotPossible`` if it is not off. Runs in the caller's
    transaction. Audited.
    """

    name: ClassVar[str] = "switch_on"

    def perform(self) -> SwitchedOff:
        with self.storage.transaction():
            rows = SwitchedOff.objects.using(self.storage.alias).select_for_update()
            row = rows.filter(kind=self.kind, name=self.switch_name, key=self.key).first()
            if row is None and self.kind == SwitchedOff.Switchable.HOLD:
                suffix = f" with the key {quoted(self.key)}" if self.key else ""
                raise ActionNotPossible(f"no hold is in effect for the queue {self.switch_name}{suffix}")
            if row is None:
                raise ActionNotPossible(f"the {self.kind} {self.switch_name} is not switched off")
            SwitchedOff.objects.using(self.storage.alias).filter(pk=row.pk).delete()
            self.record_switch(self.reason)
        return row

    @property
    def notice(self) -> str:
        return ""


# --- drain ------------------------------------------------------------------------------------------------------------
#
# Drain a worker, so that it takes no new work, from any process; and undrain it.


class DrainWorker(Action[Worker]):
    """Operation that drains a worker and returns its row.

    The worker finishes the work that it has. Then it idles until it is stopped or undrained. It notices the change at
    its next heartbeat, within a third of ``LEASE_SECONDS``.

    Raises ``WorkerNotFound``, and ``ActionNotPossible`` if the worker is drained already. Locks the row of the worker,
    in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "drain_worker"
    permission: ClassVar[str] = "drain_worker"
    forced: ClassVar[bool] = True
    drains: ClassVar[bool] = True

    def __init__(self, worker: UUID | str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.worker = worker
        self.reason = fit_note(reason, label="the reason")

    def perform(self) -> Worker:
        alias = self.storage.alias
        with self.storage.transaction():
            row = _lock_live_worker(self.worker, alias=alias)
            if (row.drained_at is not None) == self.drains:
                raise ActionNotPossible(
                    f"the worker {row} {'is already drained' if self.drains else 'already accepts work'}"
                )
            row.drained_at = timezone.now() if self.drains else None
            row.save(using=alias, update_fields=["drained_at"])
            self.record(AuditSubject(run_id=None, workflow="", workflow_id=""), reason=self.reason, worker=str(row))
        return row


def _lock_live_worker(worker_ref: UUID | str, *, alias: str) -> Worker:
    """Lock the row unless the worker was declared dead. Raises ``WorkerNotFound``, also for text that is no id."""
    try:
        pk = UUID(str(worker_ref))
    except ValueError:
        raise WorkerNotFound(f"there is no worker {quoted(str(worker_ref))}") from None
    row = Worker.objects.using(alias).select_for_update().filter(pk=pk, buried_at=None).first()
    if row is None:
        raise WorkerNotFound(f"there is no worker {quoted(str(worker_ref))}")
    return row


class UndrainWorker(DrainWorker):
    """Operation that lets a drained worker take work again, and returns its row.

    Raises ``WorkerNotFound``, and ``ActionNotPossible`` if the worker is not drained. Locks the row of the worker, in
    the caller's transaction. Audited.
    """

    name: ClassVar[str] = "undrain_worker"
    drains: ClassVar[bool] = False


# --- cleanup ----------------------------------------------------------------------------------------------------------
#
# The deletion of rows that were kept long enough: answers, bulk jobs, results of background tasks, and slots.
#
# Workers delete them in small batches as a part of their maintenance. The audit log is never deleted.


#: Retention of answers, of finished bulk jobs and of slots of schedules. A job that was stopped may be resumed, so it
#: is kept.
ANSWER_RETENTION = timedelta(hours=24)
JOB_RETENTION = timedelta(days=90)
SLOT_RETENTION = timedelta(days=90)
#: Seconds between two checks of a worker for each kind, and the rows that it deletes at a time.
_CHECK_INTERVAL = 60.0
_BATCH_SIZE = 500


class CleanupJob:
    """Deletes expired rows of one kind, such as the results of background tasks, in a worker's maintenance.

    ``expired_rows`` takes a database alias and returns the rows that may be deleted, oldest first.
    """

    def __init__(self, expired_rows: Callable[[str], QuerySet[Any]]) -> None:
        self._expired_rows = expired_rows
        self._checked_at: dict[str, float] = {}

    def has_rows(self, alias: str) -> bool:
        """Return True if the database has expired rows to delete.

        It reads at most once per minute. If it is called again within that minute, it returns False.
        """
        if time.monotonic() - self._checked_at.get(alias, -_CHECK_INTERVAL) < _CHECK_INTERVAL:
            return False
        self._checked_at[alias] = time.monotonic()
        return self._expired_rows(alias).exists()

    def delete_batch(self, alias: str) -> bool:
        """Delete at most 500 expired rows; return True if there may be more."""
        rows = self._expired_rows(alias)
        row_ids = [*rows.values_list("pk", flat=True)[:_BATCH_SIZE]]
        # Delete by key, without the order: a DELETE has none, and a small batch holds its locks only for a moment.
        if row_ids:
            rows.order_by().filter(pk__in=row_ids).delete()
        return len(row_ids) == _BATCH_SIZE


class BulkJobCleanup(CleanupJob):
    """Deletes bulk jobs that finished more than ``JOB_RETENTION`` ago.

    A job has up to a million items (one for each run). They are deleted first, in batches.
    """

    def delete_batch(self, alias: str) -> bool:
        """Delete a batch of items of the oldest expired bulk job, or the job itself if it has no items left.

        Returns False if there is no expired job.
        """
        job = self._expired_rows(alias).first()
        if job is None:
            return False
        items = BulkItem.objects.using(alias)
        item_ids = [*items.filter(job_id=job.pk).values_list("pk", flat=True)[:_BATCH_SIZE]]
        if item_ids:
            items.filter(pk__in=item_ids).delete()
        else:
            # No item is left, so the cascade of this delete finds nothing to collect.
            job.delete()
        return True


def _expired_answers(alias: str) -> QuerySet[KeptAnswer]:
    return KeptAnswer.objects.using(alias).filter(at__lt=timezone.now() - ANSWER_RETENTION).order_by("at")


def _expired_jobs(alias: str) -> QuerySet[BulkJob]:
    done = BulkJob.objects.using(alias).filter(state=BulkJob.State.DONE)
    return done.filter(finished_at__lt=timezone.now() - JOB_RETENTION).order_by("pk")


def _expired_task_results(alias: str) -> QuerySet[EndedTask]:
    return EndedTask.objects.using(alias).filter(keep_until__lt=timezone.now()).order_by("keep_until")


def _expired_slots(alias: str) -> QuerySet[ScheduleSlot]:
    slots = ScheduleSlot.objects.using(alias).filter(decided_at__lt=timezone.now() - SLOT_RETENTION, running=False)
    return slots.exclude(outcome="waiting").order_by("decided_at")


ANSWERS = CleanupJob(_expired_answers)
JOBS = BulkJobCleanup(_expired_jobs)
TASK_ENDS = CleanupJob(_expired_task_results)
SLOTS = CleanupJob(_expired_slots)
