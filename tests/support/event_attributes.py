"""The attributes of events against the types that the table of kinds declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NotRequired, get_origin, get_type_hints

import msgspec

from temporalex_django.core.history.events import KINDS


def keys_of(declared: Any) -> tuple[set[str], set[str]]:
    """The required and the optional keys of a ``TypedDict``; its own lists of them do not see annotations as text."""
    hints = get_type_hints(declared, include_extras=True)
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
    return hints.keys() - optional, optional


def undeclared(events: Iterable[Any]) -> dict[str, str]:
    """What is wrong with the attributes of events, by kind: keys too many or too few, or values of other types."""
    wrong = {}
    for event in events:
        declared: Any = KINDS[event.kind].attributes
        keys, (required, optional) = event.attributes.keys(), keys_of(declared)
        if unknown := keys - required - optional:
            wrong[event.kind] = f"not declared: {', '.join(sorted(unknown))}"
        elif missing := required - keys:
            wrong[event.kind] = f"declared and absent: {', '.join(sorted(missing))}"
        else:
            try:
                msgspec.convert(event.attributes, declared)
            except msgspec.ValidationError as exc:
                wrong[event.kind] = str(exc)
    return wrong
