"""The table of the filters of runs, and the checks of their values.

Every interface takes its filters from ``RUN_FILTERS``: ``Workflow.list``, REST, commands, the admin, and environments
in memory. ``operations.read.run_filters`` has the query of each row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum, auto
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import is_name, quoted
from temporalex_django.core.payloads import search_attributes
from temporalex_django.core.payloads.search_attributes import ATTRIBUTE_TYPES, AttributeType, to_utc
from temporalex_django.errors import PayloadError

if TYPE_CHECKING:
    from temporalex_django.authoring.start_api import Startable

STATUSES = frozenset({"pending", "running", "waiting", *CLOSED_STATUSES})
#: How the texts begin that describe a wait of a run, by the kind of the wait.
WAIT_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "message": ("phase: ", "signal ", "step ", "decision "),
    "activity": ("activity ", "step "),
    "timer": ("timer", "sleep"),
    "child": ("child ", "workflow "),
}
#: Valid values of the filter ``waits``.
WAIT_KINDS = tuple(WAIT_PREFIXES)
#: Suffixes of attribute names, and the test of the run's value against the given one; "" tests for equality.
OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": eq,
    "gt": gt,
    "gte": ge,
    "lt": lt,
    "lte": le,
    "prefix": lambda text, beginning: text.startswith(beginning),
}
#: Most conditions of one search. Each attribute among them is a join.
MOST_CONDITIONS: Final = 10
_RANGES = ("", "gt", "gte", "lt", "lte")


def is_wait_of(kind: str, waiting_for: Iterable[str]) -> bool:
    """Return True if one of the texts in ``waiting_for`` of a run describes a wait of this kind (``WAIT_KINDS``)."""
    return any(text.startswith(WAIT_PREFIXES[kind]) for text in waiting_for)


def _check_text(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"must be 1 to 200 printable characters, not {quoted(value)}")
    return str(value)


def _check_cause(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be the printable text of a cause, not {quoted(value)}")
    return value


def _check_statuses(value: Any) -> list[str]:
    """Return one status or several as a list. Raises ``ValueError``."""
    statuses = [value] if isinstance(value, str) else [*value] if isinstance(value, Iterable) else []
    unknown_statuses = [status for status in statuses if not isinstance(status, str) or status not in STATUSES]
    if unknown_statuses or not statuses:
        raise ValueError(f"must be one of {', '.join(sorted(STATUSES))}, or a list of them, not {quoted(value)}")
    return statuses


def _check_integer(value: Any) -> int:
    # The range of an integer column: a larger number would be an error of the database.
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise ValueError(f"must be a whole number, not {quoted(value)}")
    return value


def _check_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be True or False, not {quoted(value)}")  # noqa: TRY004 - only the value is wrong
    return value


def _check_wait_kind(value: Any) -> str:
    if value not in WAIT_KINDS:
        raise ValueError(f"must be one of {', '.join(WAIT_KINDS)}, not {quoted(value)}")
    return str(value)


def _check_datetime(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"must be a datetime with a time zone, not {quoted(value)}")
    try:
        return to_utc(value)
    except ValueError as exc:
        raise ValueError(f"must be {exc}, not {quoted(value)}") from None


def _check_subject(value: Any) -> Any:
    if isinstance(value, type) or getattr(value, "_meta", None) is None or value.pk is None:
        raise ValueError(f"must be a saved object of a model, not {quoted(value)}")
    return value


class FilterType(Enum):
    """The type of the value of a filter. Each interface has one check or one kind of form field for a type."""

    NAME = auto()
    TEXT = auto()
    CAUSE = auto()
    STATUSES = auto()
    INTEGER = auto()
    BOOLEAN = auto()
    WAIT_KIND = auto()
    SUBJECT = auto()
    DATETIME = auto()
    #: Conditions on search attributes. Their check depends on the class of the runs; see ``parse_conditions``.
    ATTRIBUTES = auto()


#: The check of a value that code passes to ``Workflow.list``, by type.
CHECKS: Mapping[FilterType, Callable[[Any], Any]] = {
    FilterType.NAME: _check_text,
    FilterType.TEXT: _check_text,
    FilterType.CAUSE: _check_cause,
    FilterType.STATUSES: _check_statuses,
    FilterType.INTEGER: _check_integer,
    FilterType.BOOLEAN: _check_boolean,
    FilterType.WAIT_KIND: _check_wait_kind,
    FilterType.SUBJECT: _check_subject,
    FilterType.DATETIME: _check_datetime,
}


R = TypeVar("R", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRow:
    """One filter of runs, with its name, the type of its value, and its use in each interface.

    ``matches(run, value)`` says whether a run fits a checked value, where no database does it. The run is an object
    with the columns of runs, and with methods that compute what no column has. ``help`` describes the filter.
    ``example`` is a value for the sentence that follows an error of a command. ``title`` is the name of the
    filter for people. ``in_code`` is False if ``Workflow.list`` does
    not take it, and ``in_interfaces`` if REST and commands do not.
    """

    name: str
    type: FilterType
    help: str
    matches: Callable[[Any, Any], bool]
    title: str = ""
    example: str = "VALUE"
    in_code: bool = True
    in_interfaces: bool = True


_TIME_EXAMPLE = "2026-11-03T14:00:00Z"

#: All filters of runs by name, in the order in which interfaces show them.
RUN_FILTERS: Final[Mapping[str, FilterRow]] = {
    row.name: row
    for row in (
        FilterRow(
            name="id",
            type=FilterType.NAME,
            help="The business id.",
            matches=lambda run, value: run.workflow_id == value,
            # Interfaces find a run by its id at an address of its own.
            in_interfaces=False,
        ),
        FilterRow(
            name="status",
            type=FilterType.STATUSES,
            help="One status, or several separated by commas.",
            matches=lambda run, values: run.status in values,
            title="status",
        ),
        FilterRow(
            name="workflow",
            type=FilterType.NAME,
            help="Name of the workflow class.",
            matches=lambda run, value: run.workflow == value,
            title="workflow",
            # Code lists the runs of a class.
            in_code=False,
        ),
        FilterRow(
            name="version",
            type=FilterType.INTEGER,
            help="Version of the workflow class.",
            matches=lambda run, value: run.version == value,
            title="version",
            example="2",
        ),
        FilterRow(
            name="queue",
            type=FilterType.NAME,
            help="Name of the queue of the run.",
            matches=lambda run, value: run.queue == value,
            title="queue",
        ),
        FilterRow(
            name="id_prefix",
            type=FilterType.TEXT,
            help="The beginning of the business id.",
            matches=lambda run, value: run.workflow_id.startswith(value),
        ),
        FilterRow(
            name="blocked",
            type=FilterType.BOOLEAN,
            help="true or false: whether the run is blocked (it cannot continue until somebody fixes a problem).",
            matches=lambda run, value: (run.blocked is not None) == value,
            title="Blocked",
            example="true, or false",
        ),
        FilterRow(
            name="paused",
            type=FilterType.BOOLEAN,
            help="true or false: whether the run is paused.",
            matches=lambda run, value: (run.paused is not None) == value,
            title="Paused",
        ),
        FilterRow(
            name="stuck",
            type=FilterType.BOOLEAN,
            help="true or false: whether the run is blocked, keeps failing, has a failed message, is due but no "
            "worker has claimed it, or has an activity whose queue no live worker polls.",
            matches=lambda run, value: run.is_stuck() == value,
            title="Stuck",
        ),
        FilterRow(
            name="cause",
            type=FilterType.CAUSE,
            help="A cause, as shown by `doctor`: why the run failed or is blocked, or why one of its activities fails.",
            matches=lambda run, value: value in run.causes(),
            title="cause",
        ),
        FilterRow(
            name="waits",
            type=FilterType.WAIT_KIND,
            help="What an open run waits for: message, activity, timer or child.",
            matches=lambda run, value: run.is_waiting_for(value),
            title="waiting for",
        ),
        FilterRow(
            name="tag",
            type=FilterType.TEXT,
            help="A tag of the run, from its class or given when it was started.",
            matches=lambda run, value: value in (run.tags or ()),
            title="tag",
        ),
        FilterRow(
            name="attributes",
            type=FilterType.ATTRIBUTES,
            help="Search attributes of the class given by the filter `workflow`, as JSON: "
            '{"total__gt": 1000, "customer": "x"}.',
            matches=lambda run, conditions: all(
                condition.matches(run.search_attributes or {}) for condition in conditions
            ),
            title="search attributes",
            example="""'{"total__gt": 1000, "customer": "x"}'""",
        ),
        FilterRow(
            name="subject",
            type=FilterType.SUBJECT,
            help="The object that the run was started for: app.model:key.",
            matches=lambda run, subject: run.has_subject(subject),
            example="app.model:key",
        ),
        FilterRow(
            name="created_after",
            type=FilterType.DATETIME,
            help="Only runs created at or after this time (ISO 8601).",
            matches=lambda run, moment: run.created_at >= moment,
            example=_TIME_EXAMPLE,
        ),
        FilterRow(
            name="created_before",
            type=FilterType.DATETIME,
            help="Only runs created before this time (ISO 8601).",
            matches=lambda run, moment: run.created_at < moment,
            example=_TIME_EXAMPLE,
        ),
        FilterRow(
            name="closed_after",
            type=FilterType.DATETIME,
            help="Only runs closed at or after this time (ISO 8601).",
            matches=lambda run, moment: run.closed_at is not None and run.closed_at >= moment,
            example=_TIME_EXAMPLE,
        ),
        FilterRow(
            name="closed_before",
            type=FilterType.DATETIME,
            help="Only runs closed before this time (ISO 8601).",
            matches=lambda run, moment: run.closed_at is not None and run.closed_at < moment,
            example=_TIME_EXAMPLE,
        ),
    )
}
#: Rows that are arguments of ``Workflow.list``.
CODE_FILTERS: Final = {name: row for name, row in RUN_FILTERS.items() if row.in_code}
#: Rows that are parameters of REST and options of commands.
INTERFACE_FILTERS: Final = {name: row for name, row in RUN_FILTERS.items() if row.in_interfaces}

#: Place of a run in an ascending order, by the name of the order. A run without a place is not in the list.
ORDER_PLACES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "started": lambda run: run.position,
    "closed": lambda run: run.closed_at,
    "due": lambda run: run.due_at,
}
#: Orders of a list; a minus reverses one.
ORDERS = tuple(f"{sign}{name}" for name in ORDER_PLACES for sign in ("", "-"))
NEWEST_FIRST = "-started"


def _check_order(value: Any) -> str:
    if value not in ORDERS:
        raise ValueError(f"must be one of {', '.join(ORDERS)}, not {quoted(value)}")
    return str(value)


def check_filters(cls: type[Startable], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Check the filters of a call of ``cls.list`` and return them by name, with ``value`` turned into ``id``.

    ``order`` is included if the caller gave one. Raises ``TypeError`` for an unknown filter, ``ValueError`` for a value
    that a filter cannot have, and ``InvalidId``.
    """
    filter_names = sorted({*CODE_FILTERS, "order", *(["value"] if cls.unique is not None else [])})
    if unknown := sorted(filters.keys() - {*filter_names}):
        matches = difflib.get_close_matches(unknown[0], filter_names, n=1)
        advice = f"; did you mean {matches[0]}?" if matches else ""
        raise TypeError(
            f"{cls.__name__}.list: no such filter: {', '.join(unknown)} (known: {', '.join(filter_names)}){advice}"
        )
    checked_filters: dict[str, Any] = {}
    for name, value in filters.items():
        if name == "value":
            continue
        try:
            checked_filters[name] = _check_filter(cls, name, value)
        except ValueError as exc:
            raise ValueError(f"{cls.__name__}.list: {name} {exc}") from None
        except TypeError as exc:
            raise TypeError(f"{cls.__name__}.list: {exc}") from None
    if "value" in filters:
        if "id" in filters:
            raise TypeError(f"{cls.__name__}.list: give id or value, not both")
        assert cls.unique is not None
        checked_filters["id"] = cls.unique.id_for(filters["value"])
    return checked_filters


def _check_filter(cls: type[Startable], name: str, value: Any) -> Any:
    """Raise ``ValueError`` for a value that the filter cannot have."""
    if name == "order":
        return _check_order(value)
    kind = CODE_FILTERS[name].type
    return parse_conditions(cls, value) if kind is FilterType.ATTRIBUTES else CHECKS[kind](value)


def select_runs(runs: Iterable[R], filters: Mapping[str, Any]) -> list[R]:
    """Return the runs for which all filters hold, sorted by the filter ``order`` (newest first by default).

    ``filters`` maps names of ``RUN_FILTERS`` to checked values, as ``check_filters`` returns them. A run that has no
    value for the order, such as an open run for ``closed``, is left out.
    """
    order = filters.get("order", NEWEST_FIRST)
    place_of = ORDER_PLACES[order.lstrip("-")]
    criteria = [(RUN_FILTERS[name].matches, value) for name, value in filters.items() if name != "order"]
    selected_runs = [
        run for run in runs if place_of(run) is not None and all(matches(run, value) for matches, value in criteria)
    ]
    # The position decides between equal times, which are common with a virtual clock.
    return sorted(selected_runs, key=lambda run: (place_of(run), run.position), reverse=order.startswith("-"))


class SearchCondition(NamedTuple):
    """A condition on a search attribute: a run of ``workflow`` has the attribute ``name`` with a value that fits.

    ``operator`` is one of ``OPERATORS``, and the run's value is compared with ``value``. ``column`` is the field of
    ``SearchRow`` that holds the run's values. ``several`` is True if more than one value of a run can fit, so that a
    query has to remove duplicates.
    """

    workflow: str
    name: str
    operator: str
    column: str
    value: Any
    several: bool

    def matches(self, run_attributes: Mapping[str, Any]) -> bool:
        """Return True if the search attributes of a run, as they are stored, fit the condition."""
        own_attributes = {self.name: run_attributes[self.name]} if self.name in run_attributes else {}
        values = (getattr(row, self.column) for row in search_attributes.search_rows(own_attributes))
        test, expected = OPERATORS[self.operator], _as_number(self.value, self.column)
        return any(value is not None and test(_as_number(value, self.column), expected) for value in values)


def search_attribute_types(cls: type[Startable]) -> Mapping[str, Any]:
    """Return the types of the search attributes of a class by name. A dispatcher has those of all its versions."""
    types: Mapping[str, Any] = getattr(cls, "search_attributes", {})
    return types


def condition_keys(cls: type[Startable]) -> list[str]:
    """Return all valid keys of conditions on runs of the class, such as ``total`` and ``total__gt``."""
    return [
        f"{name}__{operator}" if operator else name
        for name, kind in search_attribute_types(cls).items()
        for operator in _operators_of(ATTRIBUTE_TYPES[kind])
    ]


def parse_conditions(cls: type[Startable], mapping: Any, *, texts: bool = False) -> list[SearchCondition]:
    """Return the conditions on search attributes in ``mapping``, such as ``{"total__gt": 1000}``, checked and encoded.

    ``cls`` is the workflow class, which declares the attributes. ``texts`` is True if numbers and times are texts, as
    in requests and commands. Raises ``TypeError`` for an undeclared attribute or an operator that its type does not
    have, and ``ValueError`` for a value that it cannot have.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(  # noqa: TRY004 - see ``_check_boolean``
            f"must be a mapping of attributes to values, not {quoted(mapping)}"
        )
    if len(mapping) > MOST_CONDITIONS:
        raise ValueError(f"can have at most {MOST_CONDITIONS} conditions, not {len(mapping)}")
    return [_parse_condition(cls, key, value, texts=texts) for key, value in mapping.items()]


def _parse_condition(cls: type[Startable], key: Any, value: Any, *, texts: bool) -> SearchCondition:
    """Parse a key such as ``total__gt``; with ``texts``, numbers and times are texts.

    Raises ``TypeError`` for an unknown key, and ``ValueError`` for a value that the attribute cannot have.
    """
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
    """Return keys of ``OPERATORS``."""
    if kind.is_ordered:
        return _RANGES
    return ("", "prefix") if kind.column == "text" else ("",)


def _as_number(value: Any, column: str) -> Any:
    return Decimal(value) if column == "number" else value
