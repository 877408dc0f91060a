"""A page of a history as people read it: one row a thing. Nothing is written or locked."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from temporalex_django.actions import titles
from temporalex_django.authoring.viewing import View
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import Payload
from temporalex_django.present.timeline import TimelineRow, about, awaited, begins, rows

#: What is read at first, and at a time: so many events, or fewer when they are large.
_EVENTS, _MOST_EVENTS = 500, 4000
_BYTES = 4_000_000


def page(
    run: UUID, *, after: int, limit: int, view: View, storage: DjangoStorage
) -> tuple[list[TimelineRow], int | None]:
    """Rows of what began behind the event ``after``, at most ``limit``; and behind which event the next page begins.

    What ended later is read as well: of the rest of the history only the kinds of events that may end something.
    """
    events = HistoryEvent.objects.using(storage.alias).filter(run_id=run).order_by("seq")
    read: list[Event] = []
    firsts: set[int] = set()
    following = None
    for row in _read(events, after):
        event = _shown(row, view)
        if begins(event):
            if len(firsts) == limit:  # one too many: it begins the next page
                following = event.number - 1
                break
            firsts.add(event.number)
        read.append(event)
    if following is not None:
        read += _ends(events, following, read, view)
    return [row for row in rows(read) if row.number in firsts], following


def _ends(events: QuerySet[HistoryEvent], after: int, read: list[Event], view: View) -> Iterator[Event]:
    """Of what began in ``read`` and has not ended there: how it ended."""
    ended = {about(event) for event in read if not begins(event)}
    open_things = {about(event) for event in read if begins(event)} - ended
    kinds = awaited(row for row in rows(read) if row.state == "open")
    for row in _read(events.filter(kind__in=kinds), after) if kinds else ():
        event = _shown(row, view)
        if about(event) in open_things:
            open_things.discard(about(event))
            yield event
        if all(kind == "event" for kind, _ in open_things):
            return


def titles_of(row: TimelineRow) -> dict[str, str]:
    """What people call the thing of a row, by its name; empty where the name says it."""
    if row.kind == "activity":
        return {row.name: titles.of_activity(row.name)}
    return {row.name: titles.of_workflow(row.name)} if row.kind == "child" else {}


def _read(events: QuerySet[HistoryEvent], after: int) -> Iterator[HistoryEvent]:
    """Those behind ``after``, some at a time: whoever goes on reading is after something that is far."""
    count = _EVENTS
    while True:
        there = events.filter(seq__gt=after)
        sizes = list(there.values_list("seq", Length("attributes"))[:count])
        if not sizes:
            return
        count = min(2 * count, _MOST_EVENTS)
        last, total = after, 0
        for seq, size in sizes:
            total += size
            if total > _BYTES and last != after:
                break
            last = seq
        yield from there.filter(seq__lte=last)
        after = last


def _shown(event: HistoryEvent, view: View) -> Event:
    """As whoever asks may see it. What the codec cannot read has no attributes."""
    data = event.data
    attributes = {} if isinstance(data, Payload) or not isinstance(data, dict) else data
    return view.event(
        Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)
    )
