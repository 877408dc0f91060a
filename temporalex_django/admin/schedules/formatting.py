"""Schedules as text and links, and the base of their admin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import Operation, policy, schedules_for
from temporalex_django.admin.base import ReadOnlyAdmin
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.schedules.slots import load_zone
from temporalex_django.console.base import badge, refuse, shape, user_of
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import storage
from temporalex_django.operations.schedules.describe import SlotDescription
from temporalex_django.operations.schedules.operations import VIEW_SCHEDULE, ScheduleAction

# --- formatting -------------------------------------------------------------------------------------------------------
#
# Texts and badges of schedules: their states, the outcomes of slots, and the times at which they fire.


STATE_LABELS: dict[str, Promise] = {
    "active": gettext_lazy("Active"),
    "paused": gettext_lazy("Paused"),
    "gone": gettext_lazy("No longer in the code"),
    "ended": gettext_lazy("Ended"),
    "stalled": gettext_lazy("Skips its slots"),
}
_STATE_BADGES = {"active": "alive", "stalled": "blocked", "paused": "waiting", "gone": "gone", "ended": "completed"}
_OUTCOMES: dict[str, Promise] = {
    "started": gettext_lazy("started"),
    "waiting": gettext_lazy("waiting"),
    "skipped": gettext_lazy("skipped"),
    "missed": gettext_lazy("missed"),
    "failed": gettext_lazy("failed to start"),
}
_REASONS: dict[str, Promise] = {
    "overlap": gettext_lazy("an earlier run was open"),
    "buffer": gettext_lazy("too many slots were waiting"),
    "window": gettext_lazy("older than the catch-up window"),
    "paused": gettext_lazy("the schedule was paused"),
    "gone": gettext_lazy("the code no longer declared the schedule"),
}
_CAUSES: dict[str, Promise] = {
    "time": gettext_lazy("scheduled time"),
    "backfill": gettext_lazy("backfill"),
    "trigger": gettext_lazy("triggered"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTime:
    """A time at which a schedule fires, as a page shows it.

    ``schedule_text`` is the wall clock in the zone of the schedule, ``viewer_text`` that in the zone of the viewer, and
    ``iso`` the instant. ``note`` says that the clocks of the schedule's zone change before it; it may be empty.
    """

    iso: str
    schedule_text: str
    viewer_text: str
    note: str


def fire_times(instants: Iterable[datetime], zone_name: str) -> list[FireTime]:
    """Return these times as ``FireTime`` objects, which a page shows; an empty list if the zone is not known.

    ``zone_name`` is the zone of the schedule.
    """
    try:
        zone = load_zone(zone_name)
    except ScheduleInvalid:
        return []
    rows = []
    previous: datetime | None = None
    for instant in instants:
        local = instant.astimezone(zone)
        rows.append(
            FireTime(
                iso=instant.isoformat(),
                schedule_text=time_text(instant, zone),
                viewer_text=time_text(instant, timezone.get_current_timezone()),
                note=_clock_change(previous, local),
            )
        )
        previous = local
    return rows


def time_text(instant: datetime, zone: tzinfo) -> str:
    """Return the wall-clock time of an instant in a zone as text, with the day of the week and the offset from UTC."""
    local = instant.astimezone(zone)
    clock = f"{local:%H:%M:%S}"
    if not local.second:
        clock = f"{local:%H:%M}"
    return f"{formats.date_format(local, 'D')} {formats.date_format(local, 'j M Y')}, {clock} {local.isoformat(timespec='minutes')[16:]}"


def _clock_change(previous: datetime | None, local: datetime) -> str:
    if previous is None or previous.utcoffset() == local.utcoffset():
        return ""
    return _("The clocks change between the time above and this one.")


def state_badge(state: str) -> SafeString:
    """Return the HTML badge for the state of a schedule: "active", "paused", "gone" or "ended"."""
    return badge(_STATE_BADGES.get(state, "pending"), str(STATE_LABELS.get(state, state)))


def outcome_badge(slot: ScheduleSlot | SlotDescription) -> SafeString:
    """Return the HTML badge for the outcome of a slot (a time at which a schedule fires), such as "started".

    If the row stands for several slots with the same outcome, the badge says how many.
    """
    return badge(_shape_of(slot.outcome), _counted(slot))


def reason_text(slot: SlotDescription) -> str:
    """Return why a slot (a time to fire) has its outcome, as a text; empty for a slot that was started in time."""
    reason = str(_REASONS.get(slot.reason, slot.reason))
    return ": ".join(filter(None, (slot.error_code, slot.error))) or reason


def cause_text(slot: SlotDescription) -> str:
    """Return the text that says what caused a slot of a schedule: its time had come, a backfill, or a trigger.

    The name of the person is added, if one caused it.
    """
    cause = str(_CAUSES.get(slot.cause, slot.cause))
    if slot.cause == "backfill" and slot.reason:
        reason = str(_REASONS.get(slot.reason, slot.reason))
        cause = _("backfill of a slot that had been left out (%(reason)s)") % {"reason": reason}
    if slot.actor:
        return _("%(cause)s by %(name)s") % {"cause": cause, "name": slot.actor}
    return cause


def outcome_shapes(slots: Sequence[ScheduleSlot], zone_name: str) -> SafeString | str:
    """Return the HTML of a list of symbols, one for the outcome of each slot.

    Each symbol has the time of the slot and its outcome as text, for the mouse and for screen readers.
    """
    if not slots:
        return "–"
    try:
        zone = load_zone(zone_name)
    except ScheduleInvalid:
        zone = timezone.get_current_timezone()
    texts = [f"{time_text(slot.at, zone)}: {_counted(slot)}" for slot in slots]
    items = format_html_join(
        "",
        '<li class="tx-{}" title="{}"><svg class="tx-shape" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"'
        ' focusable="false">{}</svg><span class="tx-hidden">{}</span></li>',
        [
            (_shape_of(slot.outcome), text, shape(_shape_of(slot.outcome)), text)
            for slot, text in zip(slots, texts, strict=True)
        ],
    )
    return format_html('<ul class="tx-outcomes">{}</ul><span class="tx-under">{}</span>', items, _totals(slots))


def triggered_message(slot: Any) -> tuple[bool, str]:
    """Return ``(started, sentence)`` for the user who has triggered a schedule and so has made the slot.

    ``started`` is True if the run of the slot was started, or waits for an open one. Otherwise the sentence says why
    not.
    """
    match str(slot.outcome):
        case "started":
            return True, _("Triggered: the run %(id)s has been started.") % {"id": slot.workflow_id}
        case "waiting":
            return True, _("Triggered: the run will start when the earlier run closes.")
        case "failed":
            return False, _("Triggered, but the run could not be started: %(error)s") % {"error": slot.error}
        case _:
            reason = str(_REASONS.get(str(slot.reason), slot.reason))
            return False, _("Triggered, but no run was started: %(reason)s.") % {"reason": reason}


def _shape_of(outcome: str) -> str:
    if outcome == "waiting":
        return "pending"
    return outcome


def _counted(slot: ScheduleSlot | SlotDescription) -> str:
    label = str(_OUTCOMES.get(slot.outcome, slot.outcome))
    if slot.count == 1:
        return label
    return ngettext("%(n)d slot %(outcome)s", "%(n)d slots %(outcome)s", slot.count) % {
        "n": slot.count,
        "outcome": label,
    }


def _totals(slots: Sequence[ScheduleSlot]) -> str:
    """Return the number of slots for each outcome, in the order of ``_OUTCOMES``."""
    outcomes = [slot.outcome for slot in slots]
    return ", ".join(f"{outcomes.count(name)} {label}" for name, label in _OUTCOMES.items() if name in outcomes)


def summary_text(row: Schedule, state: str, next_fire: datetime | None, stall: str = "") -> str:
    """Return sentences for the page of a schedule that say what the schedule does now.

    ``state`` is the name of its state, and ``next_fire`` the time at which it fires next, or None. ``stall`` is the
    sentence about the slots that it left out in a row, or empty.
    """
    text = _state_text(row, state, next_fire)
    return f"{stall} {text}" if stall else text


def _state_text(row: Schedule, state: str, next_fire: datetime | None) -> str:
    match state:
        case "gone":
            return _("Paused, because %(module)s no longer declares it.") % {"module": row.module}
        case "paused" if row.paused_by_failures:
            text = ngettext(
                "Paused automatically after %(n)d failure.",
                "Paused automatically after %(n)d failures in a row.",
                row.failures,
            )
            return text % {"n": row.failures}
        case "paused":
            names = {"name": row.paused_by or _("code"), "reason": row.pause_reason}
            if row.pause_reason:
                return _("Paused by %(name)s: %(reason)s") % names
            return _("Paused by %(name)s.") % names
        case "ended":
            return _("Ended: there are no more slots.")
        case _ if next_fire is None:
            return _("Active, but its slots cannot be computed.")
        case _:
            return _("Active. It will next fire on %(time)s.") % {"time": time_text(next_fire, load_zone(row.tz))}


# --- base -------------------------------------------------------------------------------------------------------------
#
# Base class of the admin pages of schedules: which schedules a user sees, and their addresses.


_MANAGE = f"{APP}.{ScheduleAction.permission}"
_MAX_DIGITS = 18


def can_manage(user: Person, action_name: str) -> bool:
    """Return True if the user may perform the operation with that name on schedules."""
    return policy().allows(user, Operation(action=action_name, permission=_MANAGE))


class ScheduleAdminBase(ReadOnlyAdmin[Schedule]):
    """Base class of ``ScheduleAdmin``: it finds the schedules that a user may see, and renders pages about them.

    The views of this package need only this part.
    """

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules that the user may see. Every admin page about a schedule uses it."""
        return schedules_for(user_of(request), alias=storage().alias)

    def has_view_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return policy().allows(user_of(request), VIEW_SCHEDULE)

    def find_schedule(self, request: HttpRequest, ref: str) -> Schedule | None:
        """Return the schedule with the primary key ``ref``, or None if it does not exist or is hidden from the user.

        A user who may not look at schedules at all gets ``PermissionDenied``, which the audit log records.
        """
        if not self.has_view_permission(request):
            error = _("You may not view schedules: this requires the permission %(wanted)s.")
            refuse(request, VIEW_SCHEDULE.action, error % {"wanted": VIEW_SCHEDULE.permission})
        # More digits would overflow the column, and int() accepts digits that are not ASCII.
        if not (ref.isascii() and ref.isdigit() and len(ref) <= _MAX_DIGITS):
            return None
        return self.get_queryset(request).filter(pk=int(ref)).first()

    def schedule_not_found(self, request: HttpRequest, ref: str) -> HttpResponse:
        """Redirect to the index of the admin with a message that the schedule does not exist."""
        return self._get_obj_does_not_exist_redirect(request, self.opts, ref)  # type: ignore[attr-defined,no-any-return]

    def require_manage_permission(self, request: HttpRequest, action_name: str) -> None:
        """Raise ``PermissionDenied`` if the user may not perform this operation on schedules; the audit log records it.

        ``action_name`` is the name of the operation.
        """
        if not can_manage(user_of(request), action_name):
            error = _("You may not manage schedules: this requires the permission %(wanted)s.")
            refuse(request, action_name, error % {"wanted": _MANAGE})

    def address_of(self, row: Schedule, page: str = "change") -> str:
        """Return the URL of a page about the schedule; by default its own page, else the one named ``page``."""
        return reverse(f"{self.admin_site.name}:temporalex_django_schedule_{page}", args=[row.pk])

    @property
    def list_address(self) -> str:
        return reverse(f"{self.admin_site.name}:temporalex_django_schedule_changelist")

    def render_page(
        self,
        request: HttpRequest,
        template: str,
        *,
        title: str,
        row: Schedule | None,
        status: int = 200,
        **context: Any,
    ) -> HttpResponse:
        """Render an admin page about the schedule ``row``, or about a new one if ``row`` is None.

        ``template`` is the name of the template in the folder of schedules, ``status`` the status of the response, and
        ``context`` adds values to the template context.
        """
        page_context = {
            **self.admin_site.each_context(request),
            "title": title,
            "subtitle": None,
            "original": row,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "add": row is None,
            "change": row is not None,
            "is_popup": False,
            "list_address": self.list_address,
            **context,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/temporalex_django/schedule/{template}", page_context, status=status)
