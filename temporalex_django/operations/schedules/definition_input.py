"""Definitions of schedules as people and programs write them: plain values, such as the body of a request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalex_django.authoring.schedules.schedule import parse_overlap
from temporalex_django.authoring.schedules.specs import Spec, parse_specs, parse_time, specs_from_json
from temporalex_django.core.names import to_seconds
from temporalex_django.errors import ScheduleInvalid
from temporalex_django.operations.schedules.definition import ScheduleDefinition

#: Values that say when a schedule fires, beside ``specs``.
SPEC_WORDS = ("cron", "every", "offset", "calendar", "holidays", "at")
_DURATIONS = ("catch_up", "jitter")
_TIMES = ("start", "end")


def parse_definition(values: Mapping[str, Any]) -> ScheduleDefinition:
    """Parse the definition of a schedule from plain values, such as the body of a request.

    The names are the fields of ``ScheduleDefinition``; a value that is missing, or None, is the default. Instead of
    ``specs`` (objects with a ``type``), the values may have ``cron``, ``every``, ``offset``, ``calendar``, ``holidays``
    and ``at``, each a value or a list. Durations are seconds. Times are ISO strings; without an offset they are
    wall-clock times of the zone. ``args`` may be ``KEPT``.

    Raises ``ScheduleInvalid`` for a value that cannot be read. ``ScheduleDefinition.check`` finds the other problems.
    """
    parsed = {name: value for name, value in values.items() if name not in SPEC_WORDS and value is not None}
    parsed["specs"] = _parse_specs(values)
    for name in _DURATIONS:
        if name in parsed:
            parsed[name] = _duration(parsed[name], name)
    for name in _TIMES:
        if name in parsed:
            parsed[name] = parse_time(parsed[name], name)
    if "overlap" in parsed:
        parsed["overlap"] = parse_overlap(parsed["overlap"])
    return ScheduleDefinition(**parsed)


def _parse_specs(values: Mapping[str, Any]) -> tuple[Spec, ...]:
    words = {name: values[name] for name in SPEC_WORDS if values.get(name) is not None}
    if values.get("specs") is None:
        if "at" in words:
            words["at"] = [parse_time(text, "at") for text in _as_list(words["at"])]
        return parse_specs(**words)
    if words:
        raise ScheduleInvalid(f"give either `specs` or {', '.join(f'`{name}`' for name in words)}, not both")
    return specs_from_json(values["specs"])


def _as_list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _duration(seconds: Any, label: str) -> timedelta:
    try:
        duration = timedelta(seconds=to_seconds(seconds, label=label))
    except (TypeError, ValueError) as exc:
        raise ScheduleInvalid(str(exc)) from None
    if duration < timedelta(0):
        raise ScheduleInvalid(f"{label}: {seconds} must not be negative")
    return duration
