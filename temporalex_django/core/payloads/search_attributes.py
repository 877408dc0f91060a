"""Search attributes: typed values by which you find runs. Their types, their validation and their stored form.

The stored form is JSON that names its type, whatever the class declares later. Texts, whole numbers, ``True``,
``False`` and lists of texts are stored as they are. Other values are stored as ``{"decimal": "12.50"}``, ``{"datetime":
…}`` or ``{"date": …}``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from temporalex_django.core.names import FIRST_YEAR, LAST_YEAR, check_time, quoted
from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError

#: Longest text, in characters, so that it fits into an index; largest number of texts in a list.
MAX_TEXT_LENGTH: Final = 200
MAX_TEXTS: Final = 50
#: Digits of a Decimal before and after the point.
MAX_INTEGER_DIGITS, MAX_FRACTION_DIGITS = 20, 12
_INTEGER_BOUND = 2**63


def _encode_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        raise ValueError(f"a string of at most {MAX_TEXT_LENGTH} characters")
    return codec.check_text(value, label="it")


def _encode_integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -_INTEGER_BOUND <= value < _INTEGER_BOUND:
        raise ValueError("a whole number of at most 64 bits")
    return value


def _encode_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")  # noqa: TRY004 - the caller adds the name of the attribute
    return value


def _encode_decimal(value: Any) -> dict[str, str]:
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
    fits = isinstance(number, Decimal) and number.is_finite() and (not number or number.adjusted() < MAX_INTEGER_DIGITS)
    if not fits or int(number.as_tuple().exponent) < -MAX_FRACTION_DIGITS:
        raise ValueError(
            f"a Decimal with at most {MAX_INTEGER_DIGITS} digits before the point and {MAX_FRACTION_DIGITS} after it"
        )
    return {"decimal": format(number, "f")}


def _encode_datetime(value: Any) -> dict[str, str]:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("a datetime with a time zone")
    return {"datetime": to_utc(value).isoformat()}


def to_utc(moment: datetime) -> datetime:
    """Return the same moment in UTC.

    Raises ``ValueError``, with the words that follow "must be", for a moment outside of the years 2 to 9998.
    """
    try:
        return check_time(moment, label="").astimezone(UTC)
    except ValueError:
        raise ValueError(f"a datetime in the years {FIRST_YEAR} to {LAST_YEAR} in UTC") from None


def _encode_date(value: Any) -> dict[str, str]:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError("a date")  # noqa: TRY004 - see above
    return {"date": value.isoformat()}


def _encode_text_list(value: Any) -> list[str]:
    if not isinstance(value, (list, tuple)) or len(value) > MAX_TEXTS:
        raise ValueError(f"a list of at most {MAX_TEXTS} strings")
    # Duplicates would be two rows with one value for one run. A set would give another order in each process.
    return list(dict.fromkeys(_encode_text(word) for word in value))


class AttributeType(NamedTuple):
    """A type that a class may declare for a search attribute.

    ``encode`` returns the stored form of a value. It raises ``ValueError`` with a description of the values that fit.
    ``column`` is the field of ``SearchRow`` in which the value is searched. ``is_ordered`` is True if its values can be
    compared with ``<`` and ``>``.
    """

    name: str
    encode: Callable[[Any], Any]
    column: str
    is_ordered: bool = True


ATTRIBUTE_TYPES: Final[Mapping[Any, AttributeType]] = {
    str: AttributeType("str", _encode_text, "text", is_ordered=False),
    int: AttributeType("int", _encode_integer, "number"),
    bool: AttributeType("bool", _encode_boolean, "number", is_ordered=False),
    Decimal: AttributeType("Decimal", _encode_decimal, "number"),
    datetime: AttributeType("datetime", _encode_datetime, "moment"),
    date: AttributeType("date", _encode_date, "moment"),
    list[str]: AttributeType("list[str]", _encode_text_list, "text", is_ordered=False),
}
#: Names of the types, for messages.
TYPE_NAMES: Final = ", ".join(kind.name for kind in ATTRIBUTE_TYPES.values())


def encode_all(attributes: Any, declared: Mapping[str, Any], *, label: str) -> dict[str, Any]:
    """Return the stored forms of search attributes, by name. ``declared`` maps names to types.

    None, which removes an attribute, stays None. Raises ``PayloadError`` with ``label`` at the start of its message.
    """
    if not isinstance(attributes, Mapping):
        raise PayloadError(f"{label}: search attributes must be a mapping of names to values, not {quoted(attributes)}")
    return {name: encode(name, value, declared, label=label) for name, value in attributes.items()}


def encode(name: Any, value: Any, declared: Mapping[str, Any], *, label: str) -> Any:
    """Return the stored form of the search attribute ``name``. ``declared`` maps names to types.

    Raises ``PayloadError``, with ``label`` at the start of its message, for an undeclared name or a value of another
    type.
    """
    if name not in declared:
        raise PayloadError(f"{label}: {undeclared_text(name, declared)}")
    if value is None:
        return None
    try:
        return ATTRIBUTE_TYPES[declared[name]].encode(value)
    except ValueError as exc:
        raise PayloadError(f"{label}: the search attribute {name} must be {exc}, not {quoted(value)}") from None
    except PayloadError as exc:
        raise PayloadError(f"{label}: the search attribute {name}: {exc.message}") from None


def undeclared_text(name: Any, declared: Mapping[str, Any]) -> str:
    """Return the text of the error for a search attribute that is not declared.

    It lists the names in ``declared``, and suggests one that is spelt alike.
    """
    near = difflib.get_close_matches(name, declared, n=1) if isinstance(name, str) else []
    suggestion = f"; did you mean {near[0]}?" if near else ""
    names = ", ".join(sorted(declared)) or "none"
    return f"no search attribute {quoted(name)} is declared (declared: {names}){suggestion}"


def merge(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes ``before`` with ``changes`` applied; None removes an attribute."""
    return {name: value for name, value in {**before, **changes}.items() if value is not None}


_DECODERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}


def decode(value: Any) -> Any:
    """Return the Python value for the stored form of a search attribute."""
    if not isinstance(value, Mapping):
        return value
    ((kind, text),) = value.items()
    return _DECODERS[kind](text)


def decode_all(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Python values of the search attributes of a run, by name, from their stored forms."""
    return {name: decode(value) for name, value in (attributes or {}).items()}


def to_readable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search attributes of a run for people. Decimals, dates and times become texts.

    ``attributes`` has the stored forms, by name.
    """
    return {n: next(iter(v.values())) if isinstance(v, Mapping) else v for n, v in attributes.items()}


def parse(value: Any, kind: Any) -> Any:
    """Return the value of a search attribute of type ``kind`` from an interface (REST, a command, the admin).

    ``value`` is a text, or a part of JSON. Only its form is checked here; ``encode`` checks the type. Raises
    ``ValueError``.
    """
    # JSON has no decimals. The shortest text of the float is what the sender wrote; its binary value is not.
    if isinstance(value, float) and kind is Decimal:
        return Decimal(str(value))
    if not isinstance(value, str) or kind in (str, list[str]):
        return value
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if kind is Decimal or kind is int:
            return kind(value)
        return _parse_datetime(value) if kind is datetime else date.fromisoformat(value)
    except (ValueError, KeyError, InvalidOperation):
        expected = {bool: "true or false", datetime: "an ISO time with a zone", date: "an ISO date"}.get(
            kind, "a number"
        )
        raise ValueError(f"must be {expected}, not {quoted(value)}") from None


def parse_all(attributes: Any, declared: Mapping[str, Any], *, label: str) -> Any:
    """Parse a mapping of names to values that comes from an interface, as ``parse`` does for one value.

    ``declared`` maps names to types. Returns anything else than a mapping unchanged. Raises ``PayloadError`` with
    ``label`` and the name of the attribute.
    """
    if not isinstance(attributes, Mapping):
        return attributes
    parsed_attributes = {}
    for name, value in attributes.items():
        try:
            parsed_attributes[name] = parse(value, declared.get(name, str))
        except ValueError as exc:
            raise PayloadError(f"{label}: the search attribute {name} {exc}") from None
    return parsed_attributes


def _parse_datetime(text: str) -> datetime:
    """Read a text without a time zone as UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class SearchRow(NamedTuple):
    """A row by which you find a run: one search attribute, or one element of a list of texts.

    One of the columns ``text``, ``number`` and ``moment`` holds the value. ``place`` is the index in the list, or 0.
    """

    name: str
    place: int
    text: str | None = None
    number: str | None = None
    moment: datetime | None = None


def search_rows(attributes: Mapping[str, Any]) -> Iterator[SearchRow]:
    """Yield the search rows of a run from the stored forms of its search attributes."""
    for name, value in attributes.items():
        for place, element in enumerate(value if isinstance(value, list) else [value]):
            yield SearchRow(name, place, **{search_column(element): to_comparable(element)})


def search_column(value: Any) -> str:
    """Return the name of the column of ``SearchRow`` in which a stored value is searched."""
    if isinstance(value, str):
        return "text"
    return "moment" if isinstance(value, Mapping) and "decimal" not in value else "number"


def to_comparable(value: Any) -> Any:
    """Return a stored value as its column holds it: a text, a number as text, or a moment.

    A date is the moment at which it begins in UTC.
    """
    decoded = decode(value)
    if isinstance(decoded, (str, datetime)):
        return decoded
    if isinstance(decoded, date):
        return datetime.combine(decoded, time(), UTC)
    return format(decoded, "f") if isinstance(decoded, Decimal) else str(int(decoded))
