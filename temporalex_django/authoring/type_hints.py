"""What type checkers are told about workflow classes: what ``run`` takes, and what the ``result`` of a handle is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from temporalex_django.authoring.authorization import Person
from temporalex_django.core.results import ContinueAsNew, Err, Ok

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: What a handle gives. A handle that nobody gave a type is one of Any.
    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ValueOptions(TypedDict, total=False):
    """What ``start(value, args)`` takes beside; see ``facade``."""

    subject: Any
    version: int | None
    telemetry: Mapping[str, Any] | None
    search_attributes: Mapping[str, Any] | None
    tags: Sequence[str] | None
    by: Person | None


class StartOptions(ValueOptions, total=False):
    """What ``start(args)`` takes beside."""

    id: str | None
    value: str | None


class TypedWorkflow(Protocol[A_contra, R_co]):
    """A workflow whose ``run`` takes A and promises ``Ok[R]``; without annotations both are Any."""

    async def run(self, args: A_contra, /) -> Ok[R_co] | Err[Any] | ContinueAsNew: ...
