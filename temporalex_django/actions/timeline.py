"""A history as people read it: one row a thing, whole wherever its events stand. Nothing is written or locked.

All interfaces read rows here: REST by where things began, the admin by the events of a page, commands all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from temporalex_django.actions import titles
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.history.events import CLOSING
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.present.timeline import DONE_AGAIN, TimelineRow, about, beginning, begins, ending, ends, rows

#: Events that are read at first, and at a time: fewer when they are large.
_EVENTS, _MOST_EVENTS = 500, 4000
_BYTES = 4_000_000


def page(
    run: UUID, *, after: int, limit: int, view: Redactor, storage: DjangoStorage
) -> tuple[list[TimelineRow], int | None]:
    """Rows of what began behind the event ``after``, at most ``limit``; and behind which event the next page begins.

    Ends that came later are read as well: of the rest of the history only the kinds of events that may end something.
    """
    events = _events(run, storage.alias)
    read: list[Event] = []
    firsts: set[int] = set()
    following = None
    for row in _read(events, after):
        event = shown(row, view)
        if begins(event):
            if len(firsts) == limit:  # one too many: it begins the next page
                following = event.number - 1
                break
            firsts.add(event.number)
        read.append(event)
    if following is not None:
        read = [*read, *_later(events, following, read, view)]
    elif after:
        read = [*_unread(events, read, view), *read]
    return [row for row in rows(_in_order(read)) if row.number in firsts], following


def of_events(run: UUID, read: Iterable[Event], *, length: int, view: Redactor, alias: str) -> list[TimelineRow]:
    """Rows that begin or end among these events of a run, each with its beginning and its end.

    ``length`` is how many events the run has. No read where these are all of them; else at most two at a time, of the
    kinds of events that may begin or end something.
    """
    events, read = _events(run, alias), [*read]
    there = {event.number for event in read}
    if read and len(there) < length:
        first, last = read[0].number, read[-1].number
        read = [*_earlier(events, first, read, view), *read]
        read += _later(events, last, read, view) if last < length else _unread(events, read, view)
    return [row for row in rows(_in_order(read)) if row.number in there or row.last in there]


def done_again(run: UUID, activation: int, *, view: Redactor, alias: str) -> list[TimelineRow]:
    """Activities and children that are done again when the run is taken up behind an activation.

    Those that began later, and activities that had not ended there.
    """
    events = _events(run, alias).filter(kind__in=DONE_AGAIN)
    told = [row for row in rows(shown(event, view) for event in _read(events, 0)) if row.kind in ("activity", "child")]
    return [
        row
        for row in told
        if row.activation > activation
        or (row.kind == "activity" and (row.ended_in is None or row.ended_in > activation))
    ]


def of_run(run: UUID, *, view: Redactor, storage: DjangoStorage) -> list[TimelineRow]:
    """All rows of a run."""
    return rows(shown(event, view) for event in _read(_events(run, storage.alias), 0))


def shown(event: HistoryEvent, view: Redactor) -> Event:
    """The event as ``view`` shows it; without attributes where the codec cannot read them."""
    data = event.data
    attributes = {} if isinstance(data, UnreadablePayload) or not isinstance(data, dict) else data
    return view.redact_event(
        Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)
    )


def titles_of(row: TimelineRow) -> dict[str, str]:
    """What people call the thing of a row, by its name; empty where the name says it."""
    if row.kind == "activity":
        return {row.name: titles.of_activity(row.name)}
    return {row.name: titles.of_workflow(row.name)} if row.kind == "child" else {}


def _events(run: UUID, alias: str) -> QuerySet[HistoryEvent]:
    return HistoryEvent.objects.using(alias).filter(run_id=run).order_by("seq")


def _in_order(read: Iterable[Event]) -> list[Event]:
    """Each event once."""
    return [event for _number, event in sorted({event.number: event for event in read}.items())]


def _earlier(events: QuerySet[HistoryEvent], first: int, read: list[Event], view: Redactor) -> Iterator[Event]:
    """Beginnings, before ``first``, of what ends in ``read``."""
    missing = {about(event) for event in read if ends(event)} - {about(event) for event in read if begins(event)}
    kinds = beginning(event for event in read if about(event) in missing)
    for row in _read(events.filter(kind__in=kinds), first, backwards=True) if kinds else ():
        event = shown(row, view)
        if about(event) in missing:
            missing.discard(about(event))
            yield event
        if not missing:
            return


def _later(events: QuerySet[HistoryEvent], last: int, read: list[Event], view: Redactor) -> Iterator[Event]:
    """Ends, behind ``last``, of what begins in ``read``; the end of the run, with the signals that it left unread."""
    unfinished = [row for row in rows(read) if not row.finished or row.kind == "signal"]
    if not unfinished:
        return
    end = [shown(row, view) for row in events.filter(seq__gt=last).order_by("-seq")[:1] if row.kind in CLOSING]
    yield from end
    yield from _unread(events, [*read, *end], view)
    missing = {about(event) for event in read if begins(event)} - {about(event) for event in read if ends(event)}
    kinds = ending(unfinished)
    for row in _read(events.filter(kind__in=kinds), last) if kinds else ():
        event = shown(row, view)
        if about(event) in missing:
            missing.discard(about(event))
            yield event
        if all(kind == "event" for kind, _ in missing):
            return


def _unread(events: QuerySet[HistoryEvent], read: list[Event], view: Redactor) -> Iterator[Event]:
    """Signals that nobody took, where the end of the run is in ``read``: the last ones of each name."""
    left = Counter(str(name) for event in read for name in event.attributes.get("never_consumed") or ())
    signals = events.filter(kind="SignalReceived")
    for row in _read(signals, read[-1].number, backwards=True) if left else ():
        event = shown(row, view)
        name = str(event.attributes.get("name"))
        if left[name] > 0:
            left[name] -= 1
            yield event
        if not +left:
            return


def _read(events: QuerySet[HistoryEvent], bound: int, *, backwards: bool = False) -> Iterator[HistoryEvent]:
    """Events behind ``bound``, or before it and the last one first; some at a time, more and more of them."""
    count, side = _EVENTS, "lt" if backwards else "gt"
    ordered = events.order_by("-seq" if backwards else "seq")
    while True:
        there = ordered.filter(**{f"seq__{side}": bound})
        sizes = list(there.values_list("seq", Length("attributes"))[:count])
        if not sizes:
            return
        count = min(2 * count, _MOST_EVENTS)
        last, total = bound, 0
        for seq, size in sizes:
            total += size
            if total > _BYTES and last != bound:
                break
            last = seq
        yield from there.filter(**{"seq__gte" if backwards else "seq__lte": last})
        bound = last
