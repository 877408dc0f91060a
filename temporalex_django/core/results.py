"""Values that workflow code returns. They are frozen and compare by value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
class Reply:
    """The value of an update handler that answers with ``response`` and sets the phase state."""

    response: Any
    state: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """The value of a signal handler that sets the phase state."""

    state: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """The value of a handler that ends the phase with ``state``. ``response`` answers the sender of an update."""

    state: Any
    response: Any = None


@dataclass(frozen=True, slots=True)
class Async:
    """The value of a handler that sets the phase state and continues with ``fn()`` while the phase takes messages.

    ``fn()`` runs as a coroutine beside the phase, which does not end before it. For an update, its return value is the
    response.
    """

    fn: Callable[[], Awaitable[Any]]
    state: Any


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
