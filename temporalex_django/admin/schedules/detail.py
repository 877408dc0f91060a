"""The template context of the page of a schedule, read with a fixed number of statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.paginator import Page
from django.utils import timezone
from django.utils.translation import gettext as _

from temporalex_django import access
from temporalex_django.admin.background_tasks import task_status_badge
from temporalex_django.admin.schedules.formatting import (
    cause_text,
    fire_times,
    outcome_badge,
    reason_text,
    state_badge,
    summary_text,
    time_text,
)
from temporalex_django.admin.schedules.schedule_form import ScheduleForm, duration_text
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.schedules.slots import load_zone
from temporalex_django.console.base import CappedPaginator, format_payload, status_badge
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.operations.base import Actor
from temporalex_django.operations.schedules.describe import (
    SlotDescription,
    describe_slots,
    describe_table,
    is_stalled,
    load_stalls,
    may_view_args,
    next_fires,
    read_args,
    slots_of,
    state_name,
)
from temporalex_django.operations.schedules.store import backfill_of
from temporalex_django.present.schedule_diagnosis import schedule_diagnoses

_FIRES_SHOWN = 20
_SLOTS_SHOWN = 100


def schedule_detail_context(
    row: Schedule,
    *,
    page: str,
    alias: str,
    by: Actor,
    run_address: Callable[[list[str]], dict[str, str]],
    task_address: Callable[[list[str]], dict[str, str]],
) -> dict[str, Any]:
    """Return the template context of the admin page of a schedule.

    ``page`` is the number of the page of its slots, and ``by`` the actor who looks at it. ``run_address`` takes run ids
    and returns the URLs of those runs that the user may open, by run id; ``task_address`` does the same for the ids of
    tasks. At most five statements, and those of the two.
    """
    state = state_name(row)
    instants = next_fires(row, _FIRES_SHOWN)
    slots: Page[ScheduleSlot] = CappedPaginator(slots_of(row, alias=alias), _SLOTS_SHOWN).get_page(page)
    described = describe_slots(slots.object_list, by.user, alias=alias)
    addresses = run_address([slot.run_id for slot in described if slot.run_id is not None])
    task_addresses = task_address([slot.task_id for slot in described if slot.task_id is not None])
    backfill = backfill_of(row.backfill)
    stalls = []
    if is_stalled(slots.object_list):
        stalls = load_stalls(alias, Schedule.objects.filter(pk=row.pk), access.runs_for(by.user, alias=alias))
    stall = next(schedule_diagnoses(stalls, timezone.now()), None)
    return {
        "badge": state_badge(state if stall is None else "stalled"),
        "state": state,
        "said": summary_text(row, state, instants[0] if instants else None, "" if stall is None else stall.text),
        "words": describe_table(row),
        "facts": _facts(row),
        "args": _args_context(row, by),
        "has_class": bool(row.task) or row.workflow in workflows.registry,
        "fires": fire_times(instants, row.tz),
        "zone": row.tz,
        "viewer_zone": timezone.get_current_timezone_name(),
        "backfill": backfill,
        "page": slots,
        "slots": [_slot_context(slot, {**addresses, **task_addresses}, row.tz) for slot in described],
    }


def _args_context(row: Schedule, by: Actor) -> dict[str, Any]:
    """Name the function that makes the input; ``hidden`` is True if the user may not see it."""
    payload = None
    is_visible = may_view_args(row, by.user)
    if is_visible and row.args is not None:
        payload = format_payload(read_args(row, by))
    return {"function": row.arguments_function, "payload": payload, "hidden": not is_visible}


def _facts(row: Schedule) -> list[tuple[str, str]]:
    """Return ``(label, text)`` pairs, without options that are not set."""
    choices = ScheduleForm.base_fields
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
    for name in ("dst_gap", "dst_fold"):
        field: Any = choices[name]
        stored = getattr(row, name)
        facts.append((str(field.label), str(dict(field.choices).get(stored, stored))))
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


def _slot_context(slot: SlotDescription, addresses: dict[str, str], zone_name: str) -> dict[str, Any]:
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
