"""The types of primitives with several signatures, for type checkers: ``phase``, ``parallel``, ``race`` and ``task``.

``api`` has their implementations, which the decorators here give these types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Never, ParamSpec, Protocol, TypeVar, cast, overload

from temporalex_django.authoring.start_api import R, TypedTask
from temporalex_django.core.results import Err, TimedOut
from temporalex_django.core.units.ivar import AwaitableCall

P = ParamSpec("P")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")
T7 = TypeVar("T7")
T8 = TypeVar("T8")
T9 = TypeVar("T9")
T10 = TypeVar("T10")
#: A branch with the result ``T``, as type checkers see it.
Branch = Awaitable[T] | Callable[[], Awaitable[T]]
#: The error of a branch, in the place of its result.
Failed = Err[Exception]
#: A state whose type is not known: an empty list or dict, or a dict of them.
_Empty = list[Never] | dict[Never, Never] | dict[str, list[Never]] | dict[str, dict[Never, Never]]


class _Task(Protocol):
    """The type of ``api.task``. The stubs of Django say what a task takes and returns."""

    @overload
    def __call__(
        self, task: TypedTask[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AwaitableCall[R]: ...
    @overload
    def __call__(self, task: TypedTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AwaitableCall[R]: ...


class _Phase(Protocol):
    """The type of ``api.phase``: it returns the type of the state, and ``TimedOut`` only if it has a limit."""

    @overload
    def __call__(
        self,
        state: _Empty,
        signal: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
        *,
        until: datetime | None = None,
        label: str | None = None,
        publish: bool | Callable[[Any], Any] = False,
    ) -> AwaitableCall[Any]: ...
    @overload
    def __call__(
        self,
        state: T,
        signal: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        timeout: None = None,
        *,
        until: None = None,
        label: str | None = None,
        publish: bool | Callable[[T], Any] = False,
    ) -> AwaitableCall[T]: ...
    @overload
    def __call__(
        self,
        state: T,
        signal: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
        *,
        until: datetime | None = None,
        label: str | None = None,
        publish: bool | Callable[[T], Any] = False,
    ) -> AwaitableCall[T | TimedOut[T]]: ...


# The overloads that take branches one by one do not overlap. Otherwise mypy would see Any wherever an argument has Any
# in its type, as a signal has.
class _Parallel(Protocol):
    """The type of ``api.parallel``: a tuple for up to ten branches, and a list for more and for a list."""

    @overload
    def __call__(
        self, b1: Branch[T1], /, *, limit: int | None = None, raise_errors: Literal[True]
    ) -> AwaitableCall[tuple[T1]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], /, *, limit: int | None = None, raise_errors: bool = False
    ) -> AwaitableCall[tuple[T1 | Failed]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], /, *, limit: int | None = None, raise_errors: Literal[True]
    ) -> AwaitableCall[tuple[T1, T2]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], /, *, limit: int | None = None, raise_errors: bool = False
    ) -> AwaitableCall[tuple[T1 | Failed, T2 | Failed]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], b3: Branch[T3], /, *, limit: int | None = None, raise_errors: bool = False
    ) -> AwaitableCall[tuple[T1 | Failed, T2 | Failed, T3 | Failed]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[tuple[T1 | Failed, T2 | Failed, T3 | Failed, T4 | Failed]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[tuple[T1 | Failed, T2 | Failed, T3 | Failed, T4 | Failed, T5 | Failed]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5, T6]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[tuple[T1 | Failed, T2 | Failed, T3 | Failed, T4 | Failed, T5 | Failed, T6 | Failed]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5, T6, T7]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[
        tuple[T1 | Failed, T2 | Failed, T3 | Failed, T4 | Failed, T5 | Failed, T6 | Failed, T7 | Failed]
    ]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5, T6, T7, T8]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[
        tuple[T1 | Failed, T2 | Failed, T3 | Failed, T4 | Failed, T5 | Failed, T6 | Failed, T7 | Failed, T8 | Failed]
    ]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5, T6, T7, T8, T9]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[
        tuple[
            T1 | Failed,
            T2 | Failed,
            T3 | Failed,
            T4 | Failed,
            T5 | Failed,
            T6 | Failed,
            T7 | Failed,
            T8 | Failed,
            T9 | Failed,
        ]
    ]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        b10: Branch[T10],
        /,
        *,
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[tuple[T1, T2, T3, T4, T5, T6, T7, T8, T9, T10]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        b10: Branch[T10],
        /,
        *,
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[
        tuple[
            T1 | Failed,
            T2 | Failed,
            T3 | Failed,
            T4 | Failed,
            T5 | Failed,
            T6 | Failed,
            T7 | Failed,
            T8 | Failed,
            T9 | Failed,
            T10 | Failed,
        ]
    ]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T],
        b2: Branch[T],
        b3: Branch[T],
        b4: Branch[T],
        b5: Branch[T],
        b6: Branch[T],
        b7: Branch[T],
        b8: Branch[T],
        b9: Branch[T],
        b10: Branch[T],
        b11: Branch[T],
        /,
        *rest: Branch[T],
        limit: int | None = None,
        raise_errors: Literal[True],
    ) -> AwaitableCall[list[T]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T],
        b2: Branch[T],
        b3: Branch[T],
        b4: Branch[T],
        b5: Branch[T],
        b6: Branch[T],
        b7: Branch[T],
        b8: Branch[T],
        b9: Branch[T],
        b10: Branch[T],
        b11: Branch[T],
        /,
        *rest: Branch[T],
        limit: int | None = None,
        raise_errors: bool = False,
    ) -> AwaitableCall[list[T | Failed]]: ...
    @overload
    def __call__(
        self, branches: Iterable[Branch[T]], /, *, limit: int | None = None, raise_errors: Literal[True]
    ) -> AwaitableCall[list[T]]: ...
    @overload
    def __call__(
        self, branches: Iterable[Branch[T]], /, *, limit: int | None = None, raise_errors: bool = False
    ) -> AwaitableCall[list[T | Failed]]: ...
    @overload
    def __call__(
        self, branches: Iterable[Any] = ..., /, *, limit: int | None = None, raise_errors: bool = False
    ) -> AwaitableCall[list[Any]]: ...


class _Race(Protocol):
    """The type of ``api.race``: the value is that of one of up to ten branches, or of a list."""

    @overload
    def __call__(self, b1: Branch[T1], /) -> AwaitableCall[tuple[int, T1]]: ...
    @overload
    def __call__(self, b1: Branch[T1], b2: Branch[T2], /) -> AwaitableCall[tuple[int, T1 | T2]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], b3: Branch[T3], /
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], b3: Branch[T3], b4: Branch[T4], /
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], b3: Branch[T3], b4: Branch[T4], b5: Branch[T5], /
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5]]: ...
    @overload
    def __call__(
        self, b1: Branch[T1], b2: Branch[T2], b3: Branch[T3], b4: Branch[T4], b5: Branch[T5], b6: Branch[T6], /
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5 | T6]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        /,
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5 | T6 | T7]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        /,
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5 | T6 | T7 | T8]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        /,
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5 | T6 | T7 | T8 | T9]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T1],
        b2: Branch[T2],
        b3: Branch[T3],
        b4: Branch[T4],
        b5: Branch[T5],
        b6: Branch[T6],
        b7: Branch[T7],
        b8: Branch[T8],
        b9: Branch[T9],
        b10: Branch[T10],
        /,
    ) -> AwaitableCall[tuple[int, T1 | T2 | T3 | T4 | T5 | T6 | T7 | T8 | T9 | T10]]: ...
    @overload
    def __call__(
        self,
        b1: Branch[T],
        b2: Branch[T],
        b3: Branch[T],
        b4: Branch[T],
        b5: Branch[T],
        b6: Branch[T],
        b7: Branch[T],
        b8: Branch[T],
        b9: Branch[T],
        b10: Branch[T],
        b11: Branch[T],
        /,
        *rest: Branch[T],
    ) -> AwaitableCall[tuple[int, T]]: ...
    @overload
    def __call__(self, branches: Iterable[Branch[T]], /) -> AwaitableCall[tuple[int, T]]: ...
    @overload
    def __call__(self, branches: Iterable[Any], /) -> AwaitableCall[tuple[int, Any]]: ...


def task_type(primitive: Callable[..., Any]) -> _Task:
    """Return ``api.task`` as it is, with its type for type checkers."""
    return cast("_Task", primitive)


def phase_type(primitive: Callable[..., Any]) -> _Phase:
    """Return ``api.phase`` as it is, with its type for type checkers."""
    return cast("_Phase", primitive)


def parallel_type(primitive: Callable[..., Any]) -> _Parallel:
    """Return ``api.parallel`` as it is, with its type for type checkers."""
    return cast("_Parallel", primitive)


def race_type(primitive: Callable[..., Any]) -> _Race:
    """Return ``api.race`` as it is, with its type for type checkers."""
    return cast("_Race", primitive)
