"""Conditions on search attributes: ``{"total__gt": 1000, "customer": "x"}``, checked against what a class declares."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from temporalex_django.core import attributes
from temporalex_django.core.attributes import ATTRIBUTE_TYPES, AttributeType
from temporalex_django.core.names import quoted
from temporalex_django.errors import PayloadError

if TYPE_CHECKING:
    from temporalex_django.authoring.facade import Startable

#: What stands behind the name of an attribute, and what holds then of what a run has; "": it is equal.
OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": eq,
    "gt": gt,
    "gte": ge,
    "lt": lt,
    "lte": le,
    "prefix": lambda text, beginning: text.startswith(beginning),
}
#: Conditions that one search may have: each of them is a join.
MOST_CONDITIONS: Final = 10
_RANGES = ("", "gt", "gte", "lt", "lte")


class SearchCondition(NamedTuple):
    """That a run of this workflow has the attribute, and its value is so. ``several``: it may be so of many values."""

    workflow: str
    name: str
    operator: str
    column: str
    value: Any
    several: bool

    def holds(self, there: Mapping[str, Any]) -> bool:
        """Of the search attributes of a run, as they are kept."""
        of_it = {self.name: there[self.name]} if self.name in there else {}
        values = (getattr(row, self.column) for row in attributes.search_rows(of_it))
        test, wanted = OPERATORS[self.operator], _number(self.value, self.column)
        return any(value is not None and test(_number(value, self.column), wanted) for value in values)


def declared_by(cls: type[Startable]) -> Mapping[str, Any]:
    """The types of a class, or of all versions of a dispatcher, by name."""
    found: Mapping[str, Any] = getattr(cls, "search_attributes", {})
    return found


def accepted(cls: type[Startable]) -> list[str]:
    """Everything that a condition on runs of the class may be about: names, with the operators that fit."""
    return [
        f"{name}__{operator}" if operator else name
        for name, kind in declared_by(cls).items()
        for operator in _operators(ATTRIBUTE_TYPES[kind])
    ]


def conditions(cls: type[Startable], given: Any, *, texts: bool = False) -> list[SearchCondition]:
    """What is asked for. ``texts``: it comes from a face, where numbers and times may be texts.

    Raises ``TypeError`` for what is not declared or takes no such operator, ``ValueError`` for what one cannot be.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"is a mapping of attributes to values, not {quoted(given)}")  # noqa: TRY004 - see ``listing``
    if len(given) > MOST_CONDITIONS:
        raise ValueError(f"has {MOST_CONDITIONS} conditions at most, and these are {len(given)}")
    return [_condition(cls, asked, value, texts=texts) for asked, value in given.items()]


def _condition(cls: type[Startable], asked: Any, value: Any, *, texts: bool) -> SearchCondition:
    known = accepted(cls)
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1) if isinstance(asked, str) else []
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(
            f"{cls.name} is not searched by the attribute {quoted(asked)} (it is by: {', '.join(known) or 'none'}){hint}"
        )
    name, _, operator = asked.partition("__")
    declared = declared_by(cls)[name]
    kind = ATTRIBUTE_TYPES[declared]
    try:
        if texts:
            value = attributes.parse(value, declared)
        one: Any = str if declared == list[str] else declared
        kept = attributes.encode(name, value, {name: one}, label=asked)
    except PayloadError as exc:
        raise ValueError(exc.message) from None
    except ValueError as exc:
        raise ValueError(f"{asked} {exc}") from None
    if kept is None or (operator == "prefix" and kept == ""):
        raise ValueError(f"{asked} is compared with a value, not {quoted(value)}")
    several = declared == list[str] and operator == "prefix"
    return SearchCondition(cls.name, name, operator, kind.column, attributes.to_comparable(kept), several)


def _operators(kind: AttributeType) -> tuple[str, ...]:
    if kind.is_ordered:
        return _RANGES
    return ("", "prefix") if kind.column == "text" else ("",)


def _number(value: Any, column: str) -> Any:
    return Decimal(value) if column == "number" else value
