"""Cron expressions of five fields, as naive wall-clock times. The package ``cronsim`` reads and enumerates them.

Fields are minute, hour, day of the month, month and day of the week. They take ``*``, numbers, lists, ranges, steps,
and English names of three letters (``mon``, ``jan``). Sunday is 0 or 7.

- ``L`` is the last day of the month, and ``LW`` its last weekday.
- ``fri#2`` is the second Friday of the month, and ``5L`` the last one.
- The day of the month and the day of the week must both match if one of them begins with ``*``. Otherwise a day
  that matches either one is enough, as in Debian's cron.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from temporalex_django.core.names import MAX_LENGTH, quoted
from temporalex_django.errors import ScheduleInvalid

if TYPE_CHECKING:
    from cronsim import CronSim

_FIELDS = 5
_MONTH_FIELD = 3
_ORIGIN = datetime(2000, 1, 1)  # noqa: DTZ001 - wall-clock time has no zone


def normalize(expression: object) -> str:
    """Return the cron expression with single spaces. Raises ``ScheduleInvalid`` if it is not valid or never fires."""
    if not isinstance(expression, str) or len(expression) > MAX_LENGTH:
        raise ScheduleInvalid(
            f"cron: {quoted(expression)} must be a string of at most {MAX_LENGTH} characters, such as '30 2 * * *'"
        )
    fields = expression.split()
    if len(fields) == _FIELDS + 1:
        raise ScheduleInvalid(
            f"cron: {quoted(expression)} has six fields: leave out the seconds, or use `every` for intervals below a minute"
        )
    if len(fields) != _FIELDS:
        raise ScheduleInvalid(
            f"cron: {quoted(expression)} must have five fields (minute, hour, day of the month, month, day of the week), "
            "such as '30 2 * * *'"
        )
    text = " ".join(fields)
    _prototype(text)
    return text


def runs_through(expression: str) -> bool:
    """Return True if the hour field of the cron expression begins with ``*``.

    Such an expression follows elapsed time: it fires in both passes of an hour that a clock change repeats, and not in
    one that it skips.
    """
    return expression.split()[1].startswith("*")


def walls_after(expression: str, begin: datetime) -> Iterator[datetime]:
    """Return an iterator of the naive wall-clock times that match the cron expression, later than ``begin``, ascending.

    It ends when nothing matches for fifty years.
    """
    # A copy, since reading the expression takes longer than finding the next time. Only `dt` changes.
    cron = copy(_prototype(expression))
    cron.dt = begin.replace(microsecond=0)
    return cron


@lru_cache(maxsize=4096)
def _prototype(expression: str) -> CronSim:
    try:
        return _read(expression)
    except ValueError as exc:
        fields = expression.split()
        fields[_MONTH_FIELD] = "*"
        try:
            _read(" ".join(fields))
        except ValueError:
            raise ScheduleInvalid(f"cron: {quoted(expression)} cannot be read: {exc}") from None
        raise ScheduleInvalid(
            f"cron: {quoted(expression)} never fires: no such month has that day, or no month has that name"
        ) from None


def _read(expression: str) -> CronSim:
    """Return the parsed cron expression. Raises ``ValueError`` for any error of the parser."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - the package is importable without it

    try:
        return CronSim(expression, _ORIGIN)
    # The parser asserts and compares where parts do not go together, as in `1#2/3`.
    except (CronSimError, AssertionError, TypeError, ValueError) as exc:
        raise ValueError(str(exc).replace("Bad ", "the field is wrong: ") or "the fields do not fit") from None
