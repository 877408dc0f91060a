"""Bulk jobs that are done are kept for a while; then they go with what became of their runs. The audit stays."""

from __future__ import annotations

import time
from datetime import timedelta

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.models import BulkItem, BulkJob

#: How long a job that is done is kept. One that was stopped may be resumed, and stays.
KEPT = timedelta(days=90)
#: How often a worker looks for those that were kept long enough, in seconds, and how many items it deletes at once.
_EVERY = 60.0
_AT_ONCE = 500
_looked: dict[str, float] = {}


def waiting(alias: str) -> bool:
    """Whether there are jobs that were kept long enough; a read, once a minute."""
    if time.monotonic() - _looked.get(alias, -_EVERY) < _EVERY:
        return False
    _looked[alias] = time.monotonic()
    return _old(alias).exists()


def forget(alias: str) -> bool:
    """Delete items of the oldest of them, or the job when it has no more. Whether there may be more."""
    job = _old(alias).order_by("pk").first()
    if job is None:
        return False
    items = BulkItem.objects.using(alias)
    some = [*items.filter(job_id=job.pk).values_list("pk", flat=True)[:_AT_ONCE]]
    if some:
        items.filter(pk__in=some).delete()
    else:
        job.delete()
    return True


def _old(alias: str) -> QuerySet[BulkJob]:
    done = BulkJob.objects.using(alias).filter(state=BulkJob.State.DONE)
    return done.filter(finished_at__lt=timezone.now() - KEPT)
