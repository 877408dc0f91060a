"""Values that are handed over to a reader who is to get what was given, and not what JSON makes of it.

Results, arguments of activities, replies and published state: what would come back as something else (a Decimal as a
text, a set as a list) is refused where it is handed over, unless an annotation brings it back. Messages and arguments
of starts are encoded as they are, for their senders cannot see who reads them: there a warning is given, once a reader.
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

from temporalex_django.core import current, foreign, payloads
from temporalex_django.errors import PayloadError, PayloadWarning

logger = logging.getLogger("temporalex_django.payloads")

#: Types that JSON does not have, each with what it becomes and how it is converted by hand. The first that fits counts.
_CHANGING: Final[tuple[tuple[type | tuple[type, ...], str, str, str], ...]] = (
    (Decimal, "a Decimal", "a text", "str(value)"),
    (datetime, "a datetime", "a text", "value.isoformat()"),
    (date, "a date", "a text", "value.isoformat()"),
    (time, "a time", "a text", "value.isoformat()"),
    (timedelta, "a timedelta", "a text", "value.total_seconds()"),
    (UUID, "a UUID", "a text", "str(value)"),
    ((bytes, bytearray, memoryview), "bytes", "a text in base64", "value.hex()"),
    ((set, frozenset), "a set", "a list", "sorted(value)"),
)
_MISSING: Final = object()
_STRANGE: Final = object()
_ITEMS = (list, tuple)


class Change(NamedTuple):
    """What comes back as something else: where it is, what it ``was``, what it ``becomes``, how it is converted."""

    path: str
    was: str
    becomes: str
    convert: str


def handed(
    value: Any,
    *,
    what: str,
    limit: int = payloads.MAX_BYTES,
    read: Callable[[Any], Any] | None = None,
    annotate: str = "",
) -> Any:
    """``payloads.plain`` for whoever is to get it back as it was.

    ``read`` decodes plain data as its reader does, and ``annotate`` says where he says how; without them it is read as
    plain data. Raises ``PayloadError`` for what would come back as something else, with the path.
    """
    made = payloads.plain(value, what=what, limit=limit)
    if not unchanged(made, value):
        require_kept(value, made, what=what, read=read, annotate=annotate)
    return made


def require_kept(
    value: Any, made: Any, *, what: str, read: Callable[[Any], Any] | None = None, annotate: str = ""
) -> None:
    """The same of what is plain data already, and not equal to ``value``."""
    found = changed(value, made)
    if found is not None and read is not None:
        try:
            found = changed(value, read(made), wanted=partial(_wants_what_comes, made, read))
        except PayloadError:  # whoever reads it is told
            return
    if found is not None:
        where = "" if found.path == "$" else f" at `{payloads.short_path(found.path)}`"
        advice = f"{annotate}, or convert it before: {found.convert}" if annotate else f"convert it: {found.convert}"
        raise PayloadError(f"{what} has {found.was}{where}, which would come back as {found.becomes}; {advice}")


_warned: set[str] = set()


def warn_of_change(value: Any, made: Any, annotation: Callable[[], Any], *, reader: str, aloud: bool = True) -> None:
    """Say, once a reader, that he gets something else than what is sent him, for his code does not say what it is.

    In the log, and (``aloud``) outside of workflow code as a ``PayloadWarning``. ``made`` is ``value`` as plain data,
    ``annotation()`` what the reader decodes it to (Any: nothing).
    """
    if reader in _warned or unchanged(made, value):
        return
    found = changed(value, made)
    try:
        if found is not None:
            read = partial(payloads.fit, annotation=annotation())
            found = changed(value, read(made), wanted=partial(_wants_what_comes, made, read))
    except PayloadError:
        return
    if found is not None:
        _warned.add(reader)
        message = (
            f"{reader} gets {found.becomes} where {found.was} was sent, for nothing in its code says what it is: annotate what "
            f"it takes, or convert it where it is sent: {found.convert}"
        )
        logger.warning("%s", message)
        if aloud and not current.inside_workflow():
            warnings.warn(message, PayloadWarning, stacklevel=2)


def unchanged(made: Any, value: Any) -> bool:
    """The cheap question, which most values answer: whether plain data are what was given."""
    try:
        return made is value or bool(made == value)
    except Exception:  # noqa: BLE001 - a value may raise whatever is asked of it
        return False


def changed(value: Any, came: Any, *, wanted: Callable[[tuple[Any, ...]], bool] | None = None) -> Change | None:
    """The first part of ``value`` that is of a type which JSON does not have and that ``came`` has as another.

    Those are left out of which ``wanted(keys)`` says that they are to be so.
    """
    rest: list[tuple[str, tuple[Any, ...], Any, Any]] = [("$", (), value, came)]
    while rest:
        path, keys, part, got = rest.pop()
        kind = type(part)
        if issubclass(kind, Mapping):
            for key in part:
                if not issubclass(type(key), str) and not (isinstance(got, Mapping) and key in got):
                    return Change(path, f"a key that is no text ({type(key).__name__})", "a text", "str(key)")
            rest += [(f"{path}.{key}", (*keys, key), inner, _of(got, key)) for key, inner in reversed([*part.items()])]
        elif issubclass(kind, _ITEMS):
            there = got if isinstance(got, _ITEMS) and len(got) == len(part) else [_MISSING] * len(part)
            rest += [(f"{path}[{i}]", (*keys, i), inner, there[i]) for i, inner in reversed([*enumerate(part)])]
        elif (found := _changing(part, kind)) is not None:
            if not _is(part, kind, got) and not (wanted and wanted(keys)):
                return Change(path, *found)
        else:
            rest += [
                (f"{path}.{name}", (*keys, name), getattr(part, name, None), _of(got, name))
                for name in reversed(_fields(kind))
            ]
    return None


def _wants_what_comes(made: Any, read: Callable[[Any], Any], keys: tuple[Any, ...]) -> bool:
    """Whether the reader's annotation says what is to be there, a text, say: then not everything can be."""
    try:
        read(_with(made, keys, _STRANGE))
    except (LookupError, TypeError):  # plain data have it elsewhere
        return False
    except PayloadError:
        return True
    return False


def _with(made: Any, keys: tuple[Any, ...], part: Any) -> Any:
    if not keys:
        return part
    key, *rest = keys
    whole = dict(made) if isinstance(made, dict) else list(made)
    whole[key] = _with(whole[key], tuple(rest), part)
    return whole


def _changing(part: Any, kind: type) -> tuple[str, str, str] | None:
    for kinds, *words in _CHANGING:
        if issubclass(kind, kinds):
            return words[0], words[1], words[2]
    if issubclass(kind, Enum) and not issubclass(kind, (str, int)):
        return f"a {kind.__name__}", f"its value ({type(part.value).__name__})", "value.value"
    return None


def _is(part: Any, kind: type, got: Any) -> bool:
    """Whether it came back as what it was."""
    if got is _MISSING:
        return False
    return type(got) is kind or (not isinstance(got, (str, list)) and unchanged(got, part))


def _of(whole: Any, key: Any) -> Any:
    """The same part of what came back: of an object by its attribute."""
    if isinstance(whole, Mapping):
        found = whole.get(key, _MISSING)
        return whole.get(str.__str__(key), _MISSING) if found is _MISSING and isinstance(key, str) else found
    return getattr(whole, key, _MISSING) if isinstance(key, str) else _MISSING


def _fields(kind: type) -> tuple[str, ...]:
    if foreign.is_pydantic(kind):
        return tuple(kind.model_fields)  # type: ignore[attr-defined] # that is what makes it one
    return tuple(getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "__struct_fields__", ()))
