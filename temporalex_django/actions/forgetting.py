"""What workers forget once it was kept long enough: answers to requests, bulk jobs that are done, ends of Django tasks.

The audit stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.models import BulkItem, BulkJob, EndedTask, KeptAnswer

#: How long an answer is kept, and how long a bulk job that is done: one that was stopped may be resumed, and stays.
ANSWERS_FOR = timedelta(hours=24)
JOBS_FOR = timedelta(days=90)
#: How often a worker looks for each kind, in seconds, and how many rows it deletes at once.
_EVERY = 60.0
_AT_ONCE = 500


class Forgetting:
    """One kind of rows. ``old(alias)`` are those that were kept long enough, the oldest first."""

    def __init__(self, old: Callable[[str], QuerySet[Any]]) -> None:
        self._old = old
        self._looked: dict[str, float] = {}

    def waiting(self, alias: str) -> bool:
        """Whether there are some; a read, once a minute."""
        if time.monotonic() - self._looked.get(alias, -_EVERY) < _EVERY:
            return False
        self._looked[alias] = time.monotonic()
        return self._old(alias).exists()

    def work(self, alias: str) -> bool:
        """Delete some of them. Whether there may be more."""
        rows = self._old(alias)
        found = [*rows.values_list("pk", flat=True)[:_AT_ONCE]]
        if found:
            rows.order_by().filter(pk__in=found).delete()
        return len(found) == _AT_ONCE


class ForgettingJobs(Forgetting):
    """Bulk jobs: one has up to a million items, which go first."""

    def work(self, alias: str) -> bool:
        """Delete items of the oldest of them, or the job when it has no more. Whether there may be more."""
        job = self._old(alias).first()
        if job is None:
            return False
        items = BulkItem.objects.using(alias)
        some = [*items.filter(job_id=job.pk).values_list("pk", flat=True)[:_AT_ONCE]]
        if some:
            items.filter(pk__in=some).delete()
        else:
            job.delete()
        return True


def _old_answers(alias: str) -> QuerySet[KeptAnswer]:
    return KeptAnswer.objects.using(alias).filter(at__lt=timezone.now() - ANSWERS_FOR).order_by("at")


def _old_jobs(alias: str) -> QuerySet[BulkJob]:
    done = BulkJob.objects.using(alias).filter(state=BulkJob.State.DONE)
    return done.filter(finished_at__lt=timezone.now() - JOBS_FOR).order_by("pk")


def _old_ends(alias: str) -> QuerySet[EndedTask]:
    return EndedTask.objects.using(alias).filter(keep_until__lt=timezone.now()).order_by("keep_until")


ANSWERS = Forgetting(_old_answers)
JOBS = ForgettingJobs(_old_jobs)
TASK_ENDS = Forgetting(_old_ends)
