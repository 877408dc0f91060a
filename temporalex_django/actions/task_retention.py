"""Ends of Django tasks are kept as long as their backend says."""

from __future__ import annotations

import time

from django.db.models import QuerySet
from django.utils import timezone

from temporalex_django.models import EndedTask

#: How often a worker looks for those that were kept long enough, in seconds, and how many it deletes at once.
_EVERY = 10.0
_AT_ONCE = 1000
_looked: dict[str, float] = {}


def waiting(alias: str) -> bool:
    """Whether there are some that were kept long enough; a read, every ten seconds."""
    if time.monotonic() - _looked.get(alias, -_EVERY) < _EVERY:
        return False
    _looked[alias] = time.monotonic()
    return _old(alias).exists()


def forget(alias: str) -> bool:
    """Delete some of those. Whether there may be more."""
    found = [*_old(alias).order_by("keep_until").values_list("pk", flat=True)[:_AT_ONCE]]
    if found:
        EndedTask.objects.using(alias).filter(pk__in=found).delete()
    return len(found) == _AT_ONCE


def _old(alias: str) -> QuerySet[EndedTask]:
    return EndedTask.objects.using(alias).filter(keep_until__lt=timezone.now())
