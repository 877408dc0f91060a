"""Specs: the four ways to say when a schedule fires. A schedule has one or several, and fires at the times of each.

Cron expressions of five fields, as naive wall-clock times. The package ``cronsim`` reads and enumerates them.

Fields are minute, hour, day of the month, month and day of the week. They take ``*``, numbers, lists, ranges, steps,
and English names of three letters (``mon``, ``jan``). Sunday is 0 or 7.

- ``L`` is the last day of the month, and ``LW`` its last weekday.
- ``fri#2`` is the second Friday of the month, and ``5L`` the last one.
- The day of the month and the day of the week must both match if one of them begins with ``*``. Otherwise a day
  that matches either one is enough, as in Debian's cron.

Calendar rules, such as "last working day 18:00" or "first monday 09:00 in mar, sep", as naive wall-clock times.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from temporalex_django.authoring.schedules.functions import HOLIDAYS
from temporalex_django.core.names import MAX_LENGTH, check_time, quoted, to_seconds
from temporalex_django.errors import ScheduleInvalid

if TYPE_CHECKING:
    from cronsim import CronSim


_SHORTEST = timedelta(seconds=1)
_MOST_SPECS = 100


class Cron(Struct, frozen=True, tag="cron"):
    """A cron expression of five fields, such as ``30 2 * * mon-fri``."""

    expression: str

    def __post_init__(self) -> None:
        force_setattr(self, "expression", normalize_cron(self.expression))


class Interval(Struct, frozen=True, tag="interval"):
    """An interval of elapsed time. It fires at 1970-01-01T00:00Z plus ``offset`` plus any multiple of ``every``."""

    every: timedelta
    offset: timedelta = timedelta()

    def __post_init__(self) -> None:
        force_setattr(self, "every", _duration(self.every, "every"))
        force_setattr(self, "offset", _duration(self.offset, "offset"))
        if self.every < _SHORTEST:
            raise ScheduleInvalid(f"every: an interval must be at least one second, not {self.every}")
        if not timedelta() <= self.offset < self.every:
            raise ScheduleInvalid(f"offset: {self.offset} must be at least 0 and less than the interval, {self.every}")


class CalendarRule(Struct, frozen=True, tag="calendar"):
    """A rule of the calendar, such as ``last working day 18:00``; ``holidays`` names a registered function.

    The module ``calendar_rules`` describes the rules.
    """

    rule: str
    holidays: str | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "rule", normalize(self.rule))
        if self.holidays is None:
            return
        if not isinstance(self.holidays, str):
            raise ScheduleInvalid(f"holidays: {quoted(self.holidays)} must be the name of a registered function")
        if parse_rule(self.rule).unit != "working day":
            raise ScheduleInvalid(
                f"holidays: {quoted(self.rule)} has no working days, so holidays have no effect on it"
            )


class Once(Struct, frozen=True, tag="once"):
    """One time: an instant if ``at`` is aware, the wall clock in the schedule's zone if it is naive."""

    at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.at, datetime):
            raise ScheduleInvalid(f"at: {quoted(self.at)} must be a datetime")
        check_year(self.at, "at")


Spec: TypeAlias = Cron | Interval | CalendarRule | Once
Duration: TypeAlias = timedelta | float
HolidaysFunction: TypeAlias = str | Callable[[date], bool]


def parse_specs(
    *,
    cron: str | Sequence[str] | None = None,
    every: Duration | Sequence[Duration] | None = None,
    offset: Duration | None = None,
    calendar: str | Sequence[str] | None = None,
    holidays: HolidaysFunction | None = None,
    at: datetime | Sequence[datetime] | None = None,
) -> tuple[Spec, ...]:
    """Return the specs that the arguments of a schedule describe, each once. Each argument is a value or a list.

    ``offset`` holds for all intervals and ``holidays`` for all rules about working days. Durations are timedeltas or
    seconds. Raises ``ScheduleInvalid`` for no spec at all, for an invalid one, for more than 100, and for an ``offset``
    or ``holidays`` that have no effect.
    """
    intervals = _values(every)
    rules = [CalendarRule(rule) for rule in _values(calendar)]
    if offset is not None and not intervals:
        raise ScheduleInvalid("offset: it shifts the slots of an interval, but there is no interval: add `every`")
    if holidays is not None:
        rules = _with_holidays(rules, holidays)
    specs: list[Spec] = [
        *(Cron(expression) for expression in _values(cron)),
        *(Interval(interval, timedelta() if offset is None else offset) for interval in intervals),  # type: ignore[arg-type] # converted
        *rules,
        *(Once(moment) for moment in _values(at)),
    ]
    return check_specs(specs)


def check_specs(specs: Iterable[Spec]) -> tuple[Spec, ...]:
    """Return the specs, each once. Raises ``ScheduleInvalid`` for none, for more than 100, and for other values."""
    unique_specs = tuple(dict.fromkeys(specs))
    if not unique_specs:
        raise ScheduleInvalid("a schedule needs a spec: give `cron`, `every`, `calendar` or `at`")
    if len(unique_specs) > _MOST_SPECS:
        raise ScheduleInvalid(f"a schedule has at most {_MOST_SPECS} specs, not {len(unique_specs)}")
    for spec in unique_specs:
        if not isinstance(spec, (Cron, Interval, CalendarRule, Once)):
            raise ScheduleInvalid(f"{quoted(spec)} is not a spec: use Cron, Interval, CalendarRule or Once")
    return unique_specs


def specs_to_json(specs: Iterable[Spec]) -> list[dict[str, Any]]:
    """Return the specs as JSON: dicts with a ``type``. Durations are seconds, times are ISO strings."""
    return [_to_json(spec) for spec in specs]


def specs_from_json(entries: Any) -> tuple[Spec, ...]:
    """Return the specs for a list of dicts, as ``specs_to_json`` writes them or as people write them in a form.

    Raises ``ScheduleInvalid``.
    """
    if not isinstance(entries, (list, tuple)):
        raise ScheduleInvalid(f"specs must be a list, not {quoted(entries)}")
    return check_specs([_from_json(entry) for entry in entries])


def spec_key(spec: Spec) -> str:
    """Return a text that identifies a spec, such as ``cron:30 2 * * *``: two specs are equal if their texts are."""
    match spec:
        case Cron(expression=expression):
            return f"cron:{expression}"
        case Interval(every=every, offset=offset):
            return f"interval:{_seconds(every)}+{_seconds(offset)}"
        case CalendarRule(rule=rule, holidays=None):
            return f"calendar:{rule}"
        case CalendarRule(rule=rule, holidays=holidays):
            return f"calendar:{rule} | {holidays}"
        case Once(at=at):
            return f"once:{at.isoformat()}"


def _to_json(spec: Spec) -> dict[str, Any]:
    match spec:
        case Cron(expression=expression):
            return {"type": "cron", "expression": expression}
        case Interval(every=every, offset=offset):
            return {"type": "interval", "every": every.total_seconds(), "offset": offset.total_seconds()}
        case CalendarRule(rule=rule, holidays=holidays):
            return {"type": "calendar", "rule": rule, "holidays": holidays}
        case Once(at=at):
            return {"type": "once", "at": at.isoformat()}


def _from_json(entry: Any) -> Spec:
    if not isinstance(entry, Mapping):
        raise ScheduleInvalid(f"specs: {quoted(entry)} must be an object with a `type`")
    fields = dict(entry)
    kind = fields.pop("type", None)
    spec_class = _TYPES.get(kind) if isinstance(kind, str) else None
    if spec_class is None:
        raise ScheduleInvalid(f"specs: the type {quoted(kind)} must be one of {', '.join(_TYPES)}")
    if isinstance(fields.get("at"), str):
        fields["at"] = parse_time(fields["at"], "at")
    try:
        return spec_class(**fields)
    except TypeError as exc:  # a field that is missing or unknown
        raise ScheduleInvalid(
            f"specs: {kind} {exc}; its fields are {', '.join(spec_class.__struct_fields__)}"
        ) from None


_TYPES: dict[str, type[Cron | Interval | CalendarRule | Once]] = {
    "cron": Cron,
    "interval": Interval,
    "calendar": CalendarRule,
    "once": Once,
}


def parse_time(text: str, label: str) -> datetime:
    """Return the time that an ISO string says; ``label`` names it in errors. Raises ``ScheduleInvalid``."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleInvalid(f"{label}: {quoted(text)} is not a time, such as '2027-03-03T09:00'") from None


def _with_holidays(rules: Sequence[CalendarRule], holidays: HolidaysFunction) -> list[CalendarRule]:
    name = holidays if isinstance(holidays, str) else HOLIDAYS.name_of(holidays)
    has_working_days = [parse_rule(rule.rule).unit == "working day" for rule in rules]
    if not any(has_working_days):
        raise ScheduleInvalid("holidays affect only working days: add a `calendar` rule that uses working days")
    return [
        CalendarRule(rule.rule, name) if works else rule for rule, works in zip(rules, has_working_days, strict=True)
    ]


def check_year(moment: datetime, label: str) -> None:
    """Raise ``ScheduleInvalid`` for a time at an end of the calendar; see ``check_time``."""
    try:
        check_time(moment, label=label)
    except ValueError as exc:
        raise ScheduleInvalid(str(exc)) from None


def _values(argument: Any) -> list[Any]:
    if argument is None:
        return []
    return [*argument] if isinstance(argument, (list, tuple, set, frozenset)) else [argument]


def _duration(value: Any, label: str) -> timedelta:
    """Take a timedelta or a number of seconds. Raises ``ScheduleInvalid``."""
    try:
        return timedelta(seconds=to_seconds(value, label=label)) if not isinstance(value, timedelta) else value
    except (TypeError, ValueError, OverflowError) as exc:
        raise ScheduleInvalid(str(exc)) from None


def _seconds(duration: timedelta) -> str:
    """Return a duration in seconds as text, such as ``90`` or ``0.5``."""
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".")


# --- calendar rules ---------------------------------------------------------------------------------------------------


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
    """Return ``(unit, position)`` as in ``DayRule``: "last working day" is ``("working day", -1)``."""
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
    """Return the name that ``word`` is, or abbreviates to three letters."""
    return next((name for name in names if word in {name, name[:3]}), None)


# --- cron -------------------------------------------------------------------------------------------------------------


_FIELDS = 5
_MONTH_FIELD = 3
_ORIGIN = datetime(2000, 1, 1)  # noqa: DTZ001 - wall-clock time has no zone


def normalize_cron(expression: object) -> str:
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
    """Raise ``ValueError`` for any error of the parser."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - the package is importable without it

    try:
        return CronSim(expression, _ORIGIN)
    # The parser asserts and compares where parts do not go together, as in `1#2/3`.
    except (CronSimError, AssertionError, TypeError, ValueError) as exc:
        raise ValueError(str(exc).replace("Bad ", "the field is wrong: ") or "the fields do not fit") from None
