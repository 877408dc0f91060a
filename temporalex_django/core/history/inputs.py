"""Inputs of calls against history: does the code still hand over what the run did?

Inputs of activities and children, as they are recorded (before the codec). Where the plain data differ, both sides are
read by today's annotations and encoded again, so a field or parameter that has a default since is no difference. The
history has the input of the code also where somebody edited it later. Durations may change: they are listed, no more.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from temporalex_django.core import payloads
from temporalex_django.core.history.commands import Command
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.errors import PayloadError

Kind = Literal["input", "duration"]
#: Which attributes are inputs, by event kind.
_INPUTS: Final[Mapping[str, Sequence[str]]] = {"ActivityScheduled": ("args", "kwargs"), "ChildStarted": ("args",)}
_TIMER: Final = "TimerStarted"
#: Kinds of events that are looked at.
COMPARED: Final = frozenset({*_INPUTS, _TIMER})
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class InputReading:
    """An input as its receiver reads it: ``data`` is plain, by the name of the parameter; ``hints`` are its types."""

    data: Mapping[str, Any]
    hints: Mapping[str, Any]


def as_read(decoded: Mapping[str, Any], hints: Mapping[str, Any]) -> InputReading:
    """The reading of values as annotations made them. Raises ``PayloadError``."""
    return InputReading({name: _whole(value) for name, value in decoded.items()}, hints)


def _whole(value: Any) -> Any:
    """``value`` as plain data, with the fields that were left out when it was decoded and have their defaults."""
    kind = type(value)
    if is_dataclass(kind):
        return {one.name: _whole(getattr(value, one.name)) for one in fields(kind)}
    if kind is list or kind is tuple:
        return [_whole(part) for part in value]
    if kind is dict and all(isinstance(key, str) for key in value):
        return {key: _whole(part) for key, part in value.items()}
    return payloads.plain(value)


#: Reads the attributes of a command or event as today's code does. Raises ``PayloadError``.
Reader = Callable[[Mapping[str, Any]], InputReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDifference:
    """An input, or a duration, that the code gives now and the history does not have.

    ``event`` is the number of the history event, ``command`` says which command it is, ``path`` where in the input they
    differ: names that the code declares, ``…`` for keys that may be data. ``place`` is the file and line of the code
    (``path:line``), where it is known. ``recorded`` and ``produced`` are the two values at that path, and ``keys`` are
    its steps as they stand in the input: payload, like the values.
    """

    kind: Kind
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


def difference(
    event: HistoryEvent, command: Command, *, words: str, reader: Reader | None, place: Callable[[], str | None]
) -> ReplayDifference | None:
    """The differences between an event and the command of today, which are of one kind and name."""
    recorded, produced = event.attributes, command.attributes
    if event.kind == _TIMER:
        if recorded.get("duration") == produced.get("duration"):
            return None
        values: tuple[Any, Any] = recorded.get("duration"), produced.get("duration")
        keys: Sequence[str | int] = ("duration",)
        path, kind = "duration", "duration"
    else:
        names = _INPUTS.get(event.kind, ())
        if all(recorded.get(name) == produced.get(name) for name in names):
            return None
        found = _differing(recorded, produced, names, reader)
        if found is None:
            return None
        kind, (path, keys, values) = "input", found
    return ReplayDifference(
        kind=typing.cast("Kind", kind),
        event=event.number,
        command=words,
        path=path,
        place=place(),
        recorded=values[0],
        produced=values[1],
        keys=keys,
    )


def _differing(
    recorded: Mapping[str, Any], produced: Mapping[str, Any], names: Sequence[str], reader: Reader | None
) -> tuple[str, Sequence[str | int], tuple[Any, Any]] | None:
    """Return the path of the first difference in words, its steps, and both values."""
    hints: Mapping[str, Any] = {}
    before: Any = {name: recorded[name] for name in names if recorded.get(name)}
    after: Any = {name: produced[name] for name in names if produced.get(name)}
    if reader is not None:
        try:
            one, other = reader(recorded), reader(produced)
        except PayloadError:  # what is recorded does not fit any more: compared as it is
            pass
        else:
            before, after, hints = one.data, other.data, other.hints
            if before == after:
                return None
    else:
        hints = dict.fromkeys(names, Any)
    found = first_difference(before, after)
    if found is None:
        return None
    keys, values = found
    return _shown(keys, hints or dict.fromkeys(names, Any)), keys, values


def first_difference(before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    """Where two plain values differ first: the path and what stands there in each."""
    if type(before) is type(after) is dict:
        for key in (*before, *(key for key in after if key not in before)):
            if (found := _at(key, before.get(key, _MISSING), after.get(key, _MISSING))) is not None:
                return found
        return None
    if type(before) is type(after) is list:
        for index in range(max(len(before), len(after))):
            pair = (one[index] if index < len(one) else _MISSING for one in (before, after))
            if (found := _at(index, *pair)) is not None:
                return found
        return None
    same = before == after and type(before) is type(after)
    return None if same else ((), (_value(before), _value(after)))


def _at(step: str | int, before: Any, after: Any) -> tuple[tuple[str | int, ...], tuple[Any, Any]] | None:
    found = first_difference(before, after)
    return None if found is None else ((step, *found[0]), found[1])


def _value(value: Any) -> Any:
    return None if value is _MISSING else value


def _shown(path: Sequence[str | int], hints: Mapping[str, Any]) -> str:
    """The path in names that the code declares. A key that it does not declare may be data, which no log gets."""
    shown, annotation = "", typing.cast("Any", None)
    for step in path:
        declared = hints if not shown else _fields(annotation)
        if isinstance(step, int):
            shown += f"[{step}]"
            annotation = _inside(annotation)
        elif step in declared:
            shown += f".{step}" if shown else step
            annotation = declared[step]
        else:
            shown += ".…"
            annotation = _inside(annotation)
    return payloads.short_path(shown) or "the input"


def _fields(annotation: Any) -> Mapping[str, Any]:
    """The fields of a dataclass, TypedDict, struct or model, with their types; of a union those of its members."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _fields(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return {name: hint for one in typing.get_args(annotation) for name, hint in _fields(one).items()}
    kind = origin or annotation
    if not isinstance(kind, type) or kind.__module__ == "builtins":
        return {}
    return payloads.hints(kind)


def _inside(annotation: Any) -> Any:
    """The type of the parts of a collection."""
    arguments = [one for one in typing.get_args(annotation) if one is not Ellipsis]
    return arguments[-1] if arguments else Any
