"""Ids of the runs that a schedule starts, made from a template such as ``{schedule}-{slot:%Y%m%dT%H%M}``."""

from __future__ import annotations

from datetime import datetime
from string import Formatter

from temporalex_django.authoring.schedules.local_time import is_second_pass, load_zone, wall_time
from temporalex_django.authoring.unique import check_id
from temporalex_django.core.names import quoted
from temporalex_django.errors import InvalidId, ScheduleInvalid

DEFAULT_TEMPLATE = "{schedule}-{slot:%Y%m%dT%H%M}"
_DEFAULT_FORMAT = "%Y%m%dT%H%M"
#: As in the official names of the hours of a fold in Germany, 2A and 2B.
_LATER_HOUR = "b"


def render_run_id(template: str, *, schedule: str, instant: datetime, zone: str) -> str:
    """Return the business id of the run for a slot, a time at which a schedule fires.

    ``{schedule}`` is the name of the schedule. ``{slot}`` is the wall-clock time of ``instant`` (aware) in the zone, in
    the format of ``strftime`` after the colon. In the second pass of a fold, ids of templates with ``{slot}`` end with
    ``b``, so that they differ from those of the first pass. Raises ``ScheduleInvalid``.
    """
    time_zone = load_zone(zone)
    values = {"schedule": schedule}
    parts = []
    for literal, field, time_format, conversion in _parsed(template):
        parts.append(literal)
        if field == "slot" and not conversion and "{" not in (time_format or ""):
            parts.append(wall_time(instant, time_zone).strftime(time_format or _DEFAULT_FORMAT))
        elif field in values and not conversion and not time_format:
            parts.append(values[field])
        elif field is not None:
            raise ScheduleInvalid(
                f"workflow_id: {quoted(template)} has the unknown field {{{field}}}: use {{schedule}} and "
                f"{{slot:{_DEFAULT_FORMAT}}}, without conversions"
            )
    if has_slot(template) and is_second_pass(instant, time_zone):
        parts.append(_LATER_HOUR)
    try:
        return check_id("".join(parts))
    except InvalidId as exc:
        raise ScheduleInvalid(f"workflow_id: the template {quoted(template)} gives no id: {exc}") from None


def has_slot(template: str) -> bool:
    """Return True if the ids that the template makes contain the time of the slot (time to fire).

    Raises ``ScheduleInvalid``.
    """
    return any(field == "slot" for _, field, _, _ in _parsed(template))


def _parsed(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    # Not `str.format`: people write templates, and it would let them read attributes of objects.
    try:
        return [*Formatter().parse(template)]
    except (ValueError, TypeError) as exc:
        raise ScheduleInvalid(f"workflow_id: {quoted(template)} is not a template: {exc}") from None
