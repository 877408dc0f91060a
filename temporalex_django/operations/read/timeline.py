"""The history of a run as people read it: one row per activity, timer, child or other thing.

A row is complete wherever its events are in the history. Nothing is written or locked.

All interfaces read rows here. REST pages by the start of rows, the admin by events, and commands read all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Length

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.history.events import CLOSING
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations.read import display_names
from temporalex_django.present.timeline import (
    REPEATED_KINDS,
    TimelineRow,
    build_rows,
    end_kinds,
    is_end_event,
    is_first_event,
    row_key,
    start_kinds,
)

#: Events in the first batch, and in the largest one. Batches of large events are smaller.
_FIRST_BATCH_SIZE, _MAX_BATCH_SIZE = 500, 4000
_MAX_BATCH_BYTES = 4_000_000


def timeline_page(
    run: UUID, *, after: int, limit: int, redactor: Redactor, storage: DjangoStorage
) -> tuple[list[TimelineRow], int | None]:
    """Return at most ``limit`` rows that started after the event ``after``, and the start of the next page.

    The next page starts after the event with that number; it is None on the last page. Events that ended the rows later
    are read as well. Of the rest of the history, this reads only those kinds of events that may end something.
    """
    events = _run_events(run, storage.alias)
    page_events: list[Event] = []
    first_numbers: set[int] = set()
    next_after = None
    for row in _read_batches(events, after):
        event = redact_event(row, redactor)
        if is_first_event(event):
            # One row too many: the next page starts with it.
            if len(first_numbers) == limit:
                next_after = event.number - 1
                break
            first_numbers.add(event.number)
        page_events.append(event)
    if next_after is not None:
        page_events = [*page_events, *_later_ends(events, next_after, page_events, redactor)]
    elif after:
        page_events = [*_unread_signals(events, page_events, redactor), *page_events]
    return [row for row in build_rows(_sorted_events(page_events)) if row.number in first_numbers], next_after


def rows_of_events(
    run: UUID, page_events: Iterable[Event], *, length: int, redactor: Redactor, alias: str
) -> list[TimelineRow]:
    """Return the rows that start or end among these events of a run, each with its start and its end.

    ``length`` is the number of events of the run. Nothing is read if these are all of them. Otherwise there are at most
    two reads at a time, of the kinds of events that may start or end something.
    """
    events, page_events = _run_events(run, alias), [*page_events]
    numbers = {event.number for event in page_events}
    if page_events and len(numbers) < length:
        first, last = page_events[0].number, page_events[-1].number
        page_events = [*_earlier_starts(events, first, page_events, redactor), *page_events]
        page_events += (
            _later_ends(events, last, page_events, redactor)
            if last < length
            else _unread_signals(events, page_events, redactor)
        )
    return [row for row in build_rows(_sorted_events(page_events)) if row.number in numbers or row.last in numbers]


def repeated_rows(run: UUID, activation: int, *, redactor: Redactor, alias: str) -> list[TimelineRow]:
    """Return the activities and children that a reset to an activation repeats.

    These are the ones that started after it, and activities that had not ended by then.
    """
    events = _run_events(run, alias).filter(kind__in=REPEATED_KINDS)
    repeatable_rows = [
        row
        for row in build_rows(redact_event(event, redactor) for event in _read_batches(events, 0))
        if row.kind in ("activity", "child")
    ]
    return [
        row
        for row in repeatable_rows
        if row.activation > activation
        or (row.kind == "activity" and (row.ended_in is None or row.ended_in > activation))
    ]


def rows_of_run(run: UUID, *, redactor: Redactor, storage: DjangoStorage) -> list[TimelineRow]:
    """Return all rows of a run."""
    return build_rows(redact_event(event, redactor) for event in _read_batches(_run_events(run, storage.alias), 0))


def redact_event(event: HistoryEvent, redactor: Redactor) -> Event:
    """Return the event as ``redactor`` shows it, without attributes if the codec cannot read them."""
    data = event.data
    attributes = {} if isinstance(data, UnreadablePayload) or not isinstance(data, dict) else data
    return redactor.redact_event(
        Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)
    )


def titles_of(row: TimelineRow) -> dict[str, str]:
    """Return the title of the activity or child in a row, by its name.

    The mapping is empty for rows of other kinds, whose name is enough.
    """
    if row.kind == "activity":
        return {row.name: display_names.activity_title(row.name)}
    return {row.name: display_names.workflow_title(row.name)} if row.kind == "child" else {}


def _run_events(run: UUID, alias: str) -> QuerySet[HistoryEvent]:
    return HistoryEvent.objects.using(alias).filter(run_id=run).order_by("seq")


def _sorted_events(page_events: Iterable[Event]) -> list[Event]:
    """Return the events in order, each once."""
    return [event for _number, event in sorted({event.number: event for event in page_events}.items())]


def _earlier_starts(
    events: QuerySet[HistoryEvent], first: int, page_events: list[Event], redactor: Redactor
) -> Iterator[Event]:
    """Yield the events before ``first`` that start what ends in ``page_events``."""
    missing = {row_key(event) for event in page_events if is_end_event(event)} - {
        row_key(event) for event in page_events if is_first_event(event)
    }
    # Restrict the search to kinds that can start one of these rows, so that a long history is not read whole.
    kinds = start_kinds(event for event in page_events if row_key(event) in missing)
    for row in _read_batches(events.filter(kind__in=kinds), first, backwards=True) if kinds else ():
        event = redact_event(row, redactor)
        if row_key(event) in missing:
            missing.discard(row_key(event))
            yield event
        if not missing:
            return


def _later_ends(
    events: QuerySet[HistoryEvent], last: int, page_events: list[Event], redactor: Redactor
) -> Iterator[Event]:
    """Yield the events after ``last`` that end what starts in ``page_events``.

    This includes the end of the run, with the signals that it left unread.
    """
    unfinished_rows = [row for row in build_rows(page_events) if not row.is_finished or row.kind == "signal"]
    if not unfinished_rows:
        return
    closing_events = [
        redact_event(row, redactor) for row in events.filter(seq__gt=last).order_by("-seq")[:1] if row.kind in CLOSING
    ]
    yield from closing_events
    yield from _unread_signals(events, [*page_events, *closing_events], redactor)
    missing = {row_key(event) for event in page_events if is_first_event(event)} - {
        row_key(event) for event in page_events if is_end_event(event)
    }
    kinds = end_kinds(unfinished_rows)
    for row in _read_batches(events.filter(kind__in=kinds), last) if kinds else ():
        event = redact_event(row, redactor)
        if row_key(event) in missing:
            missing.discard(row_key(event))
            yield event
        if all(kind == "event" for kind, _ in missing):
            return


def _unread_signals(events: QuerySet[HistoryEvent], page_events: list[Event], redactor: Redactor) -> Iterator[Event]:
    """Yield the signals that no code consumed, if the end of the run is in ``page_events``.

    The end has a number for each name; these are the last signals of that name.
    """
    remaining = Counter(str(name) for event in page_events for name in event.attributes.get("never_consumed") or ())
    signals = events.filter(kind="SignalReceived")
    for row in _read_batches(signals, page_events[-1].number, backwards=True) if remaining else ():
        event = redact_event(row, redactor)
        name = str(event.attributes.get("name"))
        if remaining[name] > 0:
            remaining[name] -= 1
            yield event
        if not +remaining:
            return


def _read_batches(events: QuerySet[HistoryEvent], bound: int, *, backwards: bool = False) -> Iterator[HistoryEvent]:
    """Yield the events after ``bound``, or those before it in reverse order.

    They are read in batches of growing size.
    """
    count, lookup = _FIRST_BATCH_SIZE, "lt" if backwards else "gt"
    ordered_events = events.order_by("-seq" if backwards else "seq")
    while True:
        bounded_events = ordered_events.filter(**{f"seq__{lookup}": bound})
        # Read the sizes first, without the attributes: a batch of large payloads would fill the memory.
        sizes = list(bounded_events.values_list("seq", Length("attributes"))[:count])
        if not sizes:
            return
        count = min(2 * count, _MAX_BATCH_SIZE)
        last, total = bound, 0
        for seq, size in sizes:
            total += size
            if total > _MAX_BATCH_BYTES and last != bound:
                break
            last = seq
        yield from bounded_events.filter(**{"seq__gte" if backwards else "seq__lte": last})
        bound = last
