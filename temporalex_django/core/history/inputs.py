"""The comparison of inputs with the history: does the code still pass what the run passed?

It covers the inputs of activities and children, as they are recorded (before the codec). If the plain data differs,
both sides are decoded with the present annotations and encoded again. So a new field or parameter with a default is no
difference. The history keeps the input of the code even if somebody edited it later. Durations may change; their
differences are only listed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from temporalex_django.core.history.events import Command, HistoryEvent
from temporalex_django.core.history.kinds import KINDS
from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError

DifferenceKind = Literal["input", "duration"]
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class InputReading:
    """An input of an activity or a child as its receiver reads it.

    ``data`` is plain data by the name of the parameter. ``hints`` has the types of the parameters.
    """

    data: Mapping[str, Any]
    hints: Mapping[str, Any]


def to_reading(decoded: Mapping[str, Any], hints: Mapping[str, Any]) -> InputReading:
    """Return an input as its receiver reads it, from arguments that were decoded to their annotations.

    ``hints`` are these annotations, by the name of the parameter. Raises ``PayloadError``.
    """
    return InputReading({name: _fill_defaults(value) for name, value in decoded.items()}, hints)


def _fill_defaults(value: Any) -> Any:
    """Return ``value`` as plain data, including fields with a default that were absent when it was decoded."""
    kind = type(value)
    if is_dataclass(kind):
        return {member.name: _fill_defaults(getattr(value, member.name)) for member in fields(kind)}
    if kind is list or kind is tuple:
        return [_fill_defaults(part) for part in value]
    if kind is dict and all(isinstance(key, str) for key in value):
        return {key: _fill_defaults(part) for key, part in value.items()}
    return codec.to_plain(value)


#: Reads the attributes of a command or event as the present code does. Raises ``PayloadError``.
Reader = Callable[[Mapping[str, Any]], InputReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """An input or a duration of the code that differs from the history.

    - ``event`` is the number of the history event, and ``command`` describes the command.
    - ``path`` is the place of the difference in the input. It consists of names that the code declares, with ``…`` for
      keys that may be data.
    - ``place`` is the file and line of the code (``path:line``), if it is known.
    - ``recorded`` and ``produced`` are the two values at that path.
    - ``keys`` are the steps of the path in the input. They are payload, like the values.
    """

    kind: DifferenceKind
    event: int
    command: str
    path: str
    place: str | None = None
    recorded: Any = field(default=None, repr=False)
    produced: Any = field(default=None, repr=False)
    keys: Sequence[str | int] = field(default=(), repr=False)

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place is not None else ""
        return f"event {self.event}, {self.command}: {self.path} differs{at}"


def input_difference(
    event: HistoryEvent, command: Command, *, command_text: str, reader: Reader | None, place: Callable[[], str | None]
) -> ReplayDifference | None:
    """Return the first difference between an event and the present command of the same kind and name, or None.

    ``command_text`` describes the command in the result. ``reader`` decodes both inputs as their receiver does; None
    compares plain data. ``place()`` returns the file and line of the code, if they are known.
    """
    recorded, produced = event.attributes, command.attributes
    event_kind = KINDS[event.kind]
    name = event_kind.duration
    if name is not None and recorded.get(name) != produced.get(name):
        kind, path = "duration", name
        keys: Sequence[str | int] = (name,)
        values: tuple[Any, Any] = recorded.get(name), produced.get(name)
    elif any(recorded.get(name) != produced.get(name) for name in event_kind.inputs):
        first = _find_difference(recorded, produced, event_kind.inputs, reader)
        if first is None:
            return None
        kind, (path, keys, values) = "input", first
    else:
        return None
    return ReplayDifference(
        kind=typing.cast("DifferenceKind", kind),
        event=event.number,
        command=command_text,
        path=path,
        place=place(),
        recorded=values[0],
        produced=values[1],
        keys=keys,
    )


def _find_difference(
    recorded: Mapping[str, Any], produced: Mapping[str, Any], names: Sequence[str], reader: Reader | None
) -> tuple[str, Sequence[str | int], tuple[Any, Any]] | None:
    """Return ``(path in words, steps of the path, (recorded value, produced value))`` of the first difference.

    ``recorded`` and ``produced`` are attributes of the event and of the command, and ``names`` are those that are
    inputs. Returns None if the inputs are the same as ``reader`` reads them.
    """
    hints: Mapping[str, Any] = {}
    before: Any = {name: recorded[name] for name in names if recorded.get(name)}
    after: Any = {name: produced[name] for name in names if produced.get(name)}
    if reader is not None:
        try:
            recorded_input, produced_input = reader(recorded), reader(produced)
        except PayloadError:  # the recorded input does not fit any more, so the plain data is compared
            pass
        else:
            before, after, hints = recorded_input.data, produced_input.data, produced_input.hints
            if before == after:
                return None
    else:
        hints = dict.fromkeys(names, Any)
    first = first_difference(before, after)
    if first is None:
        return None
    keys, values = first
    return _describe_path(keys, hints or dict.fromkeys(names, Any)), keys, values


def first_difference(before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    """Return the first difference between two plain values, or None if they are equal.

    The result has the path, as a tuple of keys and indexes, and the pair of both values there.
    """
    if type(before) is type(after) is dict:
        for key in (*before, *(key for key in after if key not in before)):
            if (location := _prefix_step(key, before.get(key, _MISSING), after.get(key, _MISSING))) is not None:
                return location
        return None
    if type(before) is type(after) is list:
        for index in range(max(len(before), len(after))):
            pair = (side[index] if index < len(side) else _MISSING for side in (before, after))
            if (location := _prefix_step(index, *pair)) is not None:
                return location
        return None
    # Types count as well: 1, 1.0 and True are equal in Python but differ in JSON.
    same = before == after and type(before) is type(after)
    return None if same else ((), (_value_or_none(before), _value_or_none(after)))


def _prefix_step(step: str | int, before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    """Return the first difference below the key or index ``step``, or None.

    It is ``(path, (value before, value after))``, whose path begins with that step.
    """
    location = first_difference(before, after)
    return None if location is None else ((step, *location[0]), location[1])


def _value_or_none(value: Any) -> Any:
    return None if value is _MISSING else value


def _describe_path(path: Sequence[str | int], hints: Mapping[str, Any]) -> str:
    """Return a path in names that the code declares, with ``…`` for any other key.

    ``hints`` are the types of the parameters, by name. A key that no type declares may be data, which must not go into
    a log.
    """
    text, annotation = "", typing.cast("Any", None)
    for step in path:
        declared = hints if not text else _field_types(annotation)
        if isinstance(step, int):
            text += f"[{step}]"
            annotation = _element_type(annotation)
        elif step in declared:
            text += f".{step}" if text else step
            annotation = declared[step]
        else:
            text += ".…"
            annotation = _element_type(annotation)
    return codec.shorten_path(text) or "the input"


def _field_types(annotation: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, TypedDict, struct or model, or of all members of a union."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _field_types(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return {name: hint for member in typing.get_args(annotation) for name, hint in _field_types(member).items()}
    kind = origin or annotation
    if not isinstance(kind, type) or kind.__module__ == "builtins":
        return {}
    return codec.resolve_hints(kind)


def _element_type(annotation: Any) -> Any:
    """Return the type of the elements of a collection, from its annotation such as ``list[int]``."""
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    return arguments[-1] if arguments else Any
