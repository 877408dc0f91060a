"""The filters of ``Workflow.list``: their names, and the check of the value of each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.searching import parse_conditions
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import is_name, quoted
from temporalex_django.core.payloads.search_attributes import to_utc

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
#: Orders of a list; a minus reverses one. Runs that do not have the time are left out.
ORDERS = ("started", "-started", "closed", "-closed", "due", "-due")
NEWEST_FIRST = "-started"
#: Valid values of the filter ``waits``.
WAIT_KINDS = tuple(WAIT_PREFIXES)


def _check_text(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"must be 1 to 200 printable characters, not {quoted(value)}")
    return str(value)


def _check_cause(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"must be the printable text of a cause, not {quoted(value)}")
    return value


def _check_statuses(value: Any) -> list[str]:
    """Return one or several statuses as a list."""
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


def _check_order(value: Any) -> str:
    if value not in ORDERS:
        raise ValueError(f"must be one of {', '.join(ORDERS)}, not {quoted(value)}")
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


#: The check of each filter's value. ``attributes`` depends on the class and is checked by ``searching``.
FILTERS: Mapping[str, Callable[[Any], Any]] = {
    "id": _check_text,
    "id_prefix": _check_text,
    "status": _check_statuses,
    "version": _check_integer,
    "queue": _check_text,
    "blocked": _check_boolean,
    "paused": _check_boolean,
    "stuck": _check_boolean,
    "cause": _check_cause,
    "waits": _check_wait_kind,
    "subject": _check_subject,
    "tag": _check_text,
    "created_after": _check_datetime,
    "created_before": _check_datetime,
    "closed_after": _check_datetime,
    "closed_before": _check_datetime,
}


def check_filters(cls: type[Startable], filters: Mapping[str, Any]) -> dict[str, Any]:
    """Check the filters of a call and return them by name, with ``value`` turned into ``id``.

    ``order`` is included if the caller gave one. Raises ``TypeError`` for an unknown filter, ``ValueError`` for a value
    that a filter cannot have, and ``InvalidId``.
    """
    filter_names = sorted({*FILTERS, "attributes", "order", *(["value"] if cls.unique is not None else [])})
    if unknown := sorted(filters.keys() - {*filter_names}):
        matches = difflib.get_close_matches(unknown[0], filter_names, n=1)
        advice = f"; did you mean {matches[0]}?" if matches else ""
        raise TypeError(
            f"{cls.__name__}.list: no such filter: {', '.join(unknown)} (known: {', '.join(filter_names)}){advice}"
        )
    checked_filters: dict[str, Any] = {}
    checks = {**FILTERS, "order": _check_order}
    for name, value in filters.items():
        if name == "value":
            continue
        try:
            checked_filters[name] = parse_conditions(cls, value) if name == "attributes" else checks[name](value)
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
