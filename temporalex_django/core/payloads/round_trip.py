"""The check that a value comes back from JSON as it was passed.

It concerns results, arguments of activities, replies and published state. A value that would come back as something
else (a Decimal as a text, a set as a list) is refused where it is passed, unless an annotation restores it. Messages
and arguments of starts are encoded as they are, because their senders cannot see who reads them. If such a
value would come back changed, the sender gets a warning, once for each handler or ``run`` that would read it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from temporalex_django.core import current
from temporalex_django.core.payloads import codec, external_types
from temporalex_django.errors import PayloadError, PayloadWarning

logger = logging.getLogger("temporalex_django.core")

#: Types that JSON does not have: in words, what they become, and the expression that converts them. The first that fits
#: counts.
_LOSSY_TYPES: Final[tuple[tuple[type | tuple[type, ...], str, str, str], ...]] = (
    (Decimal, "a Decimal", "a string", "str(value)"),
    (datetime, "a datetime", "a string", "value.isoformat()"),
    (date, "a date", "a string", "value.isoformat()"),
    (time, "a time", "a string", "value.isoformat()"),
    (timedelta, "a timedelta", "a string", "value.total_seconds()"),
    (UUID, "a UUID", "a string", "str(value)"),
    ((bytes, bytearray, memoryview), "bytes", "a base64 string", "value.hex()"),
    ((set, frozenset), "a set", "a list", "sorted(value)"),
)
_MISSING: Final = object()
_SENTINEL: Final = object()
_SEQUENCE_TYPES = (list, tuple)


class LossyValue(NamedTuple):
    """A part of a value that comes back from JSON as something else.

    ``path`` is its place. ``was`` and ``becomes`` describe it before and after. ``convert`` is an expression that users
    may write to convert it first.
    """

    path: str
    was: str
    becomes: str
    convert: str


def encode_lossless(
    value: Any,
    *,
    label: str,
    limit: int = codec.MAX_BYTES,
    read: Callable[[Any], Any] | None = None,
    annotate: str = "",
) -> Any:
    """Return ``value`` as plain data, and refuse a value that its reader would not get back unchanged.

    ``read`` decodes plain data as the reader does; without it the reader gets the plain data. ``annotate`` is advice
    for the error message where to add an annotation. ``label`` names the value in errors, and ``limit`` is in bytes.
    Raises ``PayloadError`` with the path of a value that would come back as something else.
    """
    encoded = codec.to_plain(value, label=label, limit=limit)
    if not is_unchanged(encoded, value):
        require_lossless(value, encoded, label=label, read=read, annotate=annotate)
    return encoded


def require_lossless(
    value: Any, encoded: Any, *, label: str, read: Callable[[Any], Any] | None = None, annotate: str = ""
) -> None:
    """Raise ``PayloadError`` if ``encoded``, which differs from ``value``, would come back as something else.

    The arguments are those of ``encode_lossless``.
    """
    lossy_value = find_lossy_value(value, encoded)
    if lossy_value is not None and read is not None:
        try:
            lossy_value = find_lossy_value(value, read(encoded), is_expected=partial(_reader_expects, encoded, read))
        except PayloadError:  # the reader gets this error itself
            return
    if lossy_value is not None:
        where = "" if lossy_value.path == "$" else f" at `{codec.shorten_path(lossy_value.path)}`"
        advice = (
            f"{annotate}, or convert it first: {lossy_value.convert}"
            if annotate
            else f"convert it: {lossy_value.convert}"
        )
        raise PayloadError(
            f"{label} has {lossy_value.was}{where}, which would come back as {lossy_value.becomes}; {advice}"
        )


_warned: set[str] = set()


def warn_lossy_value(
    value: Any, encoded: Any, annotation: Callable[[], Any], *, reader: str, emit_warning: bool = True
) -> None:
    """Warn, once for each reader, that it gets other values than were sent because its code lacks an annotation.

    ``reader`` names the code that reads the value. ``encoded`` is ``value`` as plain data. ``annotation()`` returns the
    type to which the reader decodes it, or Any if there is no annotation. The warning goes to the log. With
    ``emit_warning``, and outside workflow code, it is also a ``PayloadWarning``.
    """
    if reader in _warned or is_unchanged(encoded, value):
        return
    lossy_value = find_lossy_value(value, encoded)
    try:
        if lossy_value is not None:
            read = partial(codec.convert, annotation=annotation())
            lossy_value = find_lossy_value(value, read(encoded), is_expected=partial(_reader_expects, encoded, read))
    except PayloadError:
        return
    if lossy_value is not None:
        _warned.add(reader)
        message = (
            f"{reader} gets {lossy_value.becomes} where {lossy_value.was} was sent, because its code has no annotation "
            f"for it: annotate its parameter, or convert the value before you send it: {lossy_value.convert}"
        )
        logger.warning("%s", message)
        if emit_warning and not current.is_inside_workflow():
            warnings.warn(message, PayloadWarning, stacklevel=2)


def is_unchanged(encoded: Any, value: Any) -> bool:
    """Return True if the plain data equals the value: a cheap test that makes others unnecessary for most values."""
    try:
        return encoded is value or bool(encoded == value)
    except Exception:  # noqa: BLE001 - any operation on a value may raise
        return False


def find_lossy_value(
    value: Any, decoded: Any, *, is_expected: Callable[[tuple[Any, ...]], bool] | None = None
) -> LossyValue | None:
    """Return the first part of ``value`` that has a type which JSON lacks, and another type in ``decoded``; or None.

    Parts for which ``is_expected(keys)`` returns True are skipped, because their reader declares that type. ``keys``
    lead to the part.
    """
    # A stack instead of recursion; parts are pushed in reverse order, so that the first one is found first.
    pending: list[tuple[str, tuple[Any, ...], Any, Any]] = [("$", (), value, decoded)]
    while pending:
        path, keys, part, decoded_part = pending.pop()
        kind = type(part)
        if issubclass(kind, Mapping):
            if (lossy_key := _find_lossy_key(path, part, decoded_part)) is not None:
                return lossy_key
            pending += [
                (f"{path}.{key}", (*keys, key), inner, _part_of(decoded_part, key))
                for key, inner in reversed([*part.items()])
            ]
        elif issubclass(kind, _SEQUENCE_TYPES):
            decoded_parts: Any = decoded_part
            if not isinstance(decoded_part, _SEQUENCE_TYPES) or len(decoded_part) != len(part):
                decoded_parts = [_MISSING] * len(part)
            pending += [
                (f"{path}[{i}]", (*keys, i), inner, decoded_parts[i]) for i, inner in reversed([*enumerate(part)])
            ]
        elif (description := _describe_change(part, kind)) is not None:
            if not _is_preserved(part, kind, decoded_part) and not (is_expected and is_expected(keys)):
                return LossyValue(path, *description)
        else:
            pending += [
                (f"{path}.{name}", (*keys, name), getattr(part, name, None), _part_of(decoded_part, name))
                for name in reversed(_field_names(kind))
            ]
    return None


def _find_lossy_key(path: str, part: Mapping[Any, Any], decoded_part: Any) -> LossyValue | None:
    """Return the first key of a mapping that is no string and that the reader does not get back, or None.

    ``path`` is the place of the mapping, and ``decoded_part`` is what the reader gets for it.
    """
    for key in part:
        if not issubclass(type(key), str) and not (isinstance(decoded_part, Mapping) and key in decoded_part):
            kind = type(key).__name__
            return LossyValue(path, f"a key that is not a string ({kind})", "a string", "str(key)")
    return None


def _reader_expects(encoded: Any, read: Callable[[Any], Any], keys: tuple[Any, ...]) -> bool:
    """Return True if the annotation of the reader restricts the value at ``keys``, to a text for example.

    ``read`` decodes plain data as the reader does. It gets a sentinel at that place: a reader that refuses the sentinel
    does not accept every value.
    """
    try:
        read(_replace_part(encoded, keys, _SENTINEL))
    except (LookupError, TypeError):  # the plain data has no part at these keys
        return False
    except PayloadError:
        return True
    return False


def _replace_part(encoded: Any, keys: tuple[Any, ...], part: Any) -> Any:
    """Return a copy of plain data in which the part at ``keys`` is replaced by ``part``."""
    if not keys:
        return part
    key, *rest = keys
    container = dict(encoded) if isinstance(encoded, dict) else list(encoded)
    container[key] = _replace_part(container[key], tuple(rest), part)
    return container


def _describe_change(part: Any, kind: type) -> tuple[str, str, str] | None:
    """Return ``(was, becomes, convert)`` for a value of a type that JSON lacks, or None for a type that it has.

    They are: what the value is, what it becomes, and an expression that converts it.
    """
    for kinds, *words in _LOSSY_TYPES:
        if issubclass(kind, kinds):
            return words[0], words[1], words[2]
    if issubclass(kind, Enum) and not issubclass(kind, (str, int)):
        return f"a {kind.__name__}", f"its value ({type(part.value).__name__})", "value.value"
    return None


def _is_preserved(part: Any, kind: type, decoded_part: Any) -> bool:
    """Return True if ``decoded_part`` is the same value, of the same type ``kind``, as ``part``."""
    if decoded_part is _MISSING:
        return False
    return type(decoded_part) is kind or (
        not isinstance(decoded_part, (str, list)) and is_unchanged(decoded_part, part)
    )


def _part_of(container: Any, key: Any) -> Any:
    """Return the part of a decoded mapping under ``key``, or the attribute of that name of a decoded object."""
    if isinstance(container, Mapping):
        # A key of a subclass of ``str`` may hash otherwise than the plain text that came back.
        part = container.get(key, _MISSING)
        return container.get(str.__str__(key), _MISSING) if part is _MISSING and isinstance(key, str) else part
    return getattr(container, key, _MISSING) if isinstance(key, str) else _MISSING


def _field_names(kind: type) -> tuple[str, ...]:
    if external_types.is_pydantic(kind):
        return tuple(kind.model_fields)  # type: ignore[attr-defined] # that is what makes it one
    return tuple(getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "__struct_fields__", ()))
