"""Specs: the four ways to say when a schedule fires. A schedule has one or several, and fires at the times of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from temporalex_django.authoring.schedules import calendar_rules
from temporalex_django.authoring.schedules import cron as crons
from temporalex_django.authoring.schedules.functions import HOLIDAYS
from temporalex_django.core.names import check_time, quoted, to_seconds
from temporalex_django.errors import ScheduleInvalid

_SHORTEST = timedelta(seconds=1)
_MOST_SPECS = 100


class Cron(Struct, frozen=True, tag="cron"):
    """A cron expression of five fields, such as ``30 2 * * mon-fri``."""

    expression: str

    def __post_init__(self) -> None:
        force_setattr(self, "expression", crons.normalize(self.expression))


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
        force_setattr(self, "rule", calendar_rules.normalize(self.rule))
        if self.holidays is None:
            return
        if not isinstance(self.holidays, str):
            raise ScheduleInvalid(f"holidays: {quoted(self.holidays)} must be the name of a registered function")
        if calendar_rules.parse_rule(self.rule).unit != "working day":
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
    has_working_days = [calendar_rules.parse_rule(rule.rule).unit == "working day" for rule in rules]
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
    """Return the argument of a schedule as a list: None becomes an empty list, one value a list of one."""
    if argument is None:
        return []
    return [*argument] if isinstance(argument, (list, tuple, set, frozenset)) else [argument]


def _duration(value: Any, label: str) -> timedelta:
    """Return ``value``, a timedelta or a number of seconds, as a timedelta.

    Raises ``ScheduleInvalid`` for anything else; ``label`` names the value in the message.
    """
    try:
        return timedelta(seconds=to_seconds(value, label=label)) if not isinstance(value, timedelta) else value
    except (TypeError, ValueError, OverflowError) as exc:
        raise ScheduleInvalid(str(exc)) from None


def _seconds(duration: timedelta) -> str:
    """Return a duration in seconds as text, such as ``90`` or ``0.5``."""
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".")
