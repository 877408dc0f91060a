"""Specs in words, for people: "Every day at 02:30 (Europe/Berlin)"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from temporalex_django.authoring.schedules.specs import (
    MONTHS,
    ORDINALS,
    CalendarRule,
    Cron,
    DayRule,
    Interval,
    Once,
    Spec,
    parse_rule,
)

_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
_TIMES = r"\d\d:\d\d(?:(?:, and | and |, )\d\d:\d\d)*"
_AT_TIMES = re.compile(rf"At ({_TIMES}) (.+)")
_STEP = re.compile(r"\*/(\d+) \* \* \* \*")


def spec_in_words(spec: Spec) -> str:
    """Return the spec as an English phrase that begins with a capital letter, without the time zone."""
    match spec:
        case Cron(expression=expression):
            return _cron_in_words(expression)
        case Interval():
            return _interval_in_words(spec)
        case CalendarRule(rule=rule, holidays=holidays):
            suffix = f", holidays: {holidays}" if holidays else ""
            return _rule_in_words(parse_rule(rule)) + suffix
        case Once(at=at):
            return f"Once, on {_time_in_words(at)}"


def specs_in_words(specs: Iterable[Spec], zone: str) -> str:
    """Return all specs as one phrase with the zone: ``Every day at 02:30; every 15 minutes (Europe/Berlin)``."""
    first, *others = [spec_in_words(spec) for spec in specs]
    return f"{'; '.join([first, *(_lower_first(phrase) for phrase in others)])} ({zone})"


def _cron_in_words(expression: str) -> str:
    from cronsim.explain import Expression  # noqa: PLC0415 - the package is importable without it

    step = _STEP.fullmatch(expression)
    # Other steps are no intervals: `*/25` fires at the minutes 0, 25 and 50.
    if step and 60 % int(step[1]) == 0:
        return f"Every {_amount(int(step[1]), 'minute')}"
    phrase: str = Expression(["0", *expression.upper().split()]).explain()
    match = _AT_TIMES.fullmatch(phrase)
    if match is None:
        return phrase
    times, days = match.groups()
    return f"{_upper_first(days)} at {times}"


def _interval_in_words(spec: Interval) -> str:
    phrase = f"Every {_duration_in_words(spec.every)}"
    return f"{phrase}, offset by {_offset_in_words(spec.offset)}" if spec.offset else phrase


def _rule_in_words(rule: DayRule) -> str:
    at = f"{rule.at:%H:%M}"
    unit = rule.unit if rule.unit in ("day", "working day") else rule.unit.capitalize()
    every_month = len(rule.months) == len(MONTHS)
    months = _list_in_words([MONTHS[month - 1].capitalize() for month in rule.months])
    if rule.position == 0:
        return f"Every {unit}{'' if every_month else f' in {months}'} at {at}"
    position = _position_in_words(rule.position)
    return f"On the {position} {unit} of {'the month' if every_month else months} at {at}"


def _position_in_words(position: int) -> str:
    number = abs(position)
    ordinal = ORDINALS[number - 1] if number <= len(ORDINALS) else _ordinal(number)
    if position > 0:
        return ordinal
    return "last" if number == 1 else f"{ordinal} last"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def _time_in_words(at: datetime) -> str:
    clock = f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
    offset = f"{at:%z}"
    zone = f" UTC{offset[:3]}:{offset[3:5]}" if offset else ""
    return f"{at.day} {MONTHS[at.month - 1].capitalize()} {at.year} at {clock}{zone}"


def _duration_in_words(duration: timedelta) -> str:
    """Return the duration as the interval that follows "every": ``hour``, ``90 seconds``, ``day and 2 hours``."""
    parts = _parts_of(duration)
    return _list_in_words([_amount(count, unit) for count, unit in parts])


def _offset_in_words(duration: timedelta) -> str:
    return _list_in_words([f"{count:g} {unit}{'' if count == 1 else 's'}" for count, unit in _parts_of(duration)])


def _parts_of(duration: timedelta) -> list[tuple[float, str]]:
    """Return the duration as a list such as ``[(1, "day"), (2, "hour")]``, without zeros."""
    parts: list[tuple[float, str]] = []
    seconds = duration.total_seconds()
    for unit, length in _UNITS[:-1]:
        count, seconds = divmod(seconds, length)
        parts.append((count, unit))
    parts.append((round(seconds, 6), "second"))
    return [part for part in parts if part[0]]


def _amount(count: float, unit: str) -> str:
    return unit if count == 1 else f"{count:g} {unit}s"


def _list_in_words(words: list[str]) -> str:
    if len(words) <= 1:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
