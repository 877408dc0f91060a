"""Contracts: each declares, in one place, what a method of a REST route accepts and what it answers.

Permissions, checks of parameters and the OpenAPI description are derived from them.
"""

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

#: Header by which a request that is sent again is recognized.
IDEMPOTENCY_KEY = "Idempotency-Key"
F = TypeVar("F", bound=Callable[..., Any])
Scope = Literal["read", "start", "message", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """The declaration of a query parameter that a REST method accepts: its name, type and help text."""

    name: str
    kind: Literal["string", "integer", "number", "boolean", "date-time"] = "string"
    help: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The contract of one method of one route.

    - ``operation``: the name of the operation about which the access policy is asked.
    - ``permission``: the code name of the permission that it needs. If empty, every user who is logged in may call it,
      and gets only what belongs to them.
    - ``summary``: one line about it, for the OpenAPI description.
    - ``scope``: the throttle scope that counts it.
    - ``query`` and ``body``: the parameters, and the serializer of the body or None.
    - ``answers``: the serializer of the response for each status; None means no body.
    - ``several``: True if the response with status 200 is a page of such objects.
    - ``keyed``: True if it accepts the header ``Idempotency-Key``.
    - ``matched``: True if it accepts the header ``If-Match``.
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
    """Return a decorator that sets ``contract`` on a method of a view set.

    The contract declares the permission, parameters, body and responses of the method.
    """

    def decorate(method: F) -> F:
        method.contract = contract  # type: ignore[attr-defined] # read by views and by OpenAPI
        return method

    return decorate


def reject_unknown(parameters: QueryDict, names: Iterable[str]) -> None:
    """Raise ``ValidationError`` for a query parameter that is not in ``names``, is given twice, or has no value."""
    # A misspelt filter that is ignored would list, or change, more runs than the client meant.
    allowed = [*dict.fromkeys(names)]
    for name, values in parameters.lists():
        if name not in allowed:
            hint = f"This address accepts {', '.join(allowed)}." if allowed else "This address has no parameters."
            raise ValidationError({"unknown": [f"There is no parameter {quoted(name)}. {hint}"]})
        if len(values) != 1:
            raise ValidationError({name: ["Give this parameter only once."]})
        if not values[0]:
            raise ValidationError({name: ["Enter a value, or leave the parameter out."]})
