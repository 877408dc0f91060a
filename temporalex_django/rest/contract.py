"""What each address takes and gives, said once: permissions, refusals and the OpenAPI description are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from django.http import QueryDict
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from temporalex_django.access import Operation
from temporalex_django.authoring.authorization import APP
from temporalex_django.core.names import quoted

if TYPE_CHECKING:
    SerializerType = type[serializers.Serializer[Any]]
else:
    SerializerType = type

#: The header by which a request that comes again is known.
IDEMPOTENCY_KEY = "Idempotency-Key"
F = TypeVar("F", bound=Callable[..., Any])
Scope = Literal["read", "start", "message", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One of the query string."""

    name: str
    kind: Literal["string", "integer", "number", "boolean", "date-time"] = "string"
    help: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """One method of one address.

    ``operation`` is what the access policy is asked about, ``permission`` the code name that it takes; none where
    whoever is signed in may ask, and is shown what is his. ``keyed``: it takes an ``Idempotency-Key``; ``matched``: an
    ``If-Match``. ``several``: the answer is a page of what ``answers`` has for 200.
    """

    operation: str
    permission: str
    summary: str
    scope: Scope = "read"
    query: tuple[Parameter, ...] = ()
    body: SerializerType | None = None
    answers: Mapping[int, SerializerType | None] = field(default_factory=dict)
    several: bool = False
    keyed: bool = False
    matched: bool = False

    def permission_request(self, message: str | None) -> Operation:
        permission = f"{APP}.{self.permission}" if self.permission else None
        return Operation(action=self.operation, permission=permission, message=message)


def with_contract(contract: Contract) -> Callable[[F], F]:
    """Gives a method of a view set its contract."""

    def decorate(method: F) -> F:
        method.contract = contract  # type: ignore[attr-defined] # read by views and the description
        return method

    return decorate


def reject_unknown(parameters: QueryDict, names: Iterable[str]) -> None:
    """Raises ``ValidationError`` for what the address does not take, takes once, or is given without a value."""
    allowed = [*dict.fromkeys(names)]
    for name, values in parameters.lists():
        if name not in allowed:
            hint = f"this address takes {', '.join(allowed)}" if allowed else "this address takes none"
            raise ValidationError({"unknown": [f"no parameter {quoted(name)}: {hint}"]})
        if len(values) != 1:
            raise ValidationError({name: ["once"]})
        if not values[0]:
            raise ValidationError({name: ["a value; leave the parameter out for none"]})
