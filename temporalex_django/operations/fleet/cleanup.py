"""The deletion of rows that were kept long enough: answers, bulk jobs, results of background tasks, and slots.

Workers delete them in small batches as a part of their maintenance. The audit log is never deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.models import BulkItem, BulkJob, EndedTask, KeptAnswer, ScheduleSlot

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
