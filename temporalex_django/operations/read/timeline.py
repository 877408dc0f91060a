"""The timeline of a run: its history as people read it, with one row for each activity, timer, child or other thing.

A row is complete even if its events are far apart in the history. Nothing is written or locked.

REST reads pages of rows that are complete, the console reads parts of a bounded cost, and commands read all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Length

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.history.events import CLOSING
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations.read import describe
from temporalex_django.operations.read.describe import history_of
from temporalex_django.present.timeline import (
    LATER_KINDS,
    REPEATED_KINDS,
    TimelineRow,
    build_rows,
    end_kinds,
    is_end_event,
    is_first_event,
    row_key,
)

#: Events in the first batch, and in the largest one. Batches of large events are smaller.
_FIRST_BATCH_SIZE, _MAX_BATCH_SIZE = 500, 4000
_MAX_BATCH_BYTES = 4_000_000
#: Largest number of events that are read to find the ends of the rows of a part of a timeline.
MAX_ENDS: Final = 200


def timeline_page(
    target: RunTarget, *, after: int, limit: int, redactor: Redactor, storage: DjangoStorage
) -> tuple[list[TimelineRow], int | None]:
    """Return a page of at most ``limit`` rows of the timeline, and the value of ``after`` for the next page.

    The rows start after the event number ``after``. The second value is None on the last page. A row that starts on
    this page is complete, even if the event that ends it comes much later in the history. Raises ``QueryFailed`` if a
    run on a cluster does not tell its history.
    """
    if (rows := _told_rows(target, redactor=redactor, storage=storage)) is not None:
        page = [row for row in rows if row.number > after]
        return page[:limit], page[limit].number - 1 if len(page) > limit else None
    events = _run_events(target.selected_run_id, storage.alias)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePart:
    """Some rows of a timeline that follow each other, in the order in which they began.

    ``has_earlier`` and ``has_later`` say if other rows come before and after them. ``is_cut`` is True if an open row
    may have ended further away than the events that were read.
    """

    rows: Sequence[TimelineRow]
    has_earlier: bool
    has_later: bool
    is_cut: bool = False


def timeline_part(
    run: Instance,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int,
    redactor: Redactor,
    alias: str,
) -> TimelinePart:
    """Return at most ``limit`` rows of a timeline: the last ones that begin before an event, or the first after it.

    ``before`` and ``after`` are numbers of events; without both, the rows are the newest ones. However long the history
    is, no more events are read than ``limit`` and ``MAX_ENDS`` and one, in three statements at most. Signals that no
    code has consumed take a few more.
    """
    events = _run_events(run.pk, alias)
    starts = events.exclude(kind__in=LATER_KINDS)
    if after is None:
        bounded = starts if before is None else starts.filter(seq__lt=before)
        start_rows = [*bounded.order_by("-seq")[: limit + 1]]
        has_earlier, has_later = len(start_rows) > limit, before is not None
        start_rows = start_rows[:limit][::-1]
    else:
        start_rows = [*starts.filter(seq__gt=after)[: limit + 1]]
        has_earlier, has_later = after > 0, len(start_rows) > limit
        start_rows = start_rows[:limit]
    part_events = [redact_event(row, redactor) for row in start_rows]
    numbers = {event.number for event in part_events}
    end_events, is_cut = _nearest_ends(run, events, part_events, redactor)
    rows = [row for row in build_rows(_sorted_events([*part_events, *end_events])) if row.number in numbers]
    return TimelinePart(
        rows=rows,
        has_earlier=has_earlier,
        has_later=has_later,
        is_cut=is_cut and any(row.state == "open" and row.kind != "run" for row in rows),
    )


def part_of_rows(
    rows: Sequence[TimelineRow], *, before: int | None = None, after: int | None = None, limit: int
) -> TimelinePart:
    """Return the part of the timeline whose ``rows`` are all known, as ``timeline_part`` does for others."""
    if after is not None:
        later_rows = [row for row in rows if row.number > after]
        return TimelinePart(rows=later_rows[:limit], has_earlier=after > 0, has_later=len(later_rows) > limit)
    earlier_rows = [row for row in rows if before is None or row.number < before]
    return TimelinePart(rows=earlier_rows[-limit:], has_earlier=len(earlier_rows) > limit, has_later=before is not None)


def _nearest_ends(
    run: Instance, events: QuerySet[HistoryEvent], part_events: list[Event], redactor: Redactor
) -> tuple[list[Event], bool]:
    """Return the next events that can end the rows which begin with ``part_events``, and True if some are left out."""
    # Without the close, which ends the rows that nothing else ends.
    beginnings = build_rows(event for event in part_events if event.kind not in CLOSING)
    unfinished_rows = [row for row in beginnings if not row.is_finished or row.kind == "signal"]
    if not unfinished_rows:
        return [], False
    # The first activation of a run that a reset has made begins its open activities once more.
    copied = Q(kind="ActivationStarted", at=run.started_at) if run.started_at is not None else Q(pk__in=())
    ends = events.filter(Q(kind__in=end_kinds(unfinished_rows)) | copied, seq__gt=part_events[0].number)
    end_rows = [*ends[: MAX_ENDS + 1]]
    is_cut = len(end_rows) > MAX_ENDS
    end_events = [redact_event(row, redactor) for row in end_rows[:MAX_ENDS]]
    if run.is_open or is_cut:
        return end_events, is_cut
    closing_events = [redact_event(row, redactor) for row in events.order_by("-seq")[:1] if row.kind in CLOSING]
    known_events = [*part_events, *closing_events]
    return [*end_events, *closing_events, *_unread_signals(events, known_events, redactor)], False


def repeated_rows(
    target: RunTarget, activation: int, *, redactor: Redactor, storage: DjangoStorage
) -> list[TimelineRow]:
    """Return the timeline rows of the activities and children that a reset to the activation would repeat.

    They started after that activation, or are activities that had not ended by then. ``activation`` is its number.
    """
    rows = _told_rows(target, redactor=redactor, storage=storage)
    if rows is None:
        events = _run_events(target.selected_run_id, storage.alias).filter(kind__in=REPEATED_KINDS)
        rows = build_rows(redact_event(event, redactor) for event in _read_batches(events, 0))
    repeatable_rows = [row for row in rows if row.kind in ("activity", "child")]
    return [
        row
        for row in repeatable_rows
        if row.activation > activation
        or (row.kind == "activity" and (row.ended_in is None or row.ended_in > activation))
    ]


def rows_of_run(target: RunTarget, *, redactor: Redactor, storage: DjangoStorage) -> list[TimelineRow]:
    """Return all rows of the timeline of a run; this reads its whole history."""
    rows = _told_rows(target, redactor=redactor, storage=storage)
    if rows is not None:
        return rows
    events = _run_events(target.selected_run_id, storage.alias)
    return build_rows(redact_event(event, redactor) for event in _read_batches(events, 0))


def _told_rows(target: RunTarget, *, redactor: Redactor, storage: DjangoStorage) -> list[TimelineRow] | None:
    """Return all rows of a run on a cluster, or None for a run whose events are rows."""
    events = history_of(target, storage=storage)
    return None if events is None else build_rows(map(redactor.redact_event, events))


def redact_event(event: HistoryEvent, redactor: Redactor) -> Event:
    """Convert a row of the history to an ``Event``, redacted by ``redactor``.

    Its attributes are empty if the codec cannot read them.
    """
    data = event.data
    attributes = {} if isinstance(data, UnreadablePayload) or not isinstance(data, dict) else data
    return redactor.redact_event(
        Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)
    )


def titles_of(row: TimelineRow) -> dict[str, str]:
    """Return ``{name: title}`` for the activity or child of a timeline row, as ``TimelineRow.text`` takes it.

    The mapping is empty for rows of other kinds, whose name is enough.
    """
    if row.kind == "activity":
        return {row.name: describe.activity_title(row.name)}
    if row.kind == "child":
        return {row.name: describe.workflow_title(row.name)}
    return {}


def _run_events(run: UUID, alias: str) -> QuerySet[HistoryEvent]:
    return HistoryEvent.objects.using(alias).filter(run_id=run).order_by("seq")


def _sorted_events(page_events: Iterable[Event]) -> list[Event]:
    return [event for _number, event in sorted({event.number: event for event in page_events}.items())]


def _row_keys(page_events: list[Event]) -> tuple[set[tuple[str, Any]], set[tuple[str, Any]]]:
    """Return the keys of rows that start among the events, and of rows that end there."""
    starts = {row_key(event) for event in page_events if is_first_event(event)}
    return starts, {row_key(event) for event in page_events if is_end_event(event)}


def _later_ends(
    events: QuerySet[HistoryEvent], last: int, page_events: list[Event], redactor: Redactor
) -> Iterator[Event]:
    """Yield the events after ``last`` that end the rows of ``page_events``. The close ends unread signals, too."""
    unfinished_rows = [row for row in build_rows(page_events) if not row.is_finished or row.kind == "signal"]
    if not unfinished_rows:
        return
    closing_events = [
        redact_event(row, redactor) for row in events.filter(seq__gt=last).order_by("-seq")[:1] if row.kind in CLOSING
    ]
    yield from closing_events
    yield from _unread_signals(events, [*page_events, *closing_events], redactor)
    starts, ends = _row_keys(page_events)
    missing = starts - ends
    kinds = end_kinds(unfinished_rows)
    for row in _read_batches(events.filter(kind__in=kinds), last) if kinds else ():
        event = redact_event(row, redactor)
        if row_key(event) in missing:
            missing.discard(row_key(event))
            yield event
        if all(kind == "event" for kind, _ in missing):
            return


def _unread_signals(events: QuerySet[HistoryEvent], page_events: list[Event], redactor: Redactor) -> Iterator[Event]:
    """Yield signals that no code has consumed, newest first, if ``page_events`` has the close, which names them."""
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
    """Read in batches that grow, up to a size in bytes. Backwards means newest first."""
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
