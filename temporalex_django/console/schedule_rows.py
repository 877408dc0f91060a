"""Schedules as the pages of the console show them: texts, badges, and the rows of their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from django.utils import formats, timezone
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.authoring.schedules.slots import load_zone
from temporalex_django.console.base import badge, shape, status_badge, task_status_badge
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.forms.schedule_fields import CLOCK_CHANGES, duration_text
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.schedules.describe import SlotDescription

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


def slot_strip(slots: Sequence[SlotDescription], addresses: Mapping[str, str], zone_name: str) -> SafeString | str:
    """Return the HTML of a list of symbols, one for the outcome of each slot.

    Each symbol has the time of the slot, its outcome and the reason as text, for the mouse and for screen readers. It
    links to the run or the task of the slot, or to the run in its way, if ``addresses`` has its id.
    """
    if not slots:
        return "–"
    try:
        zone = load_zone(zone_name)
    except ScheduleInvalid:
        zone = timezone.get_current_timezone()
    items = format_html_join("", "{}", ((_strip_item(slot, addresses, zone),) for slot in slots))
    return format_html('<ul class="tx-outcomes">{}</ul><span class="tx-under">{}</span>', items, _totals(slots))


def _strip_item(slot: SlotDescription, addresses: Mapping[str, str], zone: tzinfo) -> SafeString:
    kind, name = _shape_of(slot.outcome), slot.workflow_id or slot.task_id or ""
    text = f"{time_text(slot.at, zone)}: {_counted(slot)}"
    reason = reason_text(slot)
    if reason:
        text = f"{text}, {reason}"
    if slot.reason == "overlap" and name:
        text = f"{text} ({name})"
    symbol = format_html(
        '<svg class="tx-shape" viewBox="0 0 16 16" width="14" height="14" role="img" aria-label="{}">{}</svg>',
        text, shape(kind),
    )  # fmt: skip
    address = addresses.get(slot.run_id or slot.task_id or "")
    if address:
        symbol = format_html('<a href="{}">{}</a>', address, symbol)
    return format_html('<li class="tx-{}" title="{}">{}</li>', kind, text, symbol)


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


def _totals(slots: Sequence[SlotDescription]) -> str:
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


def schedule_facts(row: Schedule) -> list[tuple[str, str]]:
    """Return ``(label, text)`` pairs, without options that are not set."""
    facts = [
        (_("Owner"), row.get_owner_display()),
        (_("If an earlier run is still open"), row.get_overlap_display()),
        (_("Catch-up window"), duration_text(row.catch_up)),
        (_("Task"), row.task) if row.task else (_("Run ids"), row.workflow_id),
    ]
    if row.jitter:
        facts.append((_("Jitter"), _("up to %(time)s") % {"time": duration_text(row.jitter)}))
    for label, moment in ((_("Start"), row.start), (_("End"), row.end)):
        if moment is not None:
            facts.append((label, _bound_text(row, moment)))
    fires = str(row.fires)
    if row.max_fires is not None:
        fires = _("%(n)d of %(limit)d") % {"n": row.fires, "limit": row.max_fires}
    facts.append((_("Fires"), fires))
    if row.pause_after is not None:
        facts.append((_("Pause after failures"), _("%(n)d in a row") % {"n": row.pause_after}))
    if row.failures:
        facts.append((_("Failures in a row"), str(row.failures)))
    if row.waiting:
        facts.append((_("Waiting slots"), str(row.waiting)))
    for name, (label, choices) in CLOCK_CHANGES.items():
        stored = getattr(row, name)
        facts.append((str(label), str(dict(choices).get(stored, stored))))
    if row.module:
        facts.append((_("Module"), row.module))
    if row.editor_name:
        facts.append((_("Runs on behalf of"), row.editor_name))
    return facts


def _bound_text(row: Schedule, moment: Any) -> str:
    try:
        return time_text(moment, load_zone(row.tz))
    except ScheduleInvalid:
        return str(moment.isoformat())


def _status_of(slot: SlotDescription) -> Any:
    if slot.status is None:
        return None
    return status_badge(slot.status) if slot.task_id is None else task_status_badge(slot.status)


def slot_row(slot: SlotDescription, addresses: Mapping[str, str], zone_name: str) -> dict[str, Any]:
    """Return the row of a slot in the table of a schedule; ``addresses`` has URLs by the ids of runs and tasks."""
    times = [at for at in (slot.at, slot.until) if at is not None]
    return {
        "slot": slot,
        "times": fire_times(times, zone_name),
        "badge": outcome_badge(slot),
        "reason": reason_text(slot),
        "cause": cause_text(slot),
        "name": slot.workflow_id or slot.task_id,
        "address": addresses.get(slot.run_id or slot.task_id or ""),
        "status": _status_of(slot),
    }
