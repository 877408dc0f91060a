"""``activity_context()``: what an activity may ask about its own attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from temporalex_django.core import payloads
from temporalex_django.errors import OutsideWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityContext:
    """What is known about the attempt.

    ``attempt`` counts from 1; ``idempotency_key`` is the same in every attempt: give it to whoever must not do a thing
    twice. ``heartbeat_details`` is what the attempt before said last.
    """

    attempt: int
    idempotency_key: str
    workflow_id: str
    run_id: str
    heartbeat_details: Any = None
    _seq: int = field(default=0, repr=False)
    _heartbeat: Callable[[Any], None] = field(default=lambda _: None, repr=False)
    _is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)

    def heartbeat(self, details: Any = None) -> None:
        """Say that the attempt is alive; ``details`` (a payload) are there for the next attempt.

        Cheap: call it often.
        """
        self._heartbeat(payloads.to_plain(details, label="heartbeat details"))

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the wait was cancelled, or the lease was lost."""
        return self._is_cancelled()


_current: ContextVar[ActivityContext | None] = ContextVar("temporalex_activity", default=None)


def activity_context() -> ActivityContext:
    """The context of the activity that is running here. Raises ``OutsideWorkflow`` elsewhere."""
    context = _current.get()
    if context is None:
        raise OutsideWorkflow("activity_context() was called outside a running activity")
    return context


@contextmanager
def use_context(context: ActivityContext) -> Iterator[None]:
    """Code that runs inside is the activity of ``context``."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
