"""Types for type checkers: the input of a workflow's ``run``, and the result of its handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict, TypeVar

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.requests.start_policy import OnClosed, OnConflict
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok, Reply, Stop

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: Type of a handle's result. Any by default, so that plain ``WorkflowHandle`` is a valid annotation.
    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)

A = TypeVar("A")
T = TypeVar("T")
A_contra = TypeVar("A_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ValueOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``Workflow.start(value, args)``, for classes with ``unique``."""

    subject: Any
    version: int | None
    telemetry: Mapping[str, Any] | None
    search_attributes: Mapping[str, Any] | None
    tags: Sequence[str] | None
    by: Person | None
    start_at: datetime | None
    start_delay: timedelta | float | None
    start_before: datetime | None
    on_conflict: OnConflict
    on_closed: OnClosed
    debounce: timedelta | float | None
    throttle: tuple[Any, ...] | None
    headers: Mapping[str, str] | None


class StartOptions(ValueOptions, total=False):
    """The types of the keyword arguments of ``Workflow.start(args)``, with ``id`` and ``value`` in addition."""

    id: str | None
    value: str | None


class SignalStartOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``Workflow.signal_with_start``; a dispatcher takes ``version`` as well."""

    id: Required[str]
    subject: Any
    version: int | None
    search_attributes: Mapping[str, Any] | None
    tags: Sequence[str] | None
    by: Person | None
    start_at: datetime | None
    start_delay: timedelta | float | None
    start_before: datetime | None
    headers: Mapping[str, str] | None


class UpdateOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``WorkflowHandle.update``, without ``returns``."""

    id: str | None
    timeout: float | None
    mode: str
    by: Person | None
    headers: Mapping[str, str] | None


class QueryOptions(TypedDict, total=False):
    """The types of the keyword arguments of ``WorkflowHandle.query``, without ``returns``."""

    fresh: bool
    by: Person | None


_HandlerValue = Reply[T, Any] | Stop[Any, T] | Async[T, Any]
#: The handler of an update whose answers have the type ``T``.
UpdateFunction = Callable[..., _HandlerValue[T]] | Callable[..., Awaitable[_HandlerValue[T]]]


class TypedWorkflow(Protocol[A_contra, R_co]):
    """A workflow class whose ``run`` takes ``A`` and returns ``Ok[R]``; without annotations both are Any."""

    async def run(self, args: A_contra, /) -> Ok[R_co] | Err[Any] | ContinueAsNew: ...
