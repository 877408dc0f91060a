"""The history of a run, and its comparison with the present code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.admin.operator_views import ActionLink
from temporalex_django.admin.run.action_views import Confirmation, RunActionView
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.console.base import (
    FormattedPayload,
    actor_of,
    badge,
    format_duration,
    format_payload,
    posted_data,
    refuse,
    user_of,
)
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.core.history.events import kinds_of
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations import audit
from temporalex_django.operations.read import timeline as reading
from temporalex_django.operations.runs.history_action import CompareInputs, InputComparison
from temporalex_django.present import timeline

# --- history ----------------------------------------------------------------------------------------------------------
#
# The history on the admin page of a run: the timeline, the single events, and the running timers.


EVENTS_PER_PAGE = 100
#: Largest number of events that are read to find what is going on now; the last ones of a longer history.
MAX_EVENTS = 2000
_TIMERS = kinds_of("timer")

#: Families of event kinds, for the colour; the page always shows the kind as text too. The first match counts.
_FAMILIES = (
    ("fail", ("Failed", "TimedOut", "Terminated")),
    ("done", ("Completed",)),
    ("message", ("Signal", "Update", "Cancel", "External")),
    ("time", ("Timer",)),
    ("work", ("Activity", "Child")),
)
_SHAPES = {
    "failed": "failed", "timed_out": "timed_out", "cancelled": "cancelled", "terminated": "terminated",
    "open": "running", "dropped": "terminated", "unread": "failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the history, as the admin page of a run shows it.

    ``seq`` is its number, ``family`` names the group of event kinds that gives it a colour, and ``data`` are its
    attributes.
    """

    seq: int
    kind: str
    family: str
    summary: str
    data: FormattedPayload


@dataclass(slots=True, kw_only=True)
class ActivationRow:
    """One activation of a run with its events, as the admin page of the run shows it.

    ``since`` is the time that has passed since the activation before it on the page, as text.
    """

    number: int
    at: datetime
    since: str = ""
    # Of the event ActivationStarted, which is the heading and no row.
    seq: int | None = None
    rows: list[EventRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A row of the timeline on the admin page of a run, such as an activity from its start to its end.

    ``numbers`` are the numbers of its first and its last event, and ``tools`` the buttons of its operations.
    """

    numbers: str
    text: str
    badge: SafeString
    at: datetime
    duration: str
    activation: int
    tools: Sequence[ActionLink] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPages:
    """The number of the page of a history that is shown, and the number of pages.

    The last page has the newest events; it is shown if the URL has no number.
    """

    number: int
    count: int

    @property
    def previous(self) -> int | None:
        if self.number > 1:
            return self.number - 1
        return None

    @property
    def next(self) -> int | None:
        if self.number < self.count:
            return self.number + 1
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A page of the history of a run for its admin page, and the timers that are running.

    ``may_be_copied`` is True if the page has events that a reset or fork copied from another run, or begins after the
    first events of the run. ``activations`` has the single events, and ``entries`` the rows of the timeline.
    ``all_events`` are all events of the run if they had to be read for the page, or else None. ``why_not`` is a
    sentence that says why a run on a cluster has not told its history, or None.
    """

    activations: Sequence[ActivationRow]
    entries: Sequence[HistoryEntry]
    pages: HistoryPages
    timers: Sequence[timeline.TimelineRow]
    all_events: Sequence[Event] | None
    why_not: str | None = None
    may_be_copied: bool = False


def read_history(
    run: Instance,
    *,
    page: str,
    alias: str,
    redactor: Redactor,
    now: datetime,
    with_all_events: bool,
    action_links: Callable[[int], Sequence[ActionLink]],
) -> RunHistory:
    """Read a page of the history of a run.

    ``page`` is its number as text. A number out of range means the nearest page, and any other text the last page. With
    ``with_all_events``, all events are read, unless there are more than ``MAX_EVENTS``. ``action_links`` takes an
    activation and returns the buttons of its row.

    This reads one statement, two for an earlier run of a chain, and more if a row of the timeline starts or ends on
    another page.
    """
    events = HistoryEvent.objects.using(alias).filter(run_id=run.pk)
    chain = run.chain
    # The row of the chain has the length of its newest run only; for an earlier run, read its last event.
    length = chain.length if chain.run_id == run.pk else events.aggregate(last=Max("seq"))["last"] or 0
    count = max(1, -(-length // EVENTS_PER_PAGE))
    number = _page_number(page, count)
    first = _first_of_page(page, number, length)
    with_all_events = with_all_events and length <= MAX_EVENTS
    if not with_all_events:
        # One statement for the page and for the recent events of timers, which show the timers that are running.
        condition = Q(seq__gt=first, seq__lte=first + EVENTS_PER_PAGE)
        if run.is_open:
            condition |= Q(seq__gt=length - MAX_EVENTS, kind__in=_TIMERS)
        events = events.filter(condition)
    event_rows = list(events.order_by("seq"))
    page_rows = [event for event in event_rows if first < event.seq <= first + EVENTS_PER_PAGE]
    # Redact before anything is built from the events: texts of the timeline quote payloads.
    data = {event.seq: _redact_data(event, redactor) for event in page_rows}
    page_events = [_core_event(event, data[event.seq]) for event in page_rows]
    entries = reading.rows_of_events(run.pk, page_events, length=length, redactor=redactor, alias=alias)
    return RunHistory(
        activations=_activation_rows(page_events, data),
        entries=[_history_entry(row, now, action_links) for row in entries],
        pages=HistoryPages(number=number, count=count),
        timers=_running_timers(_core_events(event_rows, _TIMERS)) if run.is_open else (),
        all_events=_core_events(event_rows) if with_all_events else None,
        # Copied events are older than their run.
        may_be_copied=first > 0 or any(event.at < run.created_at for event in page_rows),
    )


def told_history(
    run: Instance,
    events: Sequence[Event],
    *,
    why_not: str | None,
    page: str,
    redactor: Redactor,
    now: datetime,
    action_links: Callable[[int], Sequence[ActionLink]],
) -> RunHistory:
    """Return a page of the history of a run on a cluster, as ``read_history`` does for others.

    ``events`` is the whole history, as the run has told it. ``why_not`` is a sentence that says why it has told
    nothing, or None.
    """
    count = max(1, -(-len(events) // EVENTS_PER_PAGE))
    number = _page_number(page, count)
    first = _first_of_page(page, number, len(events))
    redacted_events = [redactor.redact_event(event) for event in events]
    page_events = redacted_events[first : first + EVENTS_PER_PAGE]
    numbers = {event.number for event in page_events}
    rows = [row for row in timeline.build_rows(redacted_events) if row.number in numbers or row.last in numbers]
    return RunHistory(
        activations=_activation_rows(page_events, {event.number: event.attributes for event in page_events}),
        entries=[_history_entry(row, now, action_links) for row in rows],
        pages=HistoryPages(number=number, count=count),
        timers=_running_timers([event for event in events if event.kind in _TIMERS]) if run.is_open else (),
        all_events=events,
        why_not=why_not,
    )


def _page_number(page: str, count: int) -> int:
    """Return the last page, ``count``, for a text that is not a number."""
    if page.isascii() and page.isdigit() and len(page) < 10:
        return min(max(int(page), 1), count)
    return count


def _first_of_page(page: str, number: int, length: int) -> int:
    """Return how many events come before the page. Without one, the newest fill it: the last page may be short."""
    if page:
        return (number - 1) * EVENTS_PER_PAGE
    return max(0, length - EVENTS_PER_PAGE)


def _running_timers(timer_events: Sequence[Event]) -> list[timeline.TimelineRow]:
    # An event whose data cannot be read has no seq, and a button would have no target.
    return [row for row in timeline.build_rows(timer_events) if row.state == "open" and row.seq is not None]


def _redact_data(event: HistoryEvent, redactor: Redactor) -> Any:
    """Keep attributes that the codec cannot read for users who may see payloads: the page shows the error."""
    data = event.data
    if isinstance(data, UnreadablePayload) and redactor.shows_payloads:
        return data
    return redactor.redact_attributes(data, kind=event.kind)


def _core_event(event: HistoryEvent, data: Any) -> Event:
    attributes = data if isinstance(data, dict) else {}
    return Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)


def _core_events(event_rows: Sequence[HistoryEvent], kinds: Collection[str] | None = None) -> list[Event]:
    """Return the events, or those of some kinds, with all that the codec reads."""
    return [_core_event(row, row.data) for row in event_rows if kinds is None or row.kind in kinds]


def _activation_rows(events: Sequence[Event], data: dict[int, Any]) -> list[ActivationRow]:
    activations: list[ActivationRow] = []
    for event in events:
        if not activations or activations[-1].number != event.activation:
            since = ""
            if activations:
                since = "+" + format_duration(event.at - activations[-1].at)
            activations.append(ActivationRow(number=event.activation, at=event.at, since=since))
        if event.kind == "ActivationStarted":
            activations[-1].seq = event.number
        else:
            activations[-1].rows.append(_event_row(event, data[event.number]))
    return activations


def _event_row(event: Event, data: Any) -> EventRow:
    family = next((name for name, marks in _FAMILIES if any(mark in event.kind for mark in marks)), "plain")
    return EventRow(seq=event.number, kind=event.kind, family=family, summary=_summary(data), data=format_payload(data))


def _summary(data: Any) -> str:
    """Return what distinguishes an event from others of its kind, such as a name or a command number."""
    if not isinstance(data, dict):
        return ""
    parts = []
    if "seq" in data:
        parts.append(f"#{data['seq']}")
    for name in ("activity", "workflow", "name", "message", "reason", "id"):
        attribute = data.get(name)
        if isinstance(attribute, (str, int)) and attribute != "":
            parts.append(str(attribute)[:80])
    return " · ".join(parts[:3])


def _history_entry(
    row: timeline.TimelineRow, now: datetime, action_links: Callable[[int], Sequence[ActionLink]]
) -> HistoryEntry:
    return HistoryEntry(
        numbers=str(row.number) if row.last == row.number else f"{row.number}–{row.last}",
        text=row.text(now=now, titles=reading.titles_of(row)),
        badge=_state_badge(row),
        at=row.began,
        activation=row.activation,
        # The end of a run is no point to reset to or to fork from.
        tools=() if row.kind == "end" else action_links(row.activation),
        duration=format_duration(row.ended - row.began) if row.ended is not None else "",
    )


def _state_badge(row: timeline.TimelineRow) -> SafeString:
    """Return the badge of the state of a row. That a run has started is over at once, however long it is open."""
    if row.kind == "run" and row.state == "open":
        return badge("completed", _("done"))
    return badge(_SHAPES.get(row.state, "completed"), str(_state_labels().get(row.state, row.state)))


def _state_labels() -> dict[str, str]:
    return {
        "open": _("in progress"),
        "done": _("done"),
        "failed": _("failed"),
        "timed_out": _("timed out"),
        "timedout": _("timed out"),
        "cancelled": _("cancelled"),
        "terminated": _("terminated"),
        "completed": _("completed"),
        "continuedasnew": _("continued as new"),
        "fired": _("fired"),
        "taken": _("consumed"),
        "sent": _("sent"),
        "dropped": _("dropped"),
        "unread": _("never consumed"),
    }


# --- compare ----------------------------------------------------------------------------------------------------------
#
# The admin page that replays a run with the present code and shows the inputs that differ.


_PERMISSION = f"{APP}.{CompareInputs.permission}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A row of the table that shows where the inputs in a history differ from those that the code produces.

    ``event`` is the number of the event in the history, ``command`` describes the command of the code, and ``path`` is
    the place of the value in the input. ``place`` is the file and line of the code, or empty. ``recorded`` is the value
    in the history, and ``produced`` the value that the code produces now.
    """

    event: int
    command: str
    path: str
    place: str
    recorded: FormattedPayload
    produced: FormattedPayload


def can_compare(run: Instance, user: Person) -> bool:
    """Return True if the user may compare the inputs of this run with the code.

    The run must have started, this process must be able to replay it, and the user must be allowed to see its payloads.
    """
    return _permission_error(user, run) is None and run.started_at is not None and CompareInputs.why_not(run) is None


class CompareView(RunActionView):
    """The page that compares the inputs of a run with its code: a POST replays the run and shows the differences."""

    template = "admin/temporalex_django/instance/compare.html"

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        return Confirmation(
            heading=_("Compare inputs with the code"),
            effect=_(
                "This replays the history with the code of this process, and lists the inputs of activities and "
                "children and the durations of timers that differ from the history. Nothing is changed."
            ),
            button=_("Compare"),
            why_not=CompareInputs.why_not(run),
            permission_error=_permission_error(user_of(request), run),
            action=CompareInputs.name,
        )

    def form(self, request: HttpRequest, run: Instance) -> TokenForm:
        return TokenForm(posted_data(request))

    def act(self, request: HttpRequest, run: Instance, form: TokenForm) -> Any:
        return CompareInputs(self.find_target(request, run), by=actor_of(request)).execute()

    def handle_post(self, request: HttpRequest, run: Instance, confirmation: Confirmation, form: Any) -> HttpResponse:
        """Replay the run and render the page with the differences, without a redirect: they are not stored."""
        # No redirect: the differences are not stored, and the process that serves the next request may have other code.
        if confirmation.permission_error is not None:
            refuse(request, confirmation.action, confirmation.permission_error, run=run)
        if confirmation.why_not is not None:
            return self.render_page(request, run, confirmation, form, status=409)
        if not form.is_valid():
            return self.render_page(request, run, confirmation, form)
        try:
            differences = self.act(request, run, form)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self.render_page(request, run, confirmation, form, status=409)
        # The differences show payloads.
        audit.record_read(actor_of(request), run)
        return self.render_page(
            request, run, confirmation, form, compared=True, differences=[_comparison_row(row) for row in differences]
        )


def _comparison_row(comparison: InputComparison) -> ComparisonRow:
    difference = comparison.difference
    return ComparisonRow(
        event=difference.event,
        command=difference.command,
        path=difference.path,
        place=difference.place or "",
        recorded=format_payload(comparison.recorded),
        produced=format_payload(comparison.produced),
    )


def _permission_error(user: Person, run: Instance) -> str | None:
    if policy().allows(user, Operation(action=CompareInputs.name, permission=_PERMISSION).of(run)):
        return None
    return _("You may not compare inputs: this requires the permission %(permission)s.") % {"permission": _PERMISSION}
