"""The time at which a run begins, as the caller of a start named it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalex_django.core.names import aware_datetime, wait_seconds
from temporalex_django.errors import InvalidStart

#: The options of a start that name its times.
TIME_OPTIONS = ("start_at", "start_delay", "start_before")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """The checked times of a start; each may be None.

    The run begins at ``start_at``, or ``start_delay`` seconds after the start. It is timed out if it has not begun by
    ``start_before``.
    """

    start_at: datetime | None = None
    start_delay: float | None = None
    start_before: datetime | None = None

    def as_options(self) -> dict[str, Any]:
        """Return the times that are set, as keyword arguments for ``RunStart``."""
        values = {name: getattr(self, name) for name in TIME_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


_NO_TIMES = StartTimes()


def check_start_times(start_at: object, start_delay: object, start_before: object, *, label: str) -> StartTimes:
    """Return the times of a start, which may each be None.

    ``start_at`` and ``start_before`` are datetimes with a time zone. ``start_delay`` is a timedelta or a number of
    seconds. ``label`` names the start in errors. Raises ``InvalidStart``.
    """
    if start_at is None and start_delay is None and start_before is None:
        return _NO_TIMES
    if start_at is not None and start_delay is not None:
        raise InvalidStart(f"{label}: pass start_at or start_delay, not both")
    begin = _check_time(start_at, "start_at", label=label)
    limit = _check_time(start_before, "start_before", label=label)
    if begin is not None and limit is not None and limit <= begin:
        raise InvalidStart(
            f"{label}: start_before ({limit.isoformat()}) must be later than start_at ({begin.isoformat()})"
        )
    delay = None
    if start_delay is not None:
        try:
            delay = wait_seconds(start_delay, label="start_delay")
        except (TypeError, ValueError) as exc:
            raise InvalidStart(f"{label}: {exc}") from None
    return StartTimes(start_at=begin, start_delay=delay, start_before=limit)


def _check_time(value: object, name: str, *, label: str) -> datetime | None:
    """Return ``value``, the option ``name`` of a start, if it is None or a datetime with a time zone.

    ``label`` names the start in the message. Raises ``InvalidStart``.
    """
    if value is None:
        return None
    try:
        return aware_datetime(value, label=name)
    except (TypeError, ValueError) as exc:
        raise InvalidStart(f"{label}: {exc}") from None


def start_time_of_child(times: StartTimes, now: datetime) -> dict[str, str]:
    """Return the times of a child that is started at ``now``, as a history stores them: texts in ISO format, by name.

    The delay is stored as the time to which it leads, so that a replay does not compute it again.
    """
    start_at = times.start_at
    if times.start_delay is not None:
        start_at = now + timedelta(seconds=times.start_delay)
    moments = {"start_at": start_at, "start_before": times.start_before}
    return {name: moment.isoformat() for name, moment in moments.items() if moment is not None}
