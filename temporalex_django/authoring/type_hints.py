"""Types for type checkers: the input of a workflow's ``run``, and the result of its handle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Required, TypedDict, TypeVar, overload
from uuid import UUID

from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.requests import OnClosed, OnConflict
from temporalex_django.core.results import Async, ContinueAsNew, Err, Ok, Reply, Stop

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: Type of a handle's result. Any by default, so that plain ``WorkflowHandle`` is a valid annotation.
    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
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
    value: str | int | UUID | None


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


_HandlerValue = Reply[T, Any] | Stop[Any, T2] | Async[T3, Any]
#: The handler of an update. Its three parameters are the types of the answers of ``Reply``, ``Stop`` and ``Async``.
UpdateFunction = Callable[..., _HandlerValue[T, T2, T3]] | Callable[..., Awaitable[_HandlerValue[T, T2, T3]]]


class QueryDecorator(Protocol):
    """The type of ``query(name)``, for type checkers: the method keeps its type."""

    @overload
    def __call__(self, fn: staticmethod[P, R], /) -> staticmethod[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> staticmethod[P, R]: ...


class TypedTask(Protocol[P, R_co]):
    """A Django task whose function takes ``P`` and returns ``R``; the stubs of Django say so."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TypedWorkflow(Protocol[A_contra, R_co]):
    """A workflow class whose ``run`` takes ``A`` and returns ``Ok[R]``; without annotations both are Any."""

    async def run(self, args: A_contra, /) -> Ok[R_co] | Err[Any] | ContinueAsNew: ...
