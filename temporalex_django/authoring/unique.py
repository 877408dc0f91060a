"""``Unique``: the business key of a workflow class, which makes ids of runs from values such as order numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from temporalex_django.authoring.foreign_options import UNIQUE, answers_foreign_arguments
from temporalex_django.core.names import quoted, type_advice
from temporalex_django.errors import InvalidId, WorkflowDefinitionError

Scope = Literal["workflow", "version", "global", "none"]
SEPARATOR = "::"
# Neither pattern allows ":", so an id can always be split into its parts again.
_KEY = re.compile(r"[a-z0-9]+")
_VALUE = re.compile(r"[a-z0-9]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SUFFIX = re.compile(r"[0-9a-f]{8}")
_LONGEST = 200


@answers_foreign_arguments("Unique", UNIQUE)
@dataclass(frozen=True, slots=True)
class Unique:
    """The business key of a class: its runs have the id ``key::value``.

    A value consists of lower-case letters and digits, such as "42" or "acme42", or is a UUID. Nothing else is allowed,
    no hyphens and no capitals, so that two spellings of a value cannot be two runs. The page "Choose ids" shows what to
    do with other values, such as those with the prefix of a tenant.

    ``scope`` is the set of runs of which at most one with the same id may be open: "workflow" (all runs of the class),
    "version" (those of one version) or "global" (all runs). With "none" any number may be open.
    """

    key: str
    scope: Scope = "workflow"

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key):
            raise WorkflowDefinitionError(f"Unique: the key {self.key!r} must be lower-case letters and digits")
        if self.scope not in get_args(Scope):
            raise WorkflowDefinitionError(
                f"Unique: the scope {self.scope!r} must be one of {', '.join(get_args(Scope))}"
            )

    def id_for(self, value: object) -> str:
        """Return the id ``key::value``.

        Raises ``InvalidId`` unless the value consists of lower-case letters and digits, or is a UUID.
        """
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidId(
                f"the value {quoted(value)} for {self.key!r} must be lower-case letters and digits, or a UUID"
                f"{type_advice(value) or _advice(value)}"
            )
        return f"{self.key}{SEPARATOR}{value}"

    def run_id_for(self, value: object, suffix: Callable[[], str]) -> str:
        """Return the business id of a new run with that value. Raises ``InvalidId``.

        With scope ``none`` several runs share a value, so ``suffix()`` (8 hex digits) is added to distinguish them.
        """
        business_id = self.id_for(value)
        return check_id(f"{business_id}{SEPARATOR}{suffix()}" if self.scope == "none" else business_id)

    def check(self, id: str) -> str:
        """Return ``id`` if it has the form of an id that this class makes from a value.

        A start by id is checked in this way, so that it cannot avoid the rules for values. Raises ``InvalidId``.
        """
        parts = id.split(SEPARATOR) if isinstance(id, str) else []
        suffixed = len(parts) == 3 and self.scope == "none" and _SUFFIX.fullmatch(parts[2])
        if not suffixed and (len(parts) != 2 or self.scope == "none"):
            raise InvalidId(f"{id!r} is not an id of the form {self.key}{SEPARATOR}value: start it with a value")
        self.value_of(id)
        return check_id(id)

    def value_of(self, id: str) -> str:
        """Return the value in an id ``key::value`` or ``key::value::suffix``. Raises ``InvalidId`` for any other id."""
        parts = id.split(SEPARATOR) if isinstance(id, str) else []
        if len(parts) not in (2, 3) or parts[0] != self.key or not _VALUE.fullmatch(parts[1]):
            raise InvalidId(f"{id!r} is not an id of the form {self.key}{SEPARATOR}value")
        return parts[1]


def _advice(value: object) -> str:
    """Return what to pass instead of a text that is no value."""
    plain = "".join(c for c in str(value).lower() if c.isascii() and c.isalnum())
    example = f"{plain!r} if no other value reads like it, or " if plain else ""
    return (
        f": write {example}str(uuid5(NAMESPACE_URL, value)); a class without `unique` takes any id. "
        'See the page "Choose ids"'
    )


def check_id(value: object) -> str:
    """Return ``value`` if it can be a business id: 1 to 200 printable characters without ``/``.

    Raises ``InvalidId``.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST or not value.isprintable() or "/" in value:
        raise InvalidId(
            f"{quoted(value)} is not a valid id: "
            f"use 1 to {_LONGEST} printable characters without '/'{type_advice(value)}"
        )
    return value
