"""Parts that all pages of the console share: the user and the actor of a request, refusals, and HTML of values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, QueryDict
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from temporalex_django.access import VIEW
from temporalex_django.authoring.authorization import Person
from temporalex_django.contrib.request_id import request_id
from temporalex_django.errors import IdempotencyKeyReused, OutcomeUnknown
from temporalex_django.models import EndedTask, HumanTask, Instance, Status
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations import audit
from temporalex_django.operations.audit import client_address
from temporalex_django.operations.base import Actor
from temporalex_django.operations.idempotency import DuplicateRequest, IdempotentRequest
from temporalex_django.present import formatting


def user_of(request: HttpRequest) -> Person:
    """Return the user of the request."""
    # Views of an admin site are wrapped in its permission check, so this is no AnonymousUser.
    return cast("Person", request.user)


def posted_data(request: HttpRequest) -> QueryDict | None:
    """Return the data of a POST request, to which a view binds its form, or None for other methods.

    None leaves the form unbound.
    """
    if request.method == "POST":
        return request.POST
    return None


def actor_of(request: HttpRequest) -> Actor:
    """Return the actor for an operation of the admin: the user, and their address and request id for the audit log."""
    return Actor(
        user=user_of(request), source="admin", address=client_address(request.META), request_id=request_id(request.META)
    )


def refuse(
    request: HttpRequest,
    action: str,
    reason: str,
    *,
    run: Instance | None = None,
    workflow: str = "",
    message: str = "",
) -> NoReturn:
    """Record in the audit log that the user may not perform an operation; raise ``PermissionDenied`` with the reason.

    ``action`` is the name of the operation. ``run``, or else the class ``workflow``, is what they wanted to operate.
    ``message`` is the name of the message that they wanted to send.
    """
    audit.record_denial(actor_of(request), action, reason, run=run, workflow=workflow, message=message)
    raise PermissionDenied(reason)


def view_permission_error() -> str:
    """Return the message for a user who may not view runs, which names the missing permission."""
    return _("You may not view runs: this requires the permission %(wanted)s.") % {"wanted": VIEW.permission}


def idempotent_request(request: HttpRequest, token: str) -> IdempotentRequest:
    """Return the posted form as a request that is executed once, however often the browser posts it.

    ``token`` is the random value in a hidden field, by which a repeated post is recognized. A token of one page does
    not count on another.
    """
    # The address is part of the request: a token of one page does not count on another.
    page = request.get_full_path().encode("utf-8", "replace")
    return IdempotentRequest(by=actor_of(request), key=f"admin:{token}", request=page)


def is_duplicate_request(request: HttpRequest, token: str) -> bool:
    """Return True if a form with this token was executed on this page before. One read."""
    try:
        idempotent_request(request, token).check_duplicate()
    except DuplicateRequest:
        return True
    # The token belongs to another page, or its request has not ended. Executing the request raises the same error,
    # with its message.
    except (IdempotencyKeyReused, OutcomeUnknown):
        return False
    return False


class CappedPaginator(Paginator):  # type: ignore[type-arg] # generic in the stubs only
    """A paginator for big tables: it counts at most ``MAX_COUNT`` rows and offers no pages after them.

    Counting all rows would take seconds.
    """

    MAX_COUNT = 10_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.MAX_COUNT + 1].count())


# --- formatting -------------------------------------------------------------------------------------------------------
#
# HTML of statuses, times and payloads. All text is escaped, and no script or style is made.


#: Largest number of characters of a payload that a page shows; the REST API returns all of it.
MAX_PAYLOAD_LENGTH = 20_000
_PREVIEW_LENGTH = 90
_CELL_LENGTH = 90

#: A different shape for each status (16 × 16), because people who see no colours must tell them apart.
_SHAPES = {
    "pending": '<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2"'
    ' stroke-dasharray="3 2"/>',
    "running": '<path d="M4 2.5l9.5 5.5L4 13.5z" fill="currentColor"/>',
    "waiting": '<path d="M4 2.5h3v11H4zM9 2.5h3v11H9z" fill="currentColor"/>',
    "completed": '<path d="M2.5 8.5l3.8 4 7-9" fill="none" stroke="currentColor" stroke-width="2.4"/>',
    "failed": '<path d="M3 3l10 10M13 3L3 13" fill="none" stroke="currentColor" stroke-width="2.4"/>',
    "cancelled": '<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<path d="M4 12l8-8" stroke="currentColor" stroke-width="2"/>',
    "terminated": '<path d="M3 3h10v10H3z" fill="currentColor"/>',
    "timed_out": '<circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="2"/>'
    '<path d="M8 4.5V8l2.6 2" fill="none" stroke="currentColor" stroke-width="1.8"/>',
    "continued_as_new": '<path d="M2 8h10M8.5 4l4 4-4 4" fill="none" stroke="currentColor" stroke-width="2.2"/>',
    "blocked": '<path d="M8 1.5l7 12.5H1z" fill="currentColor"/>',
    "alive": '<circle cx="8" cy="8" r="5" fill="currentColor"/>',
    # Outcomes of the slots of schedules; a slot that waits is pending.
    "started": '<circle cx="8" cy="8" r="5.5" fill="currentColor"/>',
    "skipped": '<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2"/>',
    "missed": '<path d="M8 2.5l6.3 11.5H1.7z" fill="none" stroke="currentColor" stroke-width="1.8"/>',
    "gone": '<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2"/>',
}

_TASK_BADGES = {
    "READY": "pending",
    "RUNNING": "running",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "SUCCESSFUL": "completed",
}


def progress_bar(done: float, total: float, text: str) -> SafeString:
    """Return the HTML of a bar for the progress that a task or an activity has reported, with its figures and text."""
    label = f"{done:g} / {total:g} {text}".strip()
    return format_html(
        '<progress class="tx-progress" max="{}" value="{}" aria-label="{}"></progress> <span class="tx-quiet">{}</span>',
        total or 1, min(done, total) if total else 1, label, label,
    )  # fmt: skip


def badge(kind: str, label: str) -> SafeString:
    """Return the HTML of a badge: a symbol, the text ``label`` and a colour.

    ``kind`` is a status of a run or another state, such as "blocked"; it selects the symbol and the colour.
    """
    return format_html(
        '<span class="tx-badge tx-{}"><svg class="tx-shape" viewBox="0 0 16 16" width="12" height="12"'
        ' aria-hidden="true" focusable="false">{}</svg> {}</span>',
        # The kind becomes a CSS class, so it must be one of ours.
        kind if kind in _SHAPES else "pending",
        shape(kind),
        label,
    )


def shape(kind: str) -> SafeString:
    """Return the symbol of a badge, as the content of an SVG of 16 × 16; empty for an unknown ``kind`` of state."""
    return mark_safe(_SHAPES.get(kind, ""))  # noqa: S308 - constants of this module


def status_badge(status: str, *, blocked: bool = False) -> SafeString:
    """Return the HTML badge of a run's status, with a second badge if the run is blocked."""
    if status == "blocked":
        return badge("blocked", _("Blocked"))
    # A later version of the package may have written a status that this one does not know.
    try:
        label = str(Status(status).label)
    except ValueError:
        label = status
    status_html = badge(status, label)
    if blocked:
        return format_html("{} {}", status_html, badge("blocked", _("Blocked")))
    return status_html


def task_status_badge(status: str) -> SafeString:
    """Return the HTML of a badge for the status of a background task."""
    names = {"READY": _("Ready"), "RUNNING": _("Running"), **dict(EndedTask.TaskStatus.choices)}
    return badge(_TASK_BADGES.get(status, "failed"), str(names.get(status, status)))


def format_time(at: datetime) -> SafeString:
    """Return a time as HTML, as sentences write it: in the current time zone, seen from now.

    The date and the time with seconds are shown on hover.
    """
    return formatting.format_time_html(at, timezone.now())


def claimed_by_name(task: HumanTask) -> str:
    """Return the name of the person who has claimed the human task now.

    The text is empty if nobody has, or if the claim has expired.
    """
    is_claimed = task.claimed_until is not None and task.claimed_until > timezone.now()
    if is_claimed:
        return task.claimed_by_name
    return ""


def shorten(text: str) -> str:
    """Cut a text to the length that a cell of a list shows."""
    if len(text) <= _CELL_LENGTH:
        return text
    return text[:_CELL_LENGTH] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormattedPayload:
    """A payload as a page shows it: ``preview`` is one line, and ``text`` the indented JSON.

    ``left_out`` is the number of characters of the JSON that are cut off.
    """

    preview: str
    text: str
    left_out: int = 0

    @property
    def is_short(self) -> bool:
        return self.text == self.preview


def format_payload(payload: Any) -> FormattedPayload:
    """Format a payload as indented JSON, at most ``MAX_PAYLOAD_LENGTH`` characters of it.

    A payload that the codec cannot read (an ``UnreadablePayload``) is shown as a placeholder, so that the rest of the
    page works.
    """
    # A page must show a run whose payloads this process cannot decode, so the placeholder is text and no error.
    if isinstance(payload, UnreadablePayload):
        return FormattedPayload(preview=repr(payload), text=repr(payload))
    line = _to_json(payload, indent=None)
    if len(line) <= _PREVIEW_LENGTH:
        return FormattedPayload(preview=line, text=line)
    text = _to_json(payload, indent=2)
    return FormattedPayload(
        preview=line[:_PREVIEW_LENGTH] + "…",
        text=text[:MAX_PAYLOAD_LENGTH],
        left_out=max(0, len(text) - MAX_PAYLOAD_LENGTH),
    )


def format_call(call: Any) -> FormattedPayload:
    """Format the arguments of a call as people write them: ``"c22", amount=56929``.

    ``call`` is a pair of positional and keyword arguments, as an activity stores them. Anything else, such as a
    placeholder, is formatted by ``format_payload``.
    """
    match call:
        case [[*positional], {**named}]:
            lines = [format_payload(value).text for value in positional]
            lines += [f"{name}={format_payload(value).text}" for name, value in named.items()]
            line = ", ".join(lines)
            if len(line) <= _PREVIEW_LENGTH:
                return FormattedPayload(preview=line or "–", text=line or "–")
            text = ",\n".join(lines)
            return FormattedPayload(
                preview=line[:_PREVIEW_LENGTH] + "…",
                text=text[:MAX_PAYLOAD_LENGTH],
                left_out=max(0, len(text) - MAX_PAYLOAD_LENGTH),
            )
        case _:
            return format_payload(call)


def _to_json(payload: Any, *, indent: int | None) -> str:
    try:
        return json.dumps(payload, indent=indent, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return repr(payload)


def format_duration(span: timedelta | None) -> str:
    """Return a time span as text, such as ``1.2 s``, ``3 min 5 s``, ``2 h 4 min`` or ``3 d 2 h``; empty for None."""
    if span is None:
        return ""
    # Two clocks may be involved: a span that is negative by their difference counts as none.
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole_seconds = int(seconds)
    for size, unit, below, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole_seconds >= size:
            rest = whole_seconds % size // below
            return f"{whole_seconds // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole_seconds} s"
