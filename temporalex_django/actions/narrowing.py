"""What narrows runs to those that somebody means: the same in code, over REST and in the admin.

Each function takes a queryset of runs and gives a narrower one; nothing is read but, by ``stuck``, the workers. What
turns rewrite has no index, so open runs are told apart by looking at them; all else is found by an index or by where a
run's id is among the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import Exists, FilteredRelation, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast, Coalesce, StrIndex
from django.utils import timezone

from temporalex_django.actions.live_workers import live_workers
from temporalex_django.authoring.listing import WAIT_PREFIXES
from temporalex_django.authoring.searching import SearchCondition
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.db.semi_join import semi_join
from temporalex_django.errors import WorkflowSwitchedOff
from temporalex_django.models import ActivityTask, Chain, Instance, Message, SearchAttribute, SwitchedOff
from temporalex_django.models.instance import UNSUCCESSFUL_STATUSES
from temporalex_django.present.facts import LATE

Runs = QuerySet[Instance]

_MANY_ATTEMPTS = 5
#: The clock of who starts a run makes its id, that of the database says when it was: so far apart they never are.
_CLOCKS = timedelta(days=1)
_LAST = 1 << 48
#: Code points that no text has.
_SURROGATES, _AFTER_SURROGATES = 0xD800, 0xE000


def with_status(runs: Runs, statuses: Collection[str]) -> Runs:
    """Runs of one of these statuses. Those of runs that ended without a result are in an index."""
    wanted = sorted(statuses)
    if UNSUCCESSFUL_STATUSES.issuperset(wanted):
        return runs.filter(ended=wanted[0]) if len(wanted) == 1 else runs.filter(ended__in=wanted)
    found = runs.filter(status=wanted[0]) if len(wanted) == 1 else runs.filter(status__in=wanted)
    alias = runs.db
    if wanted == ["running"]:
        return semi_join(found, _stopped(alias).union(_with_activities(alias), _with_children(alias)))
    if wanted == ["pending"]:
        return semi_join(found, _stopped(alias).union(_due(alias)))
    return found


def stuck(runs: Runs) -> Runs:
    """Runs that somebody should look at.

    Blocked, with an activity that is tried in vain again and again or that no live worker takes, with a failed message,
    or due and taken by nobody. What waits for a switch is none of these. One read, of the workers.
    """
    late, alias = timezone.now() - LATE, runs.db
    waiting = ActivityTask.objects.using(alias).filter(owner=None, atomic=False, chain__isnull=False)
    untaken = waiting.filter(
        Q(due_at__lt=late) & live_workers(alias=alias).without_taker() | Q(waits_for__isnull=False)
    )
    untaken = untaken.exclude(queue__in=_off("queue", alias)).exclude(activity__in=_off("activity", alias))
    due = Chain.objects.using(alias).filter(due_at__lt=late, closed=False, paused=False)
    blocked = Instance.objects.using(alias).filter(blocked__isnull=False)
    return semi_join(
        runs,
        blocked.exclude(blocked__code=WorkflowSwitchedOff.code)
        .order_by()
        .values("pk")
        .union(
            ActivityTask.objects.using(alias).filter(attempt__gt=_MANY_ATTEMPTS).order_by().values("run_id"),
            untaken.order_by().values("run_id"),
            Message.objects.using(alias).failed().order_by().values("chain__run_id"),
            due.exclude(queue__in=_off("queue", alias)).order_by().values("run_id"),
        ),
    )


def caused_by(runs: Runs, cause: str) -> Runs:
    """Runs that failed or are blocked with this cause, or that have an activity that fails with it; by indexes."""
    alias = runs.db
    of_runs = Instance.objects.using(alias).filter(cause=cause).order_by().values("pk")
    return semi_join(
        runs, of_runs.union(ActivityTask.objects.using(alias).filter(cause=cause).order_by().values("run_id"))
    )


def _off(kind: str, alias: str) -> QuerySet[Any]:
    """Names of what is switched off."""
    return SwitchedOff.objects.using(alias).filter(kind=kind).order_by().values("name")


def waiting_for(runs: Runs, kind: str) -> Runs:
    """Open runs that wait for a thing of this kind (one of ``authoring.listing.WAIT_KINDS``)."""
    # LIKE would look to PostgreSQL as if hardly a run were left, and a page of many is then sorted instead of read
    said = Cast("waiting_for", TextField())
    places = [StrIndex(said, Value(f'"{word}')) for word in WAIT_PREFIXES[kind]]
    found = runs.alias(said_at=sum(places[1:], start=places[0])).filter(said_at__gt=0)
    alias = runs.db
    match kind:
        case "activity":
            found = semi_join(found, _with_activities(alias))
        case "child":
            found = semi_join(found, _stopped(alias).union(_with_children(alias)))
        case "timer":
            found = semi_join(found, _stopped(alias).union(_due(alias)))
    return found.exclude(status__in=CLOSED_STATUSES)


def _due(alias: str) -> QuerySet[Any]:
    """Runs that go on by themselves, now or at some time; by an index."""
    return Chain.objects.using(alias).filter(due_at__isnull=False).order_by().values("run_id")


def _with_activities(alias: str) -> QuerySet[Any]:
    """Runs that have activities without a result."""
    return ActivityTask.objects.using(alias).order_by().values("run_id")


def _with_children(alias: str) -> QuerySet[Any]:
    """Runs that have open children; by an index of those that are children."""
    children = Instance.objects.using(alias).filter(parent_run__isnull=False, closed_at__isnull=True)
    return children.order_by().values("parent_run_id")


def _stopped(alias: str) -> QuerySet[Any]:
    """Runs that are blocked or paused, of which nothing is due and something may have ended; by indexes."""
    of = Instance.objects.using(alias).order_by().values("pk")
    return of.filter(blocked__isnull=False).union(of.filter(paused__isnull=False)).order_by()


def created_after(runs: Runs, moment: datetime) -> Runs:
    """Runs that were started then or later: their ids sort by it, so no other is read."""
    return runs.filter(created_at__gte=moment, pk__gte=_first_id(moment, -_CLOCKS))


def created_before(runs: Runs, moment: datetime) -> Runs:
    """Runs that were started before."""
    return runs.filter(created_at__lt=moment, pk__lt=_first_id(moment, _CLOCKS))


def closed_before(runs: Runs, moment: datetime) -> Runs:
    """Runs that were closed before, so that they were started before, too."""
    return runs.filter(closed_at__lt=moment, pk__lt=_first_id(moment, _CLOCKS))


def tagged(runs: Runs, tag: str) -> Runs:
    """Runs whose class has that tag."""
    if "\0" in tag:
        return runs.none()  # no database keeps one
    if connections[runs.db].features.supports_json_field_contains:  # by an index
        return runs.filter(tags__contains=[tag])
    said, found = Cast("tags", TextField()), Q()
    # first of the list, or after the end of another: the end of a tag with a quote in it looks like one of its own;
    # who wrote the row decides about spaces and, in SQLite, about letters that are not of ASCII
    for words in dict.fromkeys((json.dumps(tag, ensure_ascii=False), json.dumps(tag))):
        for before in ("[", '", ', '",'):
            at = f"tag_at_{len(found)}"  # LIKE of SQLite takes capitals for small letters
            runs = runs.alias(**{at: StrIndex(said, Value(before + words))})
            found |= Q(**{at: 1}) if before == "[" else Q(**{f"{at}__gt": 0})
    return runs.filter(found, tags__isnull=False)


def present(runs: Runs) -> Runs:
    """Of each chain the run that it stands at.

    Not a join: two columns that must agree look to PostgreSQL as if next to no run were left, and a page of many is
    then sorted instead of read.
    """
    chains = Chain.objects.using(runs.db).filter(pk=OuterRef("chain_id"), run_id=OuterRef("pk"))
    return runs.filter(Coalesce(Exists(chains), Value(value=False)))


def with_attributes(runs: Runs, conditions: Sequence[SearchCondition]) -> Runs:
    """Runs with these search attributes: each condition is a row beside the run, found by an index."""
    for number, one in enumerate(conditions):
        rows = Q(workflow=one.workflow, name=one.name)
        value = Decimal(one.value) if one.column == "number" else one.value
        wanted = _compared(one.column, one.operator, value, alias=runs.db)
        if one.several:  # a join would give a run once for each of its values
            runs = runs.filter(Exists(SearchAttribute.objects.using(runs.db).filter(rows, wanted, run=OuterRef("pk"))))
            continue
        row = f"searched_{number}"
        of_it = Q(searched__workflow=one.workflow, searched__name=one.name)
        runs = runs.alias(**{row: FilteredRelation("searched", condition=of_it)})
        runs = runs.filter(_compared(f"{row}__{one.column}", one.operator, value, alias=runs.db))
    return runs


def _compared(column: str, operator: str, value: Any, *, alias: str) -> Q:
    if operator != "prefix":
        return Q(**{f"{column}__{operator}" if operator else column: value})
    if not connections[alias].features.has_case_insensitive_like:
        return Q(**{f"{column}__startswith": value})
    # there text is in the order of its code points
    begins, after = Q(**{f"{column}__gte": value}), _after(value)
    return begins & Q(**{f"{column}__lt": after}) if after else begins


def _after(beginning: str) -> str:
    """The first text after all that begin so; empty: there is none."""
    kept = beginning.rstrip(chr(sys.maxunicode))
    if not kept:
        return ""
    last = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if last == _SURROGATES else last)


def id_begins(runs: Runs, prefix: str) -> Runs:
    """Runs whose business id begins so, capitals told from small letters; found by an index."""
    return runs.filter(_compared("workflow_id", "prefix", prefix, alias=runs.db))


def of_version(runs: Runs, version: int) -> Runs:
    """Runs of that version of their class.

    Said so that PostgreSQL does not know how many those are: most runs are of a version, those of a tenant may be none
    of it, and it would walk through all runs in the hope of meeting some soon.
    """
    return runs.alias(of_version=Coalesce("version", 0)).filter(of_version=version)


#: By the names of ``authoring.listing.FILTERS``.
FILTERS: Mapping[str, Callable[[Runs, Any], Runs]] = {
    "id": lambda runs, value: runs.filter(workflow_id=value),
    "id_prefix": id_begins,
    "status": with_status,
    "version": of_version,
    "queue": lambda runs, value: runs.filter(queue=value),
    "blocked": lambda runs, value: runs.filter(blocked__isnull=not value),
    "paused": lambda runs, value: runs.filter(paused__isnull=not value),
    "stuck": lambda runs, value: stuck(runs) if value else runs.exclude(pk__in=stuck(_every(runs)).values("pk")),
    "cause": caused_by,
    "waits": waiting_for,
    "subject": lambda runs, value: runs.for_subject(value),  # type: ignore[attr-defined] # of its own queryset class
    "tag": tagged,
    "attributes": with_attributes,
    "created_after": created_after,
    "created_before": created_before,
    "closed_after": lambda runs, value: runs.filter(closed_at__gte=value),
    "closed_before": closed_before,
}


def narrowed(runs: Runs, filters: Mapping[str, Any]) -> Runs:
    """Those for which all filters hold; names and values are those of ``authoring.listing.check_filters``."""
    for name, value in filters.items():
        runs = FILTERS[name](runs, value)
    return runs


def _every(runs: Runs) -> Runs:
    return Instance.objects.using(runs.db).order_by()


def _first_id(moment: datetime, margin: timedelta) -> UUID:
    """Below the ids that are drawn from so much later on; whatever the year."""
    milliseconds = int((moment.timestamp() + margin.total_seconds()) * 1000)
    return UUID(int=min(max(milliseconds, 0), _LAST - 1) << 80)
