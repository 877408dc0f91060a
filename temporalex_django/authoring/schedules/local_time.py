"""Instants of wall-clock times: one as a rule, none or a shifted one in a gap, two in a fold.

A clock change forwards makes a gap: its wall-clock times do not exist. One backwards makes a fold: its wall-clock times
exist twice. ``gap`` is ``"shift"`` (the instant at which the gap ends) or ``"skip"``; ``fold`` is ``"first"``,
``"second"`` or ``"both"``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from temporalex_django.core.names import quoted
from temporalex_django.errors import ScheduleInvalid

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_ZERO = timedelta()
_LOCAL_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_LAST_DAY = datetime(9999, 12, 29, tzinfo=UTC)


@lru_cache(maxsize=512)
def load_zone(name: str) -> tzinfo:
    """Return the time zone with that name of the tz database. Raises ``ScheduleInvalid`` for an unknown one."""
    if name == "UTC":
        return UTC  # much faster than the file of the same name
    if name in _LOCAL_ZONES:
        raise ScheduleInvalid(f"the time zone {quoted(name)} differs from machine to machine: name a place instead")
    try:
        return ZoneInfo(name)
    # OSError: the name of a folder, such as "Europe", or a name that is too long for a file.
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise ScheduleInvalid(
            f"there is no time zone {quoted(name)}: use a name from the tz database, such as 'Europe/Berlin' or 'UTC'"
        ) from None


def wall_time(instant: datetime, zone: tzinfo) -> datetime:
    """Return the naive wall-clock time of an instant in the zone."""
    return instant.astimezone(zone).replace(tzinfo=None)


def instants_of(wall: datetime, zone: tzinfo, *, gap: str, fold: str) -> tuple[datetime, ...]:
    """Return the instants (in UTC, ascending) at which clocks in the zone show a naive wall-clock time.

    There is one as a rule. ``gap`` decides for a time that a clock change leaves out: ``"shift"`` (the end of the gap)
    or ``"skip"``. ``fold`` decides for a time that exists twice: ``"first"``, ``"second"`` or ``"both"``.
    """
    first_offset = _offset(wall.replace(tzinfo=zone, fold=0))
    second_offset = _offset(wall.replace(tzinfo=zone, fold=1))
    first = (wall - first_offset).replace(tzinfo=UTC)
    if first_offset == second_offset:
        return (first,)
    second = (wall - second_offset).replace(tzinfo=UTC)
    if first_offset > second_offset:
        return {"first": (first,), "second": (second,), "both": (first, second)}[fold]
    # In a gap, PEP 495 gives the offset before the change for fold=0, so `first` is later than the change.
    return (_transition(second, first, zone),) if gap == "shift" else ()


def is_second_pass(instant: datetime, zone: tzinfo) -> bool:
    """Return True if the wall-clock time of the instant exists twice, and this is the second time."""
    return instant.astimezone(zone).fold == 1


def earliest_wall(after: datetime, zone: tzinfo) -> datetime:
    """Return a lower bound of the wall-clock times that clocks in the zone show after the instant ``after``.

    Usually this is the wall-clock time of ``after``. Shortly before a fold it is earlier by the length of the fold,
    because the second pass repeats wall-clock times that are over. Folds are at most a day long, a day apart.
    """
    local = after.astimezone(zone)
    wall = local.replace(tzinfo=None)
    # The last two days of the calendar of Python have no next day in every zone.
    next_day = min(after, _LAST_DAY) + _DAY
    return wall - max(_ZERO, _offset(local) - _offset(next_day.astimezone(zone)))


def _offset(local: datetime) -> timedelta:
    return cast("timedelta", local.utcoffset())


def _transition(earlier: datetime, later: datetime, zone: tzinfo) -> datetime:
    """Return the instant of the one clock change that lies between the instants ``earlier`` and ``later``."""
    old_offset = _offset(earlier.astimezone(zone))
    while later - earlier > _SECOND:
        middle = earlier + (later - earlier) // (2 * _SECOND) * _SECOND
        if _offset(middle.astimezone(zone)) == old_offset:
            earlier = middle
        else:
            later = middle
    return later
