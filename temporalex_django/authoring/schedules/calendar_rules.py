"""Calendar rules, such as "last working day 18:00" or "first monday 09:00 in mar, sep", as naive wall-clock times.

A rule is a day, a time and perhaps months:

- ``15``, ``first``, ``second last`` or ``last`` with ``day``, ``working day`` or a day of the week;
- ``every day``, ``every working day``, ``every monday``;
- the time as ``HH:MM``;
- ``in`` and names of months. Without it, the rule holds for every month.

Working days are Monday to Friday, except holidays. A month that has no such day has no time of the rule.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import lru_cache
from itertools import islice

from temporalex_django.core.names import MAX_LENGTH, quoted
from temporalex_django.errors import ScheduleInvalid

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
ORDINALS = ("first", "second", "third", "fourth", "fifth")
#: The highest position in a month by unit: 23 working days, five of a day of the week.
_HIGHEST = {"day": 31, "working day": 23} | dict.fromkeys(WEEKDAYS, 5)
_LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SATURDAY = 5
#: Months without a match after which a rule is given up: fifty years.
_MONTHS_SEARCHED = 50 * 12
_LAST_YEAR = 9998
_FORMS = "such as 'last working day 18:00', 'first monday 09:00 in mar, sep' or '15 08:00'"
_RULE = re.compile(r"(?P<day>.+?) (?P<hour>\d\d?):(?P<minute>\d\d)(?: in (?P<months>.+))?")
_DAY = re.compile(r"(?:(?P<position>[a-z0-9]+) )?(?:(?P<last>last) )?(?P<unit>working day|[a-z]+)")


@dataclass(frozen=True, slots=True)
class DayRule:
    """A calendar rule after parsing: which day of a month, and at which time.

    ``unit`` says which days count: "day", "working day" or a day of the week. ``position`` 1 is the first of them in
    the month, -1 the last, and 0 means all of them.
    """

    unit: str
    position: int
    at: time
    months: tuple[int, ...]

    def walls_after(self, begin: datetime, is_holiday: Callable[[date], bool]) -> Iterator[datetime]:
        """Yield the naive wall-clock times of the rule that are later than ``begin``, in ascending order.

        It ends when no month has one for fifty years. ``is_holiday(day)`` is called for Mondays to Fridays only, and
        only by rules about working days.
        """
        year, month = begin.year, begin.month
        barren_months = 0
        while barren_months < _MONTHS_SEARCHED and year <= _LAST_YEAR:
            barren_months += 1
            for day in self._days_of(year, month, is_holiday):
                barren_months = 0
                wall = datetime.combine(day, self.at)
                if wall > begin:
                    yield wall
            year, month = (year + 1, 1) if month == len(MONTHS) else (year, month + 1)

    def _days_of(self, year: int, month: int, is_holiday: Callable[[date], bool]) -> Iterator[date]:
        if month not in self.months:
            return iter(())
        numbers = range(1, calendar.monthrange(year, month)[1] + 1)
        ordered = numbers if self.position >= 0 else reversed(numbers)
        days = (date(year, month, number) for number in ordered)
        matches = (day for day in days if self._is_match(day, is_holiday))
        if self.position == 0:
            return matches
        return islice(matches, abs(self.position) - 1, abs(self.position))

    def _is_match(self, day: date, is_holiday: Callable[[date], bool]) -> bool:
        if self.unit == "day":
            return True
        if self.unit == "working day":
            return day.weekday() < _SATURDAY and not is_holiday(day)
        return WEEKDAYS[day.weekday()] == self.unit


def normalize(rule: object) -> str:
    """Return a calendar rule in small letters with single spaces. Raises ``ScheduleInvalid`` if it cannot be parsed."""
    if not isinstance(rule, str) or len(rule) > MAX_LENGTH:
        raise ScheduleInvalid(f"calendar: {quoted(rule)} must be a string of at most {MAX_LENGTH} characters, {_FORMS}")
    text = " ".join(rule.lower().replace(",", " , ").split()).replace(" ,", ",")
    parse_rule(text)
    return text


@lru_cache(maxsize=1024)
def parse_rule(rule: str) -> DayRule:
    """Return the calendar rule as a ``DayRule``; ``rule`` is a normalized text. Raises ``ScheduleInvalid``."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ScheduleInvalid(
            f"calendar: {quoted(rule)} cannot be read: write a day, a time and perhaps months, {_FORMS}"
        )
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 23 or minute > 59:
        raise ScheduleInvalid(f"calendar: {quoted(rule)} has no time of day: use 00:00 to 23:59")
    months = tuple(range(1, 13)) if match["months"] is None else _months_of(match["months"], rule)
    unit, position = _day_of(match["day"], rule)
    if unit == "day" and all(abs(position) > _LONGEST_MONTH[month - 1] for month in months):
        raise ScheduleInvalid(f"calendar: {quoted(rule)} never fires: no such month has {abs(position)} days")
    return DayRule(unit, position, time(hour, minute), months)


def _day_of(text: str, rule: str) -> tuple[str, int]:
    """Parse the part of a rule that names the day, such as "last working day".

    Returns ``(unit, position)`` as in ``DayRule``, such as ``("working day", -1)``. ``rule`` is the whole rule for
    errors.
    """
    if text.isascii() and text.isdigit():
        text += " day"
    match = _DAY.fullmatch(text)
    unit = None if match is None else _unit_of(match["unit"])
    if match is None or unit is None:
        raise ScheduleInvalid(
            f"calendar: {quoted(rule)} names no day: {quoted(text)} cannot be read; write one {_FORMS}"
        )
    position, is_last = match["position"], match["last"] is not None
    if position == "last" and not is_last:
        position, is_last = "first", True
    if position == "every" and not is_last:
        return unit, 0
    number = _number_of(position or ("first" if is_last else ""))
    if not 1 <= number <= _HIGHEST[unit]:
        raise ScheduleInvalid(
            f"calendar: {quoted(rule)} does not say which {unit} of the month: use 'every', 'last', or a position up to "
            f"{_HIGHEST[unit]}, such as 'first' or '2nd last'"
        )
    return unit, -number if is_last else number


def _unit_of(word: str) -> str | None:
    return word if word in ("day", "working day") else _full_name(word, WEEKDAYS)


def _number_of(position: str) -> int:
    """Return 2 for ``second``, ``2nd`` or ``2``, and 0 for a word that is no position."""
    if position in ORDINALS:
        return ORDINALS.index(position) + 1
    match = re.fullmatch(r"([0-9]{1,2})(?:st|nd|rd|th)?", position)
    return int(match[1]) if match else 0


def _months_of(text: str, rule: str) -> tuple[int, ...]:
    months = set()
    for word in re.split(r", and |, | and ", text):
        name = _full_name(word, MONTHS)
        if name is None:
            raise ScheduleInvalid(
                f"calendar: {quoted(rule)} has no month {quoted(word)}: use English names, such as 'in mar, sep'"
            )
        months.add(MONTHS.index(name) + 1)
    return tuple(sorted(months))


def _full_name(word: str, names: tuple[str, ...]) -> str | None:
    """Return the name of ``names`` that the word is, or abbreviates to three letters; None if there is none."""
    return next((name for name in names if word in {name, name[:3]}), None)
