"""What ``Workflow.list`` takes: the names of its filters, and what each of them may be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.searching import conditions
from temporalex_django.core.attributes import to_utc
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import is_name, quoted

if TYPE_CHECKING:
    from temporalex_django.authoring.facade import Startable

STATUSES = frozenset({"pending", "running", "waiting", *CLOSED_STATUSES})
#: How the words begin in which a run says what it waits for, by their kind.
WORDS: Mapping[str, tuple[str, ...]] = {
    "message": ("phase: ", "signal ", "step ", "decision "),
    "activity": ("activity ", "step "),
    "timer": ("timer", "sleep"),
    "child": ("child ", "workflow "),
}
#: In which order runs are listed; with a minus the last of it come first. Runs that have no such time are left out.
ORDERS = ("started", "-started", "closed", "-closed", "due", "-due")
NEWEST_FIRST = "-started"
#: Kinds of what a run waits for.
WAITS = tuple(WORDS)


def _text(value: Any) -> str:
    if not is_name(value):
        raise ValueError(f"is 1 to 200 printable characters, not {quoted(value)}")
    return str(value)


def _cause(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"is the printable text of a cause, not {quoted(value)}")
    return value


def _statuses(value: Any) -> list[str]:
    """One or several."""
    several = [value] if isinstance(value, str) else [*value] if isinstance(value, Iterable) else []
    wrong = [one for one in several if not isinstance(one, str) or one not in STATUSES]
    if wrong or not several:
        raise ValueError(f"is one of {', '.join(sorted(STATUSES))}, or a list of them, not {quoted(value)}")
    return several


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
        raise ValueError(f"is a whole number, not {quoted(value)}")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is True or False, not {quoted(value)}")  # noqa: TRY004 - the name is right, the value is not
    return value


def _waits(value: Any) -> str:
    if value not in WAITS:
        raise ValueError(f"is one of {', '.join(WAITS)}, not {quoted(value)}")
    return str(value)


def _order(value: Any) -> str:
    if value not in ORDERS:
        raise ValueError(f"is one of {', '.join(ORDERS)}, not {quoted(value)}")
    return str(value)


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"is a datetime with a time zone, not {quoted(value)}")
    try:
        return to_utc(value)
    except ValueError as exc:
        raise ValueError(f"is {exc}, not {quoted(value)}") from None


def _subject(value: Any) -> Any:
    if isinstance(value, type) or getattr(value, "_meta", None) is None or value.pk is None:
        raise ValueError(f"is an object of a model that has been saved, not {quoted(value)}")
    return value


#: Every filter, with what checks its value. ``attributes`` are those of the class, see ``searching``.
FILTERS: Mapping[str, Callable[[Any], Any]] = {
    "id": _text,
    "id_prefix": _text,
    "status": _statuses,
    "version": _whole,
    "queue": _text,
    "blocked": _yes_or_no,
    "paused": _yes_or_no,
    "stuck": _yes_or_no,
    "cause": _cause,
    "waits": _waits,
    "subject": _subject,
    "tag": _text,
    "created_after": _moment,
    "created_before": _moment,
    "closed_after": _moment,
    "closed_before": _moment,
}


def checked(cls: type[Startable], given: Mapping[str, Any]) -> dict[str, Any]:
    """The filters of a call, ``value`` as ``id``; with ``order``, where one is given.

    Raises ``TypeError`` for a filter that there is not, ``ValueError`` for what one cannot be, ``InvalidId``.
    """
    known = sorted({*FILTERS, "attributes", "order", *(["value"] if cls.unique is not None else [])})
    if unknown := sorted(given.keys() - {*known}):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"{cls.__name__}.list: no such filter: {', '.join(unknown)} (known: {', '.join(known)}){hint}")
    found: dict[str, Any] = {}
    checks = {**FILTERS, "order": _order}
    for name, value in given.items():
        if name == "value":
            continue
        try:
            found[name] = conditions(cls, value) if name == "attributes" else checks[name](value)
        except ValueError as exc:
            raise ValueError(f"{cls.__name__}.list: {name} {exc}") from None
        except TypeError as exc:
            raise TypeError(f"{cls.__name__}.list: {exc}") from None
    if "value" in given:
        if "id" in given:
            raise TypeError(f"{cls.__name__}.list: give id or value, not both")
        assert cls.unique is not None
        found["id"] = cls.unique.id_for(given["value"])
    return found
