"""Values that workflow code returns. They are frozen and compare by value."""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    #: Types of an answer and of the state of a phase. Any by default, so that plain ``Reply`` is a valid annotation.
    Answer_co = TypeVarWithDefault("Answer_co", covariant=True, default=Any)
    State_co = TypeVarWithDefault("State_co", covariant=True, default=Any)
else:
    Answer_co = TypeVar("Answer_co", covariant=True)
    State_co = TypeVar("State_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """The value by which ``run`` completes with ``value``. A validator may return it to accept an update."""

    value: T_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Err(Generic[T_co]):
    """The value by which ``run`` fails with ``reason``, or by which a validator rejects an update.

    ``parallel`` returns one for each branch that raised.
    """

    reason: T_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """The value by which ``run`` closes and the next run of its chain starts. ``args`` is the input of that run."""

    args: Any = None


@dataclass(frozen=True, slots=True)
class TimedOut(Generic[T]):
    """The value of a ``phase`` that its timeout ended.

    ``state`` is the last phase state, with all changes by its handlers.
    """

    state: T = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer_co, State_co]):
    """The value of an update handler that answers with ``response`` and sets the phase state.

    ``Reply[Answer, State]`` as the annotation of a handler says how the answer is stored and read.
    """

    response: Answer_co
    state: State_co

    if not TYPE_CHECKING:  # type checkers know the defaults of the parameters

        def __class_getitem__(cls, parameters: Any) -> Any:
            return super(Reply, cls).__class_getitem__(_pair(parameters))


@dataclass(frozen=True, slots=True)
class NoReply(Generic[State_co]):
    """The value of a signal handler that sets the phase state."""

    state: State_co


@dataclass(frozen=True, slots=True)
class Stop(Generic[State_co, Answer_co]):
    """The value of a handler that ends the phase with ``state``. ``response`` answers the sender of an update.

    As an annotation it is ``Stop[State]``, or ``Stop[State, Answer]``.
    """

    state: State_co
    response: Answer_co = None  # type: ignore[assignment]

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> Any:
            return super(Stop, cls).__class_getitem__(_pair(parameters))


@dataclass(frozen=True, slots=True)
class Async(Generic[Answer_co, State_co]):
    """The value of a handler that sets the phase state and continues with ``fn()`` while the phase takes messages.

    ``fn()`` runs as a coroutine beside the phase, which does not end before it. For an update, its return value is the
    response. As an annotation it is ``Async[Answer, State]``.
    """

    fn: Callable[[], Awaitable[Answer_co]]
    state: State_co

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> Any:
            return super(Async, cls).__class_getitem__(_pair(parameters))


def _pair(parameters: Any) -> tuple[Any, ...]:
    """Fill in Any for a parameter that is left out."""
    parts = parameters if isinstance(parameters, tuple) else (parameters,)
    return (*parts, Any) if len(parts) == 1 else parts


def answer_type_of(annotation: Any) -> Any:
    """Return the type of the answers of an update handler with this return annotation, or Any if it names none.

    The parts of a union count together. A ``Stop`` without an answer in it answers None.
    """
    annotation = getattr(annotation, "__value__", annotation)  # of a ``type`` statement
    if typing.get_origin(annotation) in (Awaitable, Coroutine):
        annotation = typing.get_args(annotation)[-1]
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    answers: list[Any] = []
    has_bare_stop = False
    for part in parts:
        origin, parameters = typing.get_origin(part), typing.get_args(part)
        answer = parameters[origin is Stop] if origin in (Reply, Stop, Async) else Any
        if answer is Any or isinstance(answer, TypeVar):
            has_bare_stop |= Stop in (origin, part)
        else:
            answers.append(answer)
    if not answers:
        return Any
    return typing.Union[tuple(answers + [None] * has_bare_stop)]  # noqa: UP007 - the parts are known at run time only


@dataclass(frozen=True, slots=True)
class Pending:
    """The value of a step that waits for an event from outside."""


@dataclass(frozen=True, slots=True)
class Event:
    """The value of a step that emits the event ``name``, which selects the next transition.

    ``data`` is the result of the step in the context. ``metadata`` is added to the ``runtime_metadata`` of the
    instance.
    """

    name: str
    data: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
