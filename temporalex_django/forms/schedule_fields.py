"""Form fields for the times of a schedule: specs as lines of text, durations and wall-clock times."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from temporalex_django.authoring.schedules.specs import (
    CalendarRule,
    Cron,
    Interval,
    Once,
    Spec,
    parse_rule,
    parse_time,
)
from temporalex_django.errors import ScheduleInvalid

_MAX_TEXT_LENGTH, _MAX_LINE_LENGTH = 20_000, 250
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1, "w": 7 * 86400}
_UNIT_WORDS = "days?|d|hours?|h|minutes?|mins?|m|seconds?|secs?|s|weeks?|w"
_PART = rf"([0-9]{{1,9}}(?:\.[0-9]{{1,6}})?)\s*({_UNIT_WORDS})(?![a-z])"
_DURATION = re.compile(rf"{_PART}(?:(?:\s*,\s*|\s+and\s+|\s*){_PART})*", re.IGNORECASE)
_INTERVAL = re.compile(r"(?:every\s+)?(?P<every>.+?)(?:,?\s+offset\s+(?:by\s+)?(?P<offset>.+))?", re.IGNORECASE)
#: The argument that an error of a spec begins with; the field says it already.
_FIELD_NAME = re.compile(r"^(?:cron|calendar|every|offset|at|holidays): ")
_WIDE = {"class": "vLargeTextField tx-json", "spellcheck": "false"}
#: The label and the choices of the options about clock changes, by their names.
CLOCK_CHANGES: Final[Mapping[str, tuple[Any, Sequence[tuple[str, Any]]]]] = {
    "dst_gap": (
        gettext_lazy("A time that a clock change skips"),
        [("shift", gettext_lazy("fires at the end of the gap")), ("skip", gettext_lazy("does not fire"))],
    ),
    "dst_fold": (
        gettext_lazy("A time that a clock change repeats"),
        [
            ("first", gettext_lazy("fires the first time")),
            ("second", gettext_lazy("fires the second time")),
            ("both", gettext_lazy("fires both times")),
        ],
    ),
}


def parse_duration(text: str) -> timedelta:
    """Parse a duration from a text such as ``90 s``, ``1 h 30 min`` or ``2 days``.

    Raises ``ScheduleInvalid`` for another text.
    """
    # The bound keeps the expression fast.
    if len(text) > _MAX_LINE_LENGTH or _DURATION.fullmatch(text.strip()) is None:
        raise ScheduleInvalid(
            _("“%(text)s” is not a duration: write one such as “90 s”, “15 min”, “1 h 30 min” or “2 days”")
            % {"text": text}
        )
    parts = re.findall(_PART, text, re.IGNORECASE)
    try:
        return sum((timedelta(seconds=float(number) * _UNITS[unit[0].lower()]) for number, unit in parts), timedelta())
    except OverflowError:
        raise ScheduleInvalid(_("“%(text)s” is too long a duration") % {"text": text}) from None


def duration_text(duration: timedelta) -> str:
    """Format a duration as text, such as ``1 d 2 h 30 min``, which ``parse_duration`` can read."""
    seconds = duration.seconds + duration.microseconds / 1_000_000
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    second_text = f"{seconds:.6f}".rstrip("0").rstrip(".")
    parts = ((f"{duration.days}", "d"), (f"{hours:.0f}", "h"), (f"{minutes:.0f}", "min"), (second_text, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number != "0") or "0 s"


def parse_interval(line: str) -> Interval:
    """Parse an interval of a schedule from a line such as ``15 min`` or ``1 d, offset 2 h``.

    Raises ``ScheduleInvalid`` for another line.
    """
    match = _INTERVAL.fullmatch(line)
    if match is None:
        raise ScheduleInvalid(_("“%(text)s” is not an interval: write one such as “15 min”") % {"text": line})
    offset = timedelta()
    if match["offset"]:
        offset = parse_duration(match["offset"])
    return Interval(parse_duration(match["every"]), offset)


def parse_calendar_rule(line: str) -> CalendarRule:
    """Parse a calendar rule of a schedule from a line such as ``last working day 18:00``.

    ``|`` and the name of a function for holidays may follow. Raises ``ScheduleInvalid``.
    """
    rule, _bar, holidays = line.partition("|")
    return CalendarRule(rule, holidays.strip() or None)


def parse_once(line: str) -> Once:
    """Parse a one-off time of a schedule from a line such as ``2027-03-03 09:00``. Raises ``ScheduleInvalid``."""
    return Once(parse_time(line, "at"))


def spec_line(spec: Spec) -> str:
    """Format a spec of a schedule as the line of text by which the form shows it."""
    match spec:
        case Cron(expression=expression):
            return expression
        case Interval(every=every, offset=offset):
            if not offset:
                return duration_text(every)
            return f"{duration_text(every)}, offset {duration_text(offset)}"
        case CalendarRule(rule=rule, holidays=None):
            return rule
        case CalendarRule(rule=rule, holidays=holidays):
            return f"{rule} | {holidays}"
        case Once(at=at):
            return at.isoformat(" ")


def common_holidays(specs: Sequence[Spec]) -> str:
    """Return the name of the function for holidays that all rules about working days use.

    The name is empty if they use different ones, or none.
    """
    names = {spec.holidays for spec in specs if isinstance(spec, CalendarRule) and is_working_day_rule(spec)}
    if len(names) == 1:
        return names.pop() or ""
    return ""


def is_working_day_rule(spec: Spec) -> bool:
    """Return True if the spec is a calendar rule about working days, on which a function for holidays has an effect."""
    return isinstance(spec, CalendarRule) and parse_rule(spec.rule).unit == "working day"


class SpecLinesField(forms.CharField):
    """A form field in which each line of the text is a spec of a schedule; its value is a list of specs.

    ``parse_line`` converts a line to a spec, and raises ``ScheduleInvalid``.
    """

    def __init__(self, parse_line: Callable[[str], Spec], **kwargs: Any) -> None:
        self.parse_line = parse_line
        kwargs.setdefault("widget", forms.Textarea(attrs={**_WIDE, "rows": 2}))
        super().__init__(required=False, max_length=_MAX_TEXT_LENGTH, **kwargs)

    def clean(self, value: Any) -> list[Spec]:
        specs: list[Spec] = []
        line_errors = []
        for line in super().clean(value).splitlines():
            if not line.strip():
                continue
            if len(line) > _MAX_LINE_LENGTH:
                line_errors.append(_("A line can have at most %(limit)d characters.") % {"limit": _MAX_LINE_LENGTH})
                continue
            try:
                specs.append(self.parse_line(line.strip()))
            except ScheduleInvalid as exc:
                line_errors.append(_FIELD_NAME.sub("", exc.message))
        if line_errors:
            raise ValidationError(line_errors)
        return specs


class DurationTextField(forms.CharField):
    """A form field for a duration that is written with units, such as ``1 h 30 min``.

    Its value is a timedelta, or None if it is empty.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("widget", forms.TextInput(attrs={"class": "vTextField"}))
        super().__init__(max_length=100, **kwargs)

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_duration(text)
        except ScheduleInvalid as exc:
            raise ValidationError(exc.message) from exc


class WallTimeField(forms.CharField):
    """A form field for a time of day and date without a zone; its value is a naive datetime, or None if it is empty."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("widget", forms.TextInput(attrs={"type": "datetime-local", "step": "1"}))
        super().__init__(max_length=40, **kwargs)

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_time(text, str(self.label)).replace(tzinfo=None)
        except ScheduleInvalid as exc:
            raise ValidationError(exc.message) from exc


@lru_cache(maxsize=1)
def zone_choices() -> tuple[tuple[str, list[tuple[str, str]]], ...]:
    """Return the time zones of this system as choices of a form field, with a group for each region."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(available_timezones()):
        region, slash, _city = name.partition("/")
        groups.setdefault(region if slash else "UTC", []).append((name, name))
    return tuple(groups.items())
