"""Payloads: how values become JSON and how they are read back."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import marshal
import math
import re
import threading
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Protocol, cast
from uuid import UUID

import msgspec

from temporalex_django.core.payloads import external_types
from temporalex_django.core.payloads.external_types import unreadable_reason
from temporalex_django.errors import NotAwaited, PayloadError, TemporalexError

# --- codec ------------------------------------------------------------------------------------------------------------
#
# Payloads: the values that may enter or leave a workflow, and their stored form. See decision 15.
#
# Every value that enters or leaves workflow code (arguments, results, messages, published state) passes ``to_plain`` on
# its *first* delivery. So live code sees exactly what a replay will see: JSON data. Dicts keep the order of their keys.
# Sets are sorted, so that the bytes do not depend on the hash seed. Receivers with annotations get the value back
# through ``convert``.
#
# A ``PayloadCodec`` writes the rows of histories and inboxes. It may encrypt, but it never changes a value.


_encoder = msgspec.json.Encoder(enc_hook=external_types.encode_external)
#: Sorts the keys: for digests and comparisons, to which the order of keys does not matter.
_canonical_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder()

_ATOMIC_TYPES = frozenset({str, int, float, bool})

#: Integers within these bounds need no check. Some larger ones cannot be written as JSON.
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_MAX_REASON_LENGTH = 500
#: The labels of payloads that are plural nouns.
_PLURAL = re.compile(r"(the )?(heartbeat )?(arguments|details)\b")

MAX_BYTES = 2_000_000
#: Deepest nesting of lists and objects. Copying is recursive, and the stack of a worker is limited.
MAX_DEPTH = 200
_MAX_PATH_LENGTH = 200


class PayloadCodec(Protocol):
    """Converts plain JSON data to bytes and back. Both methods raise ``PayloadError``.

    ``encode`` must accept everything that ``to_plain`` returns.
    """

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """The default codec: JSON, with the keys of dicts in their order.

    Its input is plain data already, so it does not search for NaN and similar values.
    """

    def encode(self, value: Any) -> bytes:
        try:
            return _encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return encode(value)

    def decode(self, data: bytes) -> Any:
        try:
            return _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise PayloadError(f"a stored payload is not JSON: {exc}") from exc


def encode(value: Any, *, label: str = "payload") -> bytes:
    """Return the JSON bytes of ``value``. Raises ``PayloadError`` with the path of any part that cannot be encoded.

    ``label`` names the value in errors.
    """
    try:
        data = _encode_json(value)
        # The encoder writes NaN as null, which would change the value silently. Only then is the value searched.
        if b"null" in data and _has_non_finite(value):
            path = _find_path(value, _is_non_finite)
            raise PayloadError(f"{label} cannot be encoded at `{path}`: NaN and infinity are not JSON")
    except (PayloadError, NotAwaited):
        raise
    except RecursionError as exc:
        raise _depth_error(label) from exc
    except Exception as exc:
        raise PayloadError(f"{label} cannot be encoded{_location_text(value)}: {error_reason(exc)}") from exc
    return data


def canonical_bytes(value: Any) -> bytes:
    """Return the bytes by which plain data is compared: two values with other bytes differ in more than their order.

    Unlike ``==``, they tell 1, 1.0 and True apart.
    """
    return _canonical_encoder.encode(value)


def digest(value: Any) -> str:
    """Return the digest of plain data: 16 hexadecimal digits, the same in every process and for any order of keys."""
    return hashlib.blake2s(canonical_bytes(value), digest_size=8).hexdigest()


def _encode_json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError):
        return _encoder.encode(msgspec.to_builtins(value, str_keys=True, enc_hook=external_types.encode_external))


def error_reason(exc: BaseException) -> str:
    """Return the message of an exception, cut short, or the name of its class if it has none.

    It never raises, although a value of the user may raise any exception, with any ``__str__``.
    """
    try:
        text = str(exc)
    except BaseException:  # noqa: BLE001 - arbitrary user code
        text = ""
    return text[:_MAX_REASON_LENGTH].encode("utf-8", "backslashreplace").decode() or type(exc).__name__


def check_text(value: Any, *, label: str) -> str:
    """Return the value if it is a text that every column of every database can store. Raises ``PayloadError``.

    ``label`` names the value in errors.
    """
    if not issubclass(type(value), str):  # ``isinstance`` would call its ``__class__``, which may raise
        raise PayloadError(f"{label} must be a string, not {type(value).__name__}")
    if len(value) > MAX_BYTES:
        raise PayloadError(f"{label} has {len(value):,} characters, more than the {MAX_BYTES:,} allowed")
    if "\x00" in value or value.encode("utf-8", "replace").decode() != value:
        raise PayloadError(f"{label} cannot be stored: it has a NUL character or half of a surrogate pair")
    return cast("str", value)


def to_plain(value: Any, *, label: str = "payload", limit: int = MAX_BYTES) -> Any:
    """Return ``value`` as the history will return it: a copy as JSON data, of at most ``limit`` bytes.

    ``label`` names the value in errors. Raises ``PayloadError``.
    """
    return to_plain_checked(value, label=label, limit=limit)[0]


def to_plain_checked(value: Any, *, label: str = "payload", limit: int = MAX_BYTES) -> tuple[Any, bool]:
    """Return ``(value as JSON data, True if JSON cannot change the value)``; the rest is as for ``to_plain``."""
    if (
        value is None
        or value is True
        or value is False
        or (type(value) is int and _MIN_INTEGER <= value <= _MAX_INTEGER)
    ):
        return value, True
    # Most values are short: these two tests save them the round trip through the encoder. ASCII has no surrogates.
    if type(value) is str and len(value) < min(1024, limit) and value.isascii():
        return value, True
    plain, _, exact = _encode_and_decode(value, label=label, limit=limit)
    return plain, exact


def is_exact(value: Any, plain: Any) -> bool:
    """Return True if ``value`` has only types that JSON has, so that ``plain``, its JSON data, cannot differ from it.

    No method of a value is called.
    """
    if value is plain:
        return True
    try:
        # The fastest test in Python for types that are no subclasses. It also accepts tuples, sets and bytes, but these
        # are never equal to JSON data.
        marshal.dumps(value, 2)
    except ValueError:
        return False
    return bool(plain == value)


def to_plain_with_size(value: Any, *, label: str = "payload", limit: int = MAX_BYTES) -> tuple[Any, int]:
    """Return ``(value as JSON data, number of its bytes)``; the rest is as for ``to_plain``."""
    return _encode_and_decode(value, label=label, limit=limit)[:2]


def _encode_and_decode(value: Any, *, label: str, limit: int) -> tuple[Any, int, bool]:
    """Return ``(value as JSON data, number of its bytes, True if JSON cannot change the value)``."""
    data = encode(value, label=label)
    if len(data) > limit:
        raise PayloadError(
            f"{label} is {len(data):,} bytes, more than the {limit:,} allowed: store it elsewhere and pass its key"
        )
    try:
        decoded = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise PayloadError(f"{label} cannot be read back: {error_reason(exc)}") from exc
    # Counting brackets is fast, and data with few of them cannot be nested deeply.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_too_deep(decoded):
        raise _depth_error(label)
    if is_exact(value, decoded):
        return decoded, len(data), True
    try:
        return _sort_sets(value, decoded), len(data), False
    except ValueError as exc:
        raise PayloadError(f"{label} cannot be encoded: {exc}") from None


def _sort_sets(value: Any, plain: Any) -> Any:
    """Sort sets against the hash seed. Raises ``ValueError`` for keys that are the same in JSON, such as 1 and "1"."""
    kind = type(value)
    if type(plain) is list:
        if issubclass(kind, (list, tuple, set, frozenset)) and len(value) == len(plain):
            elements = [*map(_sort_sets, value, plain)]
            return _sort_elements([*value], elements) if issubclass(kind, (set, frozenset)) else elements
    elif type(plain) is dict:
        if issubclass(kind, Mapping):
            if len(value) != len(plain):
                raise ValueError("two keys of a dict are the same in JSON")
            return dict(zip(plain, map(_sort_sets, value.values(), plain.values()), strict=True))
        else:
            for name, stored_name in external_types.field_names(kind).items():
                if stored_name in plain:
                    plain[stored_name] = _sort_sets(getattr(value, name, None), plain[stored_name])
            return plain
    # The only field of a root model is the data itself.
    if getattr(kind, "__pydantic_root_model__", False):
        return _sort_sets(value.root, plain)
    return plain


#: Types whose values ``<`` puts into one order, alone or together with the other types of their group.
_ORDERED_TYPES: tuple[frozenset[type], ...] = (
    frozenset({int, float, bool, Decimal}),
    *(frozenset({kind}) for kind in (str, bytes, date, datetime, time, timedelta, UUID)),
)


def _sort_elements(values: list[Any], elements: list[Any]) -> list[Any]:
    """Return ``elements``, the plain data of ``values`` in the same order, sorted by nothing but the values."""
    for keys in (values, elements):
        kinds = {*map(type, keys)}
        if any(kinds <= group for group in _ORDERED_TYPES):
            # Times with and without a zone have no order.
            with contextlib.suppress(TypeError, ArithmeticError):
                return [elements[index] for index in sorted(range(len(keys)), key=keys.__getitem__)]
    return sorted(elements, key=canonical_bytes)


def _depth_error(label: str) -> PayloadError:
    return PayloadError(
        f"{label} is nested more than {MAX_DEPTH} levels deep: copying it would overflow the stack of a worker"
    )


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for container in level
            for part in (
                container.values() if type(container) is dict else container if type(container) is list else ()
            )
            if type(part) is dict or type(part) is list
        ]
        if not level:
            return False
    return True


#: The path at the end of a message of msgspec.
_PATH = re.compile(r" - at `([^`]*)`$")


def convert(value: Any, annotation: Any, *, label: str = "payload") -> Any:
    """Decode plain data to ``annotation``. Raises ``PayloadError`` with the path of the field that does not fit.

    ``label`` names the value in errors.
    """
    if (
        annotation is Any
        or annotation is None
        or annotation is object
        or (type(value) is annotation and annotation in _ATOMIC_TYPES)
    ):
        return value
    try:
        if not _is_prepared(annotation):
            _prepare(annotation)
        return msgspec.convert(value, annotation, str_keys=True, dec_hook=external_types.decode_external)
    except msgspec.ValidationError as exc:
        place = _PATH.search(str(exc))
        path = "$" if place is None else place[1]
        verb = "do" if _PLURAL.match(label) else "does"
        raise PayloadError(f"{label} {verb} not fit {_annotation_name(annotation)}: {exc}", path=path) from exc
    except (TypeError, NameError, RecursionError) as exc:  # NameError: a name inside the annotation
        raise PayloadError(f"{label} cannot be decoded to {_annotation_name(annotation)}: {exc}") from exc


_prepared: dict[Any, None] = {}
_MAX_PREPARED = 10_000
_preparing = threading.RLock()


def _is_prepared(annotation: Any) -> bool:
    try:
        return annotation in _prepared
    except TypeError:  # metadata of ``Annotated`` may have no hash
        return False


def _prepare(annotation: Any) -> None:
    """Let msgspec examine a type, in one thread at a time. Raises what ``msgspec.convert`` raises.

    Another thread would get the unfinished description of nested classes, and the process would crash.
    """
    with _preparing:
        with contextlib.suppress(msgspec.ValidationError):  # None fits few types
            msgspec.convert(None, annotation, str_keys=True)
        if len(_prepared) >= _MAX_PREPARED:
            _prepared.clear()
        with contextlib.suppress(TypeError):
            _prepared[annotation] = None


def resolve_hints(fn: Any) -> dict[str, Any]:
    """Return the annotations of ``fn`` as types, by the name of the parameter.

    An annotation that cannot be resolved is left out, so its value stays plain JSON.
    """
    with contextlib.suppress(Exception):  # an annotation is arbitrary user code
        return typing.get_type_hints(fn, include_extras=True)
    target = fn if isinstance(fn, types.FunctionType) else getattr(fn, "__func__", type(fn).__call__)
    resolved: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        # One annotation at a time: ``get_type_hints`` fails as a whole if one name is imported for type checkers only.
        probe = types.SimpleNamespace(
            __annotations__={name: annotation}, __globals__=getattr(target, "__globals__", {})
        )
        try:
            scope = dict(probe.__globals__)
            resolved[name] = typing.get_type_hints(probe, scope, _closure_variables(target), include_extras=True)[name]
        except Exception:  # noqa: BLE001, S112 - see above
            continue
    return resolved


def _closure_variables(fn: Any) -> dict[str, Any]:
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    values = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return values


def _annotation_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _location_text(value: Any) -> str:
    """Return " at" and the path of the first part that cannot be encoded; empty if it is not found."""
    try:
        return _find_location(value)
    except Exception:  # noqa: BLE001 - any operation on a value may raise
        return ""


def _find_location(value: Any) -> str:
    def is_bad_leaf(v: Any) -> bool:
        if isinstance(v, (dict, list, tuple, set, frozenset)) or external_types.is_record(type(v)):
            return False
        try:
            _encoder.encode(v)
        except Exception:  # noqa: BLE001 - whatever the reason, this part is the cause
            return True
        return False

    path = _find_path(value, is_bad_leaf) or _find_path(value, _has_bad_keys)
    return f" at `{path}`" if path and path != "$" else ""


def _has_bad_keys(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        msgspec.to_builtins(dict.fromkeys(value), str_keys=True)
    except Exception:  # noqa: BLE001 - see above
        return True
    return False


def _is_non_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _has_non_finite(value: Any) -> bool:
    """Return True for a number that JSON lacks. The value was encoded before, so it has no cycles."""
    pending = [value]
    while pending:
        part = pending.pop()
        kind = type(part)
        if kind is dict:
            pending += part.values()
        elif kind is list:
            pending += part
        elif _is_non_finite(part):
            return True
        elif part is not None and kind not in _ATOMIC_TYPES:
            pending += [inner for _, inner in _parts(part)]
    return False


def _find_path(value: Any, is_bad: Any) -> str | None:
    """Return the path of the first bad part, or None. A part that is nested too deeply is bad: it may be a cycle."""
    pending = [("$", value, 0)]
    while pending:
        path, part, depth = pending.pop()
        if depth > MAX_DEPTH or is_bad(part):
            return shorten_path(path)
        pending += [(f"{path}{label}", inner, depth + 1) for label, inner in reversed(_parts(part))]
    return None


def shorten_path(path: str) -> str:
    """Return a path, cut if it is too long for a sentence."""
    return (
        path if len(path) <= _MAX_PATH_LENGTH else f"{path[: _MAX_PATH_LENGTH // 2]} … {path[-_MAX_PATH_LENGTH // 2 :]}"
    )


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a value as ``(text, part)``; the text leads to it in a path: ``.name`` or ``[0]``."""
    if isinstance(value, Mapping):
        return [(f".{key}", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    return [(f".{name}", getattr(value, name, None)) for name in external_types.field_names(type(value))]


# --- project codec ----------------------------------------------------------------------------------------------------
#
# The payload codec of a project, with errors that callers and interfaces can handle.


class ProjectCodec:
    """A wrapper of a payload codec that the project has written, at the dotted path ``path``.

    Exceptions of the codec become ``PayloadError``, which callers and interfaces can handle. Errors of this package are
    raised as they are.
    """

    def __init__(self, path: str, codec: PayloadCodec) -> None:
        self._path = path
        self._encode, self._decode = codec.encode, codec.decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("encode a payload", exc) from exc

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("decode a stored payload", exc) from exc

    def _error(self, operation: str, exc: Exception) -> PayloadError:
        # Only the type: the message of a codec's exception may quote the payload.
        return PayloadError(f"the codec {self._path} cannot {operation}: {type(exc).__name__}")


# --- copying ----------------------------------------------------------------------------------------------------------
#
# Copies of values that pass between units and their engine.
#
# Without a copy, a unit could keep a reference and change the data of another unit. See decision 14.


_UNCHANGEABLE_TYPES = frozenset({type(None), bool, int, float, str, bytes})
_MAX_DEPTH = 40


def deep_copy(value: Any) -> Any:
    """Return a deep copy of any value.

    JSON-like data takes a shorter path, about ten times as fast as ``copy.deepcopy``.
    """
    kind = type(value)
    if kind in _UNCHANGEABLE_TYPES:
        return value
    if kind is dict or kind is list:
        return _deep_copy_at(value, 0)
    return copy.deepcopy(value)


def _deep_copy_at(value: Any, depth: int) -> Any:
    kind = type(value)
    # Deeper data may be a cycle. ``copy.deepcopy`` remembers the objects that it has seen and ends.
    if depth < _MAX_DEPTH:
        if kind is dict:
            return {k: v if type(v) in _UNCHANGEABLE_TYPES else _deep_copy_at(v, depth + 1) for k, v in value.items()}
        if kind is list:
            return [v if type(v) in _UNCHANGEABLE_TYPES else _deep_copy_at(v, depth + 1) for v in value]
    return copy.deepcopy(value)


# --- stored fields ----------------------------------------------------------------------------------------------------
#
# Fields of a published state that are stored so that SQL can read them.


#: Types with which a field may be declared.
FIELD_TYPES: Final = (str, int, Decimal)
_LARGEST = 2**63


def stored_fields(published: Any, declared: Mapping[str, type]) -> dict[str, Any]:
    """Return the declared fields of a published state that have their declared type, by name.

    Decimals are returned as texts. A value of another type would make every query over the field fail. It is left out,
    as if the state had no such field.
    """
    state = published if isinstance(published, Mapping) else {}
    fields = {name: _to_stored(state[name], kind) for name, kind in declared.items() if name in state}
    return {name: value for name, value in fields.items() if value is not None}


def _to_stored(value: Any, kind: type) -> str | int | None:
    """Return the stored form of a value of the type ``kind``, or None if the value is of another type or too large."""
    if kind is str:
        return value if isinstance(value, str) else None
    # ``bool`` is a subclass of ``int``, but True is no number in the columns of SQL.
    if isinstance(value, bool):
        return None
    if kind is int:
        return value if isinstance(value, int) and -_LARGEST <= value < _LARGEST else None
    try:
        number = Decimal(value) if isinstance(value, str | int) else None
    except InvalidOperation:
        return None
    return format(number, "f") if number is not None and number.is_finite() and abs(number.adjusted()) < 20 else None


# --- annotations ------------------------------------------------------------------------------------------------------
#
# Annotations as which nothing could be read back from JSON: definitions refuse them.
#
# Only the annotation is judged, and only if no value at all fits it. Everything else is judged by a value, where the
# value is sent (``round_trip``).


def annotation_problems(annotations: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each annotation as which no value can be read back from JSON.

    ``annotations`` maps what is annotated, such as "the result", to its annotation.
    """
    reasons = {label: unreadable_reason(annotation) for label, annotation in annotations.items()}
    return [
        f"nothing can be read back from JSON as the annotation of {label}: {reason}; declare a type that payloads may "
        "have, or pass plain data"
        for label, reason in reasons.items()
        if reason is not None
    ]


def parameter_problems(fn: Callable[..., Any]) -> list[str]:
    """Return the ``annotation_problems`` of an activity, for its result and the parameters that each call passes."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    # Names that are defined further below in the module have no hint yet, so nothing is kept for later.
    hints = resolve_hints(fn)
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    annotations = {f"parameter {name!r}": hints.get(name, Any) for name in required}
    return annotation_problems({**annotations, "the result": hints.get("return", Any)})
