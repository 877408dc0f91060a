"""Payloads: what may cross the border of a workflow, and how it is written down.

Every value that enters or leaves workflow code (arguments, results, messages, published state) goes through ``plain``
on its *first* delivery, so that live code sees exactly what a replay will see: JSON data, with keys and sets in
sorted order so that bytes do not depend on the hash seed. Annotated receivers get it back through ``fit``.

``PayloadCodec`` is how history and inbox rows are written. It may encrypt; it never decides what a value looks like.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec

from temporalex_django.core import foreign
from temporalex_django.errors import NotAwaited, PayloadError

_encoder = msgspec.json.Encoder(order="deterministic", enc_hook=foreign.written)
_decoder = msgspec.json.Decoder()

_ATOMS = frozenset({str, int, float, bool})

#: Numbers between these need no proof; there are some that have no digits in JSON.
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_LONGEST_REASON = 500

MAX_BYTES = 2_000_000
#: Levels of lists and objects in each other. Copying takes frames of Python's stack, and a worker's is not endless.
MAX_DEPTH = 200
_LONGEST_PATH = 200


class PayloadCodec(Protocol):
    """Turns plain JSON data into bytes and back; both raise ``PayloadError``. Must be total on what ``plain`` gives."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """The default codec: deterministic JSON.

    What it is given is plain already, so nothing is looked for (NaN and the like).
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


def encode(value: Any, *, what: str = "payload") -> bytes:
    """JSON bytes of ``value``; raises ``PayloadError`` with the path of what cannot be encoded, whatever it is."""
    try:
        data = _json(value)
        if b"null" in data and _changes(value):  # JSON writes NaN as null: the value would change without a word
            path = _find(value, _no_number)
            raise PayloadError(f"{what} cannot be encoded at `{path}`: NaN and infinity are not JSON")
    except (PayloadError, NotAwaited):
        raise
    except RecursionError as exc:
        raise _too_deep(what) from exc
    except Exception as exc:
        raise PayloadError(f"{what} cannot be encoded{_where(value)}: {reason_of(exc)}") from exc
    return data


def digest(value: Any) -> str:
    """The digest of plain data, the same in every process: 16 hexadecimal digits."""
    return hashlib.blake2s(encode(value), digest_size=8).hexdigest()


def _json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError):
        return _encoder.encode(
            msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=foreign.written)
        )


def reason_of(exc: BaseException) -> str:
    """What an exception says, in one short line. Values are arbitrary, and so are the errors that they raise."""
    try:
        text = str(exc)
    except BaseException:  # noqa: BLE001 - arbitrary user code
        text = ""
    return text[:_LONGEST_REASON].encode("utf-8", "backslashreplace").decode() or type(exc).__name__


def text(value: Any, *, what: str) -> str:
    """A text that every column of every database can keep. Raises ``PayloadError``."""
    if not issubclass(type(value), str):  # what it says of its class may raise
        raise PayloadError(f"{what} is a text, not {type(value).__name__}")
    if len(value) > MAX_BYTES:
        raise PayloadError(f"{what} has {len(value):,} characters, more than the {MAX_BYTES:,} allowed")
    if "\x00" in value or value.encode("utf-8", "replace").decode() != value:
        raise PayloadError(f"{what} cannot be stored: it has a NUL character or half of a surrogate pair")
    return cast("str", value)


def plain(value: Any, *, what: str = "payload", limit: int = MAX_BYTES) -> Any:
    """``value`` as it will be read back from the history: JSON data, a copy, at most ``limit`` bytes."""
    if value is None or value is True or value is False or (type(value) is int and _SMALLEST <= value <= _LARGEST):
        return value
    if type(value) is str and len(value) < min(1024, limit) and value.isascii():
        return value
    return sized(value, what=what, limit=limit)[0]


def sized(value: Any, *, what: str = "payload", limit: int = MAX_BYTES) -> tuple[Any, int]:
    """The same, with the number of its bytes."""
    data = encode(value, what=what)
    if len(data) > limit:
        raise PayloadError(f"{what} is {len(data):,} bytes, more than the {limit:,} allowed: store it and pass its key")
    try:
        decoded = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as exc:
        raise PayloadError(f"{what} cannot be read back: {reason_of(exc)}") from exc
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _deep(decoded):
        raise _too_deep(what)
    return decoded, len(data)


def _too_deep(what: str) -> PayloadError:
    return PayloadError(f"{what} is nested more than {MAX_DEPTH} levels deep: copying it would break a worker's stack")


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for whole in level
            for part in (whole.values() if type(whole) is dict else whole if type(whole) is list else ())
            if type(part) is dict or type(part) is list
        ]
        if not level:
            return False
    return True


#: Where msgspec says that something does not fit.
_PATH = re.compile(r" - at `([^`]*)`$")


def fit(value: Any, annotation: Any, *, what: str = "payload") -> Any:
    """Decode plain data to ``annotation``; raises ``PayloadError`` with the path of the field that does not fit."""
    if (
        annotation is Any
        or annotation is None
        or annotation is object
        or (type(value) is annotation and annotation in _ATOMS)
    ):
        return value
    try:
        return msgspec.convert(value, annotation, str_keys=True, dec_hook=foreign.read)
    except msgspec.ValidationError as exc:
        place = _PATH.search(str(exc))
        path = "$" if place is None else place[1]
        raise PayloadError(f"{what} does not fit {_name(annotation)}: {exc}", path=path) from exc
    except (TypeError, NameError, RecursionError) as exc:  # NameError: of what an annotation inside names
        raise PayloadError(f"{what} cannot be decoded to {_name(annotation)}: {exc}") from exc


def hints(fn: Any) -> dict[str, Any]:
    """Annotations of ``fn``, each resolved by itself; what cannot be resolved is left out (stays plain JSON)."""
    with contextlib.suppress(Exception):  # an annotation is arbitrary user code
        return typing.get_type_hints(fn, include_extras=True)
    target = fn if isinstance(fn, types.FunctionType) else getattr(fn, "__func__", type(fn).__call__)
    found: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        probe = types.SimpleNamespace(
            __annotations__={name: annotation}, __globals__=getattr(target, "__globals__", {})
        )
        try:
            scope = dict(probe.__globals__)
            found[name] = typing.get_type_hints(probe, scope, _closure(target), include_extras=True)[name]
        except Exception:  # noqa: BLE001, S112 - see above
            continue
    return found


def _closure(fn: Any) -> dict[str, Any]:
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    values = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return values


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _where(value: Any) -> str:
    try:
        return _place(value)
    except Exception:  # noqa: BLE001 - a value may raise whatever is asked of it
        return ""


def _place(value: Any) -> str:
    def bad(v: Any) -> bool:
        if isinstance(v, (dict, list, tuple, set, frozenset)) or hasattr(type(v), "__dataclass_fields__"):
            return False
        try:
            _encoder.encode(v)
        except Exception:  # noqa: BLE001 - whatever the reason, this is the one
            return True
        return False

    path = _find(value, bad) or _find(value, _bad_keys)
    return f" at `{path}`" if path and path != "$" else ""


def _bad_keys(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        msgspec.to_builtins(dict.fromkeys(value), str_keys=True)
    except Exception:  # noqa: BLE001 - see above
        return True
    return False


def _no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _changes(value: Any) -> bool:
    """Whether there is a number in it that JSON does not have. It was encoded before: it is not endless."""
    rest = [value]
    while rest:
        part = rest.pop()
        kind = type(part)
        if kind is dict:
            rest += part.values()
        elif kind is list:
            rest += part
        elif _no_number(part):
            return True
        elif part is not None and kind not in _ATOMS:
            rest += [inner for _, inner in _parts(part)]
    return False


def _find(value: Any, bad: Any) -> str | None:
    """The path of the first part of ``value`` for which ``bad`` is true.

    Of one that is nested too deep, which may be endless.
    """
    rest = [("$", value, 0)]
    while rest:
        path, part, depth = rest.pop()
        if depth > MAX_DEPTH or bad(part):
            return short_path(path)
        rest += [(f"{path}{label}", inner, depth + 1) for label, inner in reversed(_parts(part))]
    return None


def short_path(path: str) -> str:
    """A path that fits into a sentence."""
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH // 2]} … {path[-_LONGEST_PATH // 2 :]}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What a value consists of, each with its step in a path."""
    if isinstance(value, Mapping):
        return [(f".{key}", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    kind = type(value)
    fields: Iterable[str] = getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "__struct_fields__", ())
    return [(f".{name}", getattr(value, name, None)) for name in fields]
