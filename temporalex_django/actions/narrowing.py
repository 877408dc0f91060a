"""What narrows runs to those that somebody means: the same in code, over REST and in the admin.

Each function takes a queryset of runs and gives a narrower one; nothing is read. What turns rewrite has no index, so
open runs are told apart by looking at them; all else is found by an index or by where a run's id is among the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Exists, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, StrIndex
from django.utils import timezone

from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.models import ActivityTask, Chain, Instance
from temporalex_django.models.instance import ENDED

Runs = QuerySet[Instance]

#: A run is due, and nobody has taken it for so long.
_LATE = timedelta(seconds=60)
_MANY_ATTEMPTS = 5
#: The clock of who starts a run makes its id, that of the database says when it was: so far apart they never are.
_CLOCKS = timedelta(days=1)
_LAST = 1 << 48
#: How the words begin in which a run says what it waits for, by the kinds of ``authoring.listing.WAITS``.
_WORDS = {
    "message": ("phase: ", "signal ", "step "),
    "activity": ("activity ", "step "),
    "timer": ("timer", "sleep"),
    "child": ("child ", "workflow "),
}


def with_status(runs: Runs, statuses: Collection[str]) -> Runs:
    """Runs of one of these statuses. Those of runs that ended without a result are in an index."""
    wanted = sorted(statuses)
    if ENDED.issuperset(wanted):
        return runs.filter(ended=wanted[0]) if len(wanted) == 1 else runs.filter(ended__in=wanted)
    return runs.filter(status=wanted[0]) if len(wanted) == 1 else runs.filter(status__in=wanted)


def stuck(runs: Runs) -> Runs:
    """Runs that somebody should look at: blocked, tried in vain again and again, or due and taken by nobody."""
    late, alias = timezone.now() - _LATE, runs.db
    blocked = Instance.objects.using(alias).filter(blocked__isnull=False).order_by().values("pk")
    return runs.filter(
        pk__in=blocked.union(
            ActivityTask.objects.using(alias).filter(attempt__gt=_MANY_ATTEMPTS).order_by().values("run_id"),
            Chain.objects.using(alias).filter(due_at__lt=late, closed=False, paused=False).order_by().values("run_id"),
        )
    )


def waiting_for(runs: Runs, kind: str) -> Runs:
    """Open runs that wait for a thing of this kind (one of ``authoring.listing.WAITS``)."""
    found = runs.alias(words=Cast("waiting_for", TextField()))
    wanted = Q()
    for word in _WORDS[kind]:
        wanted |= Q(words__contains=f'"{word}')
    if kind == "activity":  # without this every run would be looked at
        found = found.filter(Exists(ActivityTask.objects.using(runs.db).filter(run_id=OuterRef("pk"))))
    return found.exclude(status__in=CLOSED_STATUSES).filter(wanted)


def created_after(runs: Runs, moment: datetime) -> Runs:
    """Runs that were started then or later: their ids sort by it, so no other is read."""
    return runs.filter(created_at__gte=moment, pk__gte=_first_id(moment - _CLOCKS))


def created_before(runs: Runs, moment: datetime) -> Runs:
    """Runs that were started before."""
    return runs.filter(created_at__lt=moment, pk__lt=_first_id(moment + _CLOCKS))


def closed_before(runs: Runs, moment: datetime) -> Runs:
    """Runs that were closed before, so that they were started before, too."""
    return runs.filter(closed_at__lt=moment, pk__lt=_first_id(moment + _CLOCKS))


def tagged(runs: Runs, tag: str) -> Runs:
    """Runs whose class has that tag."""
    words = json.dumps(tag, ensure_ascii=False)
    at = StrIndex(Cast("tags", TextField()), Value(words))  # LIKE of SQLite takes capitals for small letters
    return runs.alias(tag_at=at).filter(tags__isnull=False, tag_at__gt=0)


def id_begins(runs: Runs, prefix: str) -> Runs:
    """Runs whose business id begins so, capitals told from small letters; found by an index."""
    if not connections[runs.db].features.has_case_insensitive_like:
        return runs.filter(workflow_id__startswith=prefix)
    # there text is in the order of its code points, and the last of these is in no id
    return runs.filter(workflow_id__gte=prefix, workflow_id__lt=f"{prefix}{chr(sys.maxunicode)}")


#: By the names of ``authoring.listing.FILTERS``.
FILTERS: Mapping[str, Callable[[Runs, Any], Runs]] = {
    "id": lambda runs, value: runs.filter(workflow_id=value),
    "id_prefix": id_begins,
    "status": with_status,
    "version": lambda runs, value: runs.filter(version=value),
    "queue": lambda runs, value: runs.filter(queue=value),
    "blocked": lambda runs, value: runs.filter(blocked__isnull=not value),
    "paused": lambda runs, value: runs.filter(paused__isnull=not value),
    "stuck": lambda runs, value: stuck(runs) if value else runs.exclude(pk__in=stuck(_every(runs)).values("pk")),
    "waits": waiting_for,
    "subject": lambda runs, value: runs.for_subject(value),  # type: ignore[attr-defined] # of its own queryset class
    "tag": tagged,
    "created_after": created_after,
    "created_before": created_before,
    "closed_after": lambda runs, value: runs.filter(closed_at__gte=value),
    "closed_before": closed_before,
}


def narrowed(runs: Runs, filters: Mapping[str, Any]) -> Runs:
    """Those for which all filters hold; names and values are those of ``authoring.listing.checked``."""
    for name, value in filters.items():
        runs = FILTERS[name](runs, value)
    return runs


def _every(runs: Runs) -> Runs:
    return Instance.objects.using(runs.db).order_by()


def _first_id(moment: datetime) -> UUID:
    """Below the ids that are drawn from then on."""
    milliseconds = int(moment.timestamp() * 1000)
    return UUID(int=min(max(milliseconds, 0), _LAST - 1) << 80)
