"""Conditions on search attributes, such as ``{"total__gt": 1000, "customer": "x"}``, checked by the class."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import search_attributes
from temporalex_django.core.payloads.search_attributes import ATTRIBUTE_TYPES, AttributeType
from temporalex_django.errors import PayloadError

if TYPE_CHECKING:
    from temporalex_django.authoring.start_api import Startable

#: Suffixes of attribute names, and the test of the run's value against the given one; "" tests for equality.
OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": eq,
    "gt": gt,
    "gte": ge,
    "lt": lt,
    "lte": le,
    "prefix": lambda text, beginning: text.startswith(beginning),
}
#: Most conditions of one search: each of them is a join.
MOST_CONDITIONS: Final = 10
_RANGES = ("", "gt", "gte", "lt", "lte")


class SearchCondition(NamedTuple):
    """A condition that a run of ``workflow`` has the attribute ``name`` with a value that fits.

    ``several`` is True if many values of one run can fit.
    """

    workflow: str
    name: str
    operator: str
    column: str
    value: Any
    several: bool

    def matches(self, run_attributes: Mapping[str, Any]) -> bool:
        """True if the search attributes of a run, as they are stored, fit the condition."""
        own_attributes = {self.name: run_attributes[self.name]} if self.name in run_attributes else {}
        values = (getattr(row, self.column) for row in search_attributes.search_rows(own_attributes))
        test, expected = OPERATORS[self.operator], _as_number(self.value, self.column)
        return any(value is not None and test(_as_number(value, self.column), expected) for value in values)


def search_attribute_types(cls: type[Startable]) -> Mapping[str, Any]:
    """Return the attribute types by name: those of a class, or of all versions of a dispatcher."""
    types: Mapping[str, Any] = getattr(cls, "search_attributes", {})
    return types


def condition_keys(cls: type[Startable]) -> list[str]:
    """Return all valid keys of conditions on runs of the class: names, with the operators that fit."""
    return [
        f"{name}__{operator}" if operator else name
        for name, kind in search_attribute_types(cls).items()
        for operator in _operators_of(ATTRIBUTE_TYPES[kind])
    ]


def parse_conditions(cls: type[Startable], mapping: Any, *, texts: bool = False) -> list[SearchCondition]:
    """Return the conditions in ``mapping``, checked and encoded.

    ``texts`` is True if they come from an interface that has numbers and times as texts. Raises ``TypeError`` for an
    undeclared attribute or an operator that its type does not have, and ``ValueError`` for a value that it cannot have.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(  # noqa: TRY004 - see ``listing``
            f"must be a mapping of attributes to values, not {quoted(mapping)}"
        )
    if len(mapping) > MOST_CONDITIONS:
        raise ValueError(f"can have at most {MOST_CONDITIONS} conditions, not {len(mapping)}")
    return [_parse_condition(cls, key, value, texts=texts) for key, value in mapping.items()]


def _parse_condition(cls: type[Startable], key: Any, value: Any, *, texts: bool) -> SearchCondition:
    valid_keys = condition_keys(cls)
    if key not in valid_keys:
        matches = difflib.get_close_matches(key, valid_keys, n=1) if isinstance(key, str) else []
        advice = f"; did you mean {matches[0]}?" if matches else ""
        raise TypeError(
            f"{cls.name} cannot be searched by {quoted(key)} "
            f"(it can be searched by: {', '.join(valid_keys) or 'none'}){advice}"
        )
    name, _, operator = key.partition("__")
    attribute_type = search_attribute_types(cls)[name]
    kind = ATTRIBUTE_TYPES[attribute_type]
    try:
        if texts:
            value = search_attributes.parse(value, attribute_type)
        scalar_type: Any = str if attribute_type == list[str] else attribute_type
        stored_value = search_attributes.encode(name, value, {name: scalar_type}, label=key)
    except PayloadError as exc:
        raise ValueError(exc.message) from None
    except ValueError as exc:
        raise ValueError(f"{key} {exc}") from None
    if stored_value is None or (operator == "prefix" and stored_value == ""):
        raise ValueError(f"{key} must be compared with a value, not {quoted(value)}")
    # Only a prefix can fit two texts of one run, so only then must the query remove duplicates.
    several = attribute_type == list[str] and operator == "prefix"
    return SearchCondition(
        cls.name, name, operator, kind.column, search_attributes.to_comparable(stored_value), several
    )


def _operators_of(kind: AttributeType) -> tuple[str, ...]:
    if kind.is_ordered:
        return _RANGES
    return ("", "prefix") if kind.column == "text" else ("",)


def _as_number(value: Any, column: str) -> Any:
    return Decimal(value) if column == "number" else value
