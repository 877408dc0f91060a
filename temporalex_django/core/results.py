"""What workflow code returns: frozen values that compare by value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """``run`` returns it to complete with ``value``; a validator may return it to accept."""

    value: T_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Err(Generic[T_co]):
    """``run`` returns it to fail with ``reason``; a validator to reject.

    ``parallel`` holds one for a branch that raised.
    """

    reason: T_co = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class ContinueAsNew:
    """``run`` returns it to close this run and start the next one of the same id with ``args`` and a fresh history."""

    args: Any = None


@dataclass(frozen=True, slots=True)
class TimedOut(Generic[T]):
    """What ``phase`` gives when its timeout ended it; ``state`` includes all that its handlers still did."""

    state: T = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Reply:
    """An update handler answers with ``response`` and sets the phase state."""

    response: Any
    state: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """A signal handler sets the phase state."""

    state: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """A handler ends the phase with ``state``; ``response`` answers the caller of an update."""

    state: Any
    response: Any = None


@dataclass(frozen=True, slots=True)
class Async:
    """A handler sets the phase state and goes on as a unit of its own: ``fn()``.

    For an update its return value is the reply.
    """

    fn: Callable[[], Awaitable[Any]]
    state: Any


@dataclass(frozen=True, slots=True)
class Pending:
    """A step waits for an event from outside."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step emits the event ``name`` with ``data`` for its context entry."""

    name: str
    data: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
