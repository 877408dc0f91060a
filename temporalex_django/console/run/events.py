"""The events of a run one by one, and their comparison with the present code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.console.base import (
    FormattedPayload,
    actor_of,
    format_duration,
    format_payload,
    posted_data,
    refuse,
    user_of,
)
from temporalex_django.console.run.views import Confirmation, RunActionView
from temporalex_django.core.history.events import HistoryEvent as Event
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.forms.payload_forms import TokenForm
from temporalex_django.models import HistoryEvent, Instance
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations import audit
from temporalex_django.operations.runs.history_action import CompareInputs, InputComparison

# --- events -----------------------------------------------------------------------------------------------------------
#
# A page of the events of a run, with the activations that wrote them.


EVENTS_PER_PAGE = 100

#: Families of event kinds, for the colour; the page always shows the kind as text too. The first match counts.
_FAMILIES = (
    ("fail", ("Failed", "TimedOut", "Terminated")),
    ("done", ("Completed",)),
    ("message", ("Signal", "Update", "Cancel", "External")),
    ("time", ("Timer",)),
    ("work", ("Activity", "Child")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of the history, as the page of a run shows it.

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
    """One activation of a run with its events.

    ``since`` is the time that has passed since the activation before it on the page, as text.
    """

    number: int
    at: datetime
    since: str = ""
    # Of the event ActivationStarted, which is the heading and no row.
    seq: int | None = None
    rows: list[EventRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """A page of the events of a run: its number, the number of pages, and its activations.

    The last page has the newest events; it is shown if the URL has no number.
    """

    activations: Sequence[ActivationRow]
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


def read_events(run: Instance, *, page: str, alias: str, redactor: Redactor) -> EventPage:
    """Read a page of the events of a run.

    ``page`` is its number as text. A number out of range means the nearest page, and any other text the last page. One
    read, two for an earlier run of a chain.
    """
    events = HistoryEvent.objects.using(alias).filter(run_id=run.pk)
    chain = run.chain
    # The row of the chain has the length of its newest run only; for an earlier run, read its last event.
    length = chain.length if chain.run_id == run.pk else events.aggregate(last=Max("seq"))["last"] or 0
    number, count, first = _place_of(page, length)
    event_rows = events.filter(seq__gt=first, seq__lte=first + EVENTS_PER_PAGE).order_by("seq")
    data: dict[int, Any] = {}
    page_events = []
    for event in event_rows:
        data[event.seq] = _redact_data(event, redactor)
        page_events.append(_core_event(event, data[event.seq]))
    return EventPage(activations=_activation_rows(page_events, data), number=number, count=count)


def page_of_events(events: Sequence[Event], *, page: str, redactor: Redactor) -> EventPage:
    """Return a page of the history that a run on a cluster has told, as ``read_events`` does for others."""
    number, count, first = _place_of(page, len(events))
    page_events = [redactor.redact_event(event) for event in events[first : first + EVENTS_PER_PAGE]]
    data = {event.number: event.attributes for event in page_events}
    return EventPage(activations=_activation_rows(page_events, data), number=number, count=count)


def _place_of(page: str, length: int) -> tuple[int, int, int]:
    """Return ``(number of the page, number of pages, number of events before it)``."""
    count = max(1, -(-length // EVENTS_PER_PAGE))
    if page.isascii() and page.isdigit() and len(page) < 10:
        number = min(max(int(page), 1), count)
        return number, count, (number - 1) * EVENTS_PER_PAGE
    # Without a number, the newest events fill the page: the last one may be short.
    return count, count, max(0, length - EVENTS_PER_PAGE)


def _redact_data(event: HistoryEvent, redactor: Redactor) -> Any:
    """Keep attributes that the codec cannot read for users who may see payloads: the page shows the error."""
    data = event.data
    if isinstance(data, UnreadablePayload) and redactor.shows_payloads:
        return data
    return redactor.redact_attributes(data, kind=event.kind)


def _core_event(event: HistoryEvent, data: Any) -> Event:
    attributes = data if isinstance(data, dict) else {}
    return Event(number=event.seq, activation=event.activation, kind=event.kind, at=event.at, attributes=attributes)


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


# --- compare ----------------------------------------------------------------------------------------------------------
#
# The page that replays a run with the present code and shows the inputs that differ.


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

    template = "temporalex_django/console/run/compare.html"

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
