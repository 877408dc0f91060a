"""The history of a run as its page shows it: what happened, row by row; single events; timers that are running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Max, Q
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django.actions import timeline as reading
from temporalex_django.admin.shown import Value, badge, duration, value
from temporalex_django.admin.steering import Tool
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.present import timeline

EVENTS_A_PAGE = 100
#: Events that are read for what runs just now: of a longer history the last ones.
WHOLE = 2000
_TIMERS = ("TimerStarted", "TimerFired", "TimerCancelled")

#: What kind of thing an event is, for its colour; the kind itself is always written out.
_FAMILIES = (
    ("fail", ("Failed", "TimedOut", "Terminated")),
    ("done", ("Completed",)),
    ("message", ("Signal", "Update", "Cancel", "External")),
    ("time", ("Timer",)),
    ("work", ("Activity", "Child")),
)
_SHAPES = {"failed": "failed", "timed_out": "timed_out", "cancelled": "cancelled", "terminated": "terminated", "open": "running", "dropped": "terminated", "unread": "failed"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An event."""

    seq: int
    kind: str
    family: str
    summary: str
    data: Value


@dataclass(slots=True, kw_only=True)
class ShownActivation:
    """Events that were stored together. ``since`` is the time from the activation before it on the page."""

    number: int
    at: datetime
    since: str = ""
    seq: int | None = None  # of its ActivationStarted, which is its heading
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A row of what happened, whatever events it took. ``numbers`` are those of the first and the last of them."""

    numbers: str
    text: str
    badge: SafeString
    at: datetime
    took: str
    activation: int
    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Where in the history the page is. Without a number the last page is shown: what happened last."""

    number: int
    count: int

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        return self.number + 1 if self.number < self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A page of it, and what of it is still going on. ``whole`` are all events, where they were read."""

    activations: Sequence[ShownActivation]
    happened: Sequence[Happened]
    pages: Pages
    timers: Sequence[timeline.TimelineRow]
    whole: Sequence[HistoryEvent] | None


def read(
    run: Instance,
    *,
    page: str,
    alias: str,
    view: Redactor,
    now: datetime,
    whole: bool,
    tools: Callable[[int], Sequence[Tool]],
) -> History:
    """One statement, two for an earlier run of a chain; more where a thing begins or ends on another page.

    ``whole``: all events are wanted, unless they are too many. ``tools`` gives the buttons of a row, by its activation.
    """
    events = HistoryEvent.objects.using(alias).filter(run_id=run.pk)
    chain = run.chain
    length = chain.length if chain.run_id == run.pk else events.aggregate(last=Max("seq"))["last"] or 0
    count = max(1, -(-length // EVENTS_A_PAGE))
    number = min(max(int(page), 1), count) if page.isascii() and page.isdigit() and len(page) < 10 else count
    first = (number - 1) * EVENTS_A_PAGE
    whole = whole and length <= WHOLE
    if not whole:
        wanted = Q(seq__gt=first, seq__lte=first + EVENTS_A_PAGE)
        if run.is_open:
            wanted |= Q(seq__gt=length - WHOLE, kind__in=_TIMERS)
        events = events.filter(wanted)
    found = list(events.order_by("seq"))
    shown = [event for event in found if first < event.seq <= first + EVENTS_A_PAGE]
    data = {event.seq: _shown_data(event, view) for event in shown}
    told = [_event(event, data[event.seq]) for event in shown]
    happened = reading.rows_of_events(run.pk, told, length=length, redactor=view, alias=alias)
    timers: list[timeline.TimelineRow] = []
    if run.is_open:
        of_timers = timeline.build_rows(_event(event, event.data) for event in found if event.kind in _TIMERS)
        timers = [row for row in of_timers if row.state == "open" and row.seq is not None]
    return History(
        activations=_activations(shown, data),
        happened=[_happened(row, now, tools) for row in happened],
        pages=Pages(number=number, count=count),
        timers=timers,
        whole=found if whole else None,
    )


def _shown_data(event: HistoryEvent, view: Redactor) -> Any:
    """What cannot be read says so, to whoever may read it."""
    data = event.data
    return (
        data
        if isinstance(data, UnreadablePayload) and view.shows_payloads
        else view.redact_attributes(data, kind=event.kind)
    )


def _event(event: HistoryEvent, data: Any) -> Event:
    attributes = data if isinstance(data, dict) else {}
    return Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)


def _activations(events: Sequence[HistoryEvent], data: dict[int, Any]) -> list[ShownActivation]:
    found: list[ShownActivation] = []
    for event in events:
        if not found or found[-1].number != event.activation:
            since = "+" + duration(event.at - found[-1].at) if found else ""
            found.append(ShownActivation(number=event.activation, at=event.at, since=since))
        if event.kind == "ActivationStarted":
            found[-1].seq = event.seq
        else:
            found[-1].rows.append(_row(event, data[event.seq]))
    return found


def _row(event: HistoryEvent, data: Any) -> Row:
    family = next((name for name, marks in _FAMILIES if any(mark in event.kind for mark in marks)), "plain")
    return Row(seq=event.seq, kind=event.kind, family=family, summary=_summary(data), data=value(data))


def _summary(data: Any) -> str:
    """The few words of an event's attributes that tell it from others of its kind."""
    if not isinstance(data, dict):
        return ""
    parts = []
    if "seq" in data:
        parts.append(f"#{data['seq']}")
    for name in ("activity", "workflow", "name", "message", "reason", "id"):
        found = data.get(name)
        if isinstance(found, (str, int)) and found != "":
            parts.append(str(found)[:80])
    return " · ".join(parts[:3])


def _happened(row: timeline.TimelineRow, now: datetime, tools: Callable[[int], Sequence[Tool]]) -> Happened:
    return Happened(
        numbers=str(row.number) if row.last == row.number else f"{row.number}–{row.last}",
        text=row.text(now=now, titles=reading.titles_of(row)),
        badge=badge(_SHAPES.get(row.state, "completed"), str(_states().get(row.state, row.state))),
        at=row.began,
        activation=row.activation,
        tools=() if row.kind == "end" else tools(row.activation),
        took=duration(row.ended - row.began) if row.ended is not None else "",
    )


def _states() -> dict[str, str]:
    return {
        "open": _("under way"),
        "done": _("done"),
        "failed": _("failed"),
        "timed_out": _("timed out"),
        "timedout": _("timed out"),
        "cancelled": _("cancelled"),
        "terminated": _("terminated"),
        "completed": _("completed"),
        "continuedasnew": _("continued as new"),
        "fired": _("fired"),
        "taken": _("taken"),
        "sent": _("sent"),
        "dropped": _("dropped"),
        "unread": _("nobody took it"),
    }
