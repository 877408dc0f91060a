"""The check that a value comes back from JSON as it was passed: equal by types and fields.

It concerns results, arguments of activities, answers and published state. A value that would come back as something
else (a Decimal as a text, a subclass as its base) or that could not be read back is refused where it is passed.
Messages and arguments of starts are refused, too, if their reader declares a type that does not restore them. If the
reader declares none, it gets plain data, and the sender gets a warning, once for each handler or ``run``.

Values of JSON's own types are not compared, because JSON cannot change them.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from temporalex_django.core import current
from temporalex_django.core.payloads import codec, external_types
from temporalex_django.core.results import Async, ContinueAsNew, Err, NoReply, Ok, Reply, Stop
from temporalex_django.errors import PayloadError, PayloadWarning, TemporalexError

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


#: Values that mean something where the engine gets them, and nothing as data: what to write instead.
_RESULT_TYPES: Final = {
    Ok: "value.value, since an Ok means something as the value of run alone",
    Err: "value.reason; an activity or a handler fails by an exception",
    ContinueAsNew: "value.args, since a ContinueAsNew means something as the value of run alone",
    **dict.fromkeys((Reply, Stop), "value.response, since it means something as the value of a handler alone"),
    **dict.fromkeys((NoReply, Async), "value.state, since it means something as the value of a handler alone"),
}


class _Missing:
    """The type of the part that stands for one which the reader has left out."""


_MISSING: Final = _Missing()
_SENTINEL: Final = object()
_ATOMIC_TYPES: Final = frozenset({type(None), bool, int, float, str})
#: Types of JSON data. ``_MISSING`` counts, because the reader has left that part out.
_PLAIN_TYPES: Final = frozenset({*_ATOMIC_TYPES, list, dict, _Missing})
_SET_TYPES: Final = (set, frozenset)
_SEQUENCE_TYPES: Final = (list, tuple)


class LossyValue(NamedTuple):
    """A part of a value that comes back from JSON as something else.

    ``path`` is its place. ``was`` and ``becomes`` describe it before and after. ``convert`` is an expression that users
    may write to convert it first.
    """

    path: str
    was: str
    becomes: str
    convert: str


class _Part(NamedTuple):
    """A part of a value, with the part that comes back in its place.

    ``path`` is its place in words, and ``keys`` lead to it in the plain data. ``is_owned`` is True for a part of an
    object that has come back as an object of its class: then the part has to have its type, too, whatever was declared.
    """

    path: str
    keys: tuple[Any, ...]
    value: Any
    decoded: Any
    is_owned: bool = False

    def inner(self, label: str, key: Any, value: Any, decoded: Any, *, is_owned: bool | None = None) -> _Part:
        """Return the part at ``key``, to which ``label`` leads in a path."""
        owned = self.is_owned if is_owned is None else is_owned
        return _Part(f"{self.path}{label}", (*self.keys, key), value, decoded, owned)


def encode_lossless(
    value: Any,
    *,
    label: str,
    limit: int = codec.MAX_BYTES,
    read: Callable[[Any], Any] | None = None,
    annotate: str = "",
    must_fit: bool = False,
) -> Any:
    """Return ``value`` as plain data, and refuse a value that its reader would not get back unchanged.

    ``read`` decodes plain data as the reader does; without it the reader gets the plain data. ``annotate`` is advice
    for the error message where to add an annotation. ``label`` names the value in errors, and ``limit`` is in bytes.
    With ``must_fit``, plain data is read as well, because it may not fit. Raises ``PayloadError`` with the path of a
    value that would come back as something else.
    """
    encoded, exact = codec.to_plain_checked(value, label=label, limit=limit)
    if exact:
        if must_fit and read is not None:
            _read_back(encoded, read, label=label)
        return encoded
    if read is None:
        lossy_value = find_lossy_value(value, encoded)
    else:
        decoded = _read_back(encoded, read, label=label)
        lossy_value = find_lossy_value(value, decoded, is_expected=partial(_reader_expects, encoded, read))
    if lossy_value is not None:
        raise _lossy_error(lossy_value, label=label, annotate=annotate)
    return encoded


def check_reader(
    value: Any, encoded: Any, annotation: Callable[[], Any], *, label: str, reader: str, emit_warning: bool = True
) -> None:
    """Check a value by ``require_readable``, and warn by ``warn_lossy_value`` about parts for which no type is set.

    ``label`` names the value in the error, and ``reader`` the code that reads it in the warning.
    """
    require_readable(value, encoded, annotation, label=label)
    warn_lossy_value(value, encoded, annotation, reader=reader, emit_warning=emit_warning)


def require_readable(value: Any, encoded: Any, annotation: Callable[[], Any], *, label: str) -> None:
    """Raise ``PayloadError`` if the reader of a message or input declares a type that does not restore the value.

    ``encoded`` is ``value`` as plain data. ``annotation()`` returns the type to which the reader decodes it, or Any if
    there is no annotation. Parts for which nothing is declared come back as plain data, which is no error.
    """
    if codec.is_exact(value, encoded):
        return
    decoded = _read_back(encoded, partial(codec.convert, annotation=annotation()), label=label)
    lossy_value = find_lossy_value(value, decoded, is_expected=lambda _: True)
    if lossy_value is not None:
        raise _lossy_error(lossy_value, label=label, annotate="annotate the code that reads it")


def _read_back(encoded: Any, read: Callable[[Any], Any], *, label: str) -> Any:
    """Raise ``PayloadError``, whatever the reader raises."""
    try:
        return read(encoded)
    except PayloadError as exc:
        reason, path = exc.message, exc.path
    except (TemporalexError, MemoryError):
        raise
    except Exception as exc:  # noqa: BLE001 - constructors and validators are arbitrary user code
        reason, path = f"{type(exc).__name__}: {codec.error_reason(exc)}", None
    raise PayloadError(
        f"{label} cannot be read back from JSON: {reason}; change the annotation, or pass plain data that fits it",
        path=path,
    )


def _lossy_error(lossy_value: LossyValue, *, label: str, annotate: str) -> PayloadError:
    where = "" if lossy_value.path == "$" else f" at `{codec.shorten_path(lossy_value.path)}`"
    advice = (
        f"{annotate}, or convert it first: {lossy_value.convert}" if annotate else f"convert it: {lossy_value.convert}"
    )
    return PayloadError(
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
    if reader in _warned or codec.is_exact(value, encoded):
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


def find_lossy_value(
    value: Any, decoded: Any, *, is_expected: Callable[[tuple[Any, ...]], bool] | None = None
) -> LossyValue | None:
    """Return the first part of ``value`` that comes back in ``decoded`` as another value or type; or None.

    Parts that come back as JSON data are skipped if ``is_expected(keys)`` returns True, because their reader declares
    that type. ``keys`` lead to the part. A class of the user is compared by its fields, and never by its ``__eq__``.
    """
    return _find_in(_Part("$", (), value, decoded), is_expected)


def _find_in(outer_part: _Part, is_expected: Callable[[tuple[Any, ...]], bool] | None = None) -> LossyValue | None:
    # A stack instead of recursion; parts are pushed in reverse order, so that the first one is found first.
    pending = [outer_part]
    # Objects of the user may refer to themselves. The parts are kept, so that no other object gets their ids.
    visited: dict[tuple[int, int, bool], _Part] = {}
    while pending:
        part = pending.pop()
        kind = type(part.value)
        if kind in _ATOMIC_TYPES:
            if part.is_owned and not _is_same_atom(part.value, part.decoded):
                return _mismatch(part)
            continue
        place = (id(part.value), id(part.decoded), part.is_owned)
        if place in visited:
            continue
        visited[place] = part
        outcome = _compare(part, kind, is_expected)
        if isinstance(outcome, LossyValue):
            return outcome
        pending += reversed([*outcome])
    return None


def _compare(
    part: _Part, kind: type, is_expected: Callable[[tuple[Any, ...]], bool] | None
) -> LossyValue | Iterator[_Part]:
    """Return the difference, or the parts that are still to be compared."""
    if issubclass(kind, Mapping):
        return _compare_mapping(part, is_expected)
    if issubclass(kind, _SEQUENCE_TYPES):
        return _compare_sequence(part, kind)
    if external_types.is_record(kind):
        return _compare_record(part, kind)
    if _describe_change(part.value, kind) or external_types.base_of(kind) or issubclass(kind, Enum):
        return _compare_scalar(part, kind, is_expected) or iter(())
    return _compare_other(part, kind)


def _compare_scalar(
    part: _Part, kind: type, is_expected: Callable[[tuple[Any, ...]], bool] | None
) -> LossyValue | None:
    """Return the difference of a value without parts, or of a set."""
    description = _describe_change(part.value, kind)
    base = external_types.base_of(kind)
    if _is_preserved(part.value, kind, part.decoded, base):
        return None
    # The plain text or number of a subclass is equal to it, unless an object of that subclass holds more.
    loses_attributes = description is None and not issubclass(kind, Enum) and bool(_attributes_of(part.value))
    if part.is_owned or loses_attributes or type(part.decoded) not in _PLAIN_TYPES:
        return _mismatch(part)
    if (description is None and part.decoded is _MISSING) or (is_expected is not None and is_expected(part.keys)):
        return None
    return _mismatch(part) if description is None else LossyValue(part.path, *description)


def _compare_mapping(
    part: _Part, is_expected: Callable[[tuple[Any, ...]], bool] | None
) -> LossyValue | Iterator[_Part]:
    mapping, decoded = part.value, part.decoded
    if part.is_owned and not isinstance(decoded, dict):
        return _mismatch(part)
    kinds_of_keys: dict[Any, type] | None = None
    for key in mapping:
        kind = type(key)
        if issubclass(kind, str):
            continue
        if kinds_of_keys is None:
            kinds_of_keys = {other: type(other) for other in decoded} if isinstance(decoded, Mapping) else {}
        if kinds_of_keys.get(key) is kind:
            continue
        if part.is_owned or is_expected is None or not is_expected((*part.keys, key)):
            return LossyValue(part.path, f"a key that is not a string ({kind.__name__})", "a string", "str(key)")
    if part.is_owned and len(mapping) != len(decoded):
        return _mismatch(part)
    return (part.inner(f".{key}", key, inner, _part_of(decoded, key)) for key, inner in mapping.items())


def _compare_sequence(part: _Part, kind: type) -> LossyValue | Iterator[_Part]:
    parts, decoded = part.value, part.decoded
    decoded_kind = type(decoded)
    if decoded_kind is not kind:
        # Unless an object owns it, a list takes the type that its reader declares, and a tuple becomes a list. A list
        # of a subclass is stored as a list.
        is_plain = decoded_kind is list and (not part.is_owned or issubclass(kind, list))
        if not is_plain and (part.is_owned or not (kind is list or decoded is _MISSING)):
            return _mismatch(part)
    if not isinstance(decoded, _SEQUENCE_TYPES) or len(decoded) != len(parts):
        if part.is_owned:
            return _mismatch(part)
        decoded = [_MISSING] * len(parts)
    # The elements of a named tuple are its fields.
    is_owned = part.is_owned or (decoded_kind is kind and kind not in _SEQUENCE_TYPES)
    return (
        part.inner(f"[{i}]", i, inner, other, is_owned=is_owned)
        for i, (inner, other) in enumerate(zip(parts, decoded, strict=True))
    )


def _compare_record(part: _Part, kind: type) -> LossyValue | Iterator[_Part]:
    record, decoded = part.value, part.decoded
    names = external_types.field_names(kind)
    if type(decoded) is kind:
        return (
            part.inner(f".{name}", names.get(name, name), value, other, is_owned=True)
            for name, value, other in _parts_of_records(record, decoded, names)
        )
    if part.is_owned or type(decoded) not in _PLAIN_TYPES:
        return _mismatch(part)
    if kind in _RESULT_TYPES:
        return LossyValue(part.path, f"{kind.__name__}(...)", "a dict", _RESULT_TYPES[kind])
    if getattr(kind, "__pydantic_root_model__", False):
        return iter([part._replace(value=record.root)])
    return (
        part.inner(f".{name}", stored_name, getattr(record, name, _MISSING), _part_of(decoded, stored_name))
        for name, stored_name in names.items()
    )


def _parts_of_records(record: Any, decoded: Any, names: Mapping[str, str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield ``(name, value, decoded value)``, without private attributes that are no data: each model makes its own."""
    for name in names:
        yield name, getattr(record, name, _MISSING), getattr(decoded, name, _MISSING)
    for attribute in ("__pydantic_extra__", "__pydantic_private__"):
        parts, decoded_parts = (getattr(model, attribute, None) or {} for model in (record, decoded))
        for name in {**parts, **decoded_parts}:
            value = parts.get(name, _MISSING)
            if attribute == "__pydantic_extra__" or (value is not _MISSING and _is_data(value)):
                yield name, value, decoded_parts.get(name, _MISSING)


def _is_data(value: Any) -> bool:
    kind = type(value)
    return (
        kind in _PLAIN_TYPES
        or issubclass(kind, (Mapping, *_SEQUENCE_TYPES, *_SET_TYPES, Enum, UUID, bytes))
        or external_types.is_record(kind)
        or external_types.base_of(kind) is not None
    )


def _compare_other(part: _Part, kind: type) -> LossyValue | Iterator[_Part]:
    """Compare by its attributes a value that only a serializer of the user knows."""
    if not part.is_owned:
        return iter(())
    if type(part.decoded) is not kind:
        # A lazy text is stored as the text.
        return iter(()) if type(part.decoded) is str and is_unchanged(part.decoded, part.value) else _mismatch(part)
    state, decoded_state = _attributes_of(part.value), _attributes_of(part.decoded)
    # Types of the standard library, such as paths, keep caches in their attributes, and their ``__eq__`` is no user's.
    is_of_python = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    if is_of_python or (not state and not decoded_state):
        return iter(()) if is_unchanged(part.decoded, part.value) else _mismatch(part)
    return (
        part.inner(f".{name}", name, state.get(name, _MISSING), decoded_state.get(name, _MISSING))
        for name in {**state, **decoded_state}
    )


def _attributes_of(value: Any) -> dict[str, Any]:
    names = [name for base in type(value).__mro__ for name in _slots_of(base)]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **slots}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return tuple(name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _mismatch(part: _Part) -> LossyValue:
    kind, decoded_kind = type(part.value), type(part.decoded)
    was = _noun(part.value)
    if part.decoded is _MISSING:
        return LossyValue(part.path, was, "nothing", "leave it out")
    if decoded_kind is kind:
        to_utc = kind is datetime and part.value.tzinfo is not None
        advice = "value.astimezone(UTC)" if to_utc else "to data that JSON has"
        return LossyValue(part.path, was, f"another {decoded_kind.__name__}", advice)
    if external_types.is_pydantic(kind):
        advice = "value.model_dump(mode='json')"
    elif external_types.is_record(kind):
        advice = "msgspec.to_builtins(value)"
    else:
        advice = f"{decoded_kind.__name__}(value)"
    return LossyValue(part.path, was, _noun(part.decoded), advice)


def _noun(value: Any) -> str:
    """Return the type of a value with its article: "a Decimal"."""
    if value is None or value is _MISSING:
        return "None" if value is None else "a value"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def is_unchanged(decoded: Any, value: Any) -> bool:
    """Return True if ``decoded`` is equal to ``value``. An ``__eq__`` that raises is no error."""
    try:
        return decoded is value or bool(decoded == value)
    except Exception:  # noqa: BLE001 - any operation on a value may raise
        return False


def _is_same_atom(value: Any, decoded: Any) -> bool:
    """Accept the equal ``float`` of a whole number: Python allows it where a ``float`` is declared."""
    kind = type(decoded)
    if kind is not type(value) and not (kind is float and type(value) is int):
        return False
    return bool(decoded == value) or (kind is float and math.isnan(decoded) and math.isnan(value))


def _describe_change(part: Any, kind: type) -> tuple[str, str, str] | None:
    """Return ``(was, becomes, expression that converts it)``, or None for a type that JSON has."""
    for kinds, *words in _LOSSY_TYPES:
        if issubclass(kind, kinds):
            return words[0], words[1], words[2]
    if issubclass(kind, Enum) and not issubclass(kind, (str, int)):
        return f"a {kind.__name__}", f"its value ({type(part.value).__name__})", "value.value"
    return None


def _is_preserved(value: Any, kind: type, decoded: Any, base: type | None) -> bool:
    """Return True if the value comes back. ``base`` is the type as which ``kind`` is stored, or None."""
    if issubclass(kind, Enum):
        # The value of a member that is a text or a number is equal to it.
        return decoded is value or (
            type(decoded) in (str, int) and issubclass(kind, (str, int)) and is_unchanged(decoded, value.value)
        )
    if type(decoded) is not kind and type(decoded) is not base:
        return False
    if issubclass(kind, _SET_TYPES):
        return _is_same_set(value, decoded)
    if base is None:
        return is_unchanged(decoded, value)
    if kind is not base:
        attributes = _attributes_of(value)
        if attributes and (type(decoded) is base or not is_unchanged(_attributes_of(decoded), attributes)):
            return False
        value, decoded = external_types.as_base(value, base), external_types.as_base(decoded, base)
    return _is_same_base_value(value, decoded, base)


def _is_same_base_value(value: Any, decoded: Any, base: type) -> bool:
    """Return True if the values are the same, and not only equal: 1.0 is not 1.00."""
    if base is Decimal:
        return bool(value.as_tuple() == decoded.as_tuple())
    if base is datetime or base is time:
        return _is_same_time(value, decoded)
    return is_unchanged(decoded, value)


def _is_same_time(value: Any, decoded: Any) -> bool:
    """Compare figures and offset. The name of a zone is not stored, and ``fold`` has another place only without one."""
    try:
        if (value.tzinfo is None) != (decoded.tzinfo is None) or value.utcoffset() != decoded.utcoffset():
            return False
        has_fold = value.tzinfo is None and value.fold != decoded.fold
        return not has_fold and value.replace(tzinfo=None, fold=0) == decoded.replace(tzinfo=None, fold=0)
    except Exception:  # noqa: BLE001 - a time zone is user code
        return False


def _is_same_set(value: Any, decoded: Any) -> bool:
    if len(value) != len(decoded):
        return False
    try:
        pairs = zip(sorted(value, key=_sort_key), sorted(decoded, key=_sort_key), strict=True)
    except PayloadError:
        return False
    return all(_find_in(_Part("$", (), *pair, is_owned=True)) is None for pair in pairs)


def _sort_key(element: Any) -> bytes:
    return codec.canonical_bytes(codec.to_plain(element))


def _reader_expects(encoded: Any, read: Callable[[Any], Any], keys: tuple[Any, ...]) -> bool:
    """Return True if the annotation restricts the value at ``keys``: it refuses a sentinel there."""
    try:
        read(_replace_part(encoded, keys, _SENTINEL))
    except (LookupError, TypeError):  # the plain data has no part at these keys
        return False
    except PayloadError:
        return True
    return False


def _replace_part(encoded: Any, keys: tuple[Any, ...], part: Any) -> Any:
    if not keys:
        return part
    key, *rest = keys
    container = dict(encoded) if isinstance(encoded, dict) else list(encoded)
    container[key] = _replace_part(container[key], tuple(rest), part)
    return container


def _part_of(container: Any, key: Any) -> Any:
    if isinstance(container, Mapping):
        # A key of a subclass of ``str`` may hash otherwise than the plain text that came back.
        part = container.get(key, _MISSING)
        return container.get(str.__str__(key), _MISSING) if part is _MISSING and isinstance(key, str) else part
    return getattr(container, key, _MISSING) if isinstance(key, str) else _MISSING
