"""Search attributes: typed values by which runs are found. What may be declared, what fits, and how it is kept.

Kept they are JSON that says what it is, whatever the class declares by then: texts, whole numbers, ``True`` and
``False`` and lists of texts as themselves, everything else as ``{"decimal": "12.50"}``, ``{"datetime": …}``,
``{"date": …}``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from temporalex_django.core import payloads
from temporalex_django.core.names import shown
from temporalex_django.errors import PayloadError

#: Of a text, so that an index takes it; of a list of them.
LONGEST: Final = 200
MOST: Final = 50
#: Digits of a number before the point and behind it.
WHOLE, FRACTION = 20, 12
_LARGEST = 2**63


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ValueError(f"a text of at most {LONGEST} characters")
    return payloads.text(value, what="it")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST <= value < _LARGEST:
        raise ValueError("a whole number of at most 64 bits")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")  # noqa: TRY004 - whoever catches it says which attribute it is
    return value


def _decimal(value: Any) -> dict[str, str]:
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    fits = isinstance(number, Decimal) and number.is_finite() and (not number or number.adjusted() < WHOLE)
    if not fits or int(number.as_tuple().exponent) < -FRACTION:
        raise ValueError(f"a Decimal of at most {WHOLE} digits before the point and {FRACTION} behind it")
    return {"decimal": format(number, "f")}


def _moment(value: Any) -> dict[str, str]:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("a datetime with a time zone")
    return {"datetime": in_utc(value).isoformat()}


def in_utc(moment: datetime) -> datetime:
    """The same moment. Raises ``ValueError`` for one of the first or the last day of all, which UTC has not."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("a datetime of the years 1 to 9999 in UTC") from None


def _day(value: Any) -> dict[str, str]:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("a date")  # noqa: TRY004 - as above
    return {"date": value.isoformat()}


def _words(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or len(value) > MOST:
        raise ValueError(f"a list of at most {MOST} texts")
    return list(dict.fromkeys(_text(word) for word in value))


class Kind(NamedTuple):
    """A type that may be declared. ``kept`` makes of a value what is kept, or raises ``ValueError`` with what it is.

    ``column``: in which it is searched; ``ranges``: whether values of it are more and less.
    """

    name: str
    kept: Callable[[Any], Any]
    column: str
    ranges: bool = True


KINDS: Final[Mapping[Any, Kind]] = {
    str: Kind("str", _text, "text", ranges=False),
    int: Kind("int", _whole, "number"),
    bool: Kind("bool", _truth, "number", ranges=False),
    Decimal: Kind("Decimal", _decimal, "number"),
    datetime: Kind("datetime", _moment, "moment"),
    date: Kind("date", _day, "moment"),
    list[str]: Kind("list[str]", _words, "text", ranges=False),
}
#: Types as they are written.
WRITTEN: Final = ", ".join(kind.name for kind in KINDS.values())


def fitting(given: Any, declared: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """Values as they are kept; None, which takes one away, stays None. Raises ``PayloadError``, ``what`` in front."""
    if not isinstance(given, Mapping):
        raise PayloadError(f"{what}: search attributes are a mapping of names to values, not {shown(given)}")
    return {name: kept(name, value, declared, what=what) for name, value in given.items()}


def kept(name: Any, value: Any, declared: Mapping[str, Any], *, what: str) -> Any:
    """One value. Raises ``PayloadError``."""
    if name not in declared:
        raise PayloadError(f"{what}: {undeclared(name, declared)}")
    if value is None:
        return None
    try:
        return KINDS[declared[name]].kept(value)
    except ValueError as exc:
        raise PayloadError(f"{what}: the search attribute {name} is {exc}, not {shown(value)}") from None
    except PayloadError as exc:
        raise PayloadError(f"{what}: the search attribute {name}: {exc.message}") from None


def undeclared(name: Any, declared: Mapping[str, Any]) -> str:
    """That there is no such attribute, and which there are."""
    near = difflib.get_close_matches(name, declared, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no search attribute {shown(name)} is declared (there are: {', '.join(sorted(declared)) or 'none'}){hint}"


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is there after the changes."""
    return {name: value for name, value in {**before, **changes}.items() if value is not None}


_TYPED: Final[Mapping[str, Callable[[str], Any]]] = {
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}


def typed(value: Any) -> Any:
    """What is kept as the Python value that it was."""
    if not isinstance(value, Mapping):
        return value
    ((kind, text),) = value.items()
    return _TYPED[kind](text)


def all_typed(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """All of a run."""
    return {name: typed(value) for name, value in (attributes or {}).items()}


def readable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """All of a run as people read them: numbers with a fraction and times are texts."""
    return {n: next(iter(v.values())) if isinstance(v, Mapping) else v for n, v in attributes.items()}


def parsed(value: Any, kind: Any) -> Any:
    """What is meant by a value that comes from a face: a text, or a part of JSON. Raises ``ValueError``."""
    if isinstance(value, float) and kind is Decimal:
        return Decimal(str(value))
    if not isinstance(value, str) or kind in (str, list[str]):
        return value
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if kind is Decimal or kind is int:
            return kind(value)
        return _as_moment(value) if kind is datetime else date.fromisoformat(value)
    except (ValueError, KeyError, InvalidOperation):
        wanted = {bool: "true or false", datetime: "an ISO time with a zone", date: "an ISO date"}.get(kind, "a number")
        raise ValueError(f"is {wanted}, not {shown(value)}") from None


def said(given: Any, declared: Mapping[str, Any], *, what: str) -> Any:
    """What is given to a face as a mapping of names, as values. Raises ``PayloadError``."""
    if not isinstance(given, Mapping):
        return given
    found = {}
    for name, value in given.items():
        try:
            found[name] = parsed(value, declared.get(name, str))
        except ValueError as exc:
            raise PayloadError(f"{what}: the search attribute {name} {exc}") from None
    return found


def _as_moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


class Searched(NamedTuple):
    """A row by which a run is found: in one of the columns stands the value, of lists ``place`` tells them apart."""

    name: str
    place: int
    text: str | None = None
    number: str | None = None
    moment: datetime | None = None


def searched(attributes: Mapping[str, Any]) -> Iterator[Searched]:
    """The rows of a run."""
    for name, value in attributes.items():
        for place, one in enumerate(value if isinstance(value, list) else [value]):
            yield Searched(name, place, **{column_of(one): comparable(one)})


def column_of(value: Any) -> str:
    """Where what is kept is searched."""
    if isinstance(value, str):
        return "text"
    return "moment" if isinstance(value, Mapping) and "decimal" not in value else "number"


def comparable(value: Any) -> Any:
    """What is kept as it stands in that column: a text, a number in words, a moment (a day begins at midnight UTC)."""
    found = typed(value)
    if isinstance(found, (str, datetime)):
        return found
    if isinstance(found, date):
        return datetime.combine(found, time(), UTC)
    return format(found, "f") if isinstance(found, Decimal) else str(int(found))
