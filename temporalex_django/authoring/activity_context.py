"""``activity_context()``: the facts about its present attempt that an activity may read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from temporalex_django.core import current
from temporalex_django.core.failures import to_storable
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.payloads.round_trip import encode_lossless
from temporalex_django.errors import OutsideWorkflow

#: Most characters of the text of a progress.
_LONGEST_TEXT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousFailure:
    """The failure of the attempt before the present one.

    ``type`` is the class name of the exception, or the ``type`` of an ``ApplicationError``. It is "TimeoutError" after
    a timeout and "WorkerLost" if the worker died. ``details`` is the plain data that came with an ``ApplicationError``,
    or None.
    """

    type: str
    message: str
    details: Any = None

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any] | None) -> PreviousFailure | None:
        """Return the failure from ``payload``, the stored form of an activity's last failure; None if there is none."""
        if payload is None:
            return None
        return cls(type=payload["type"], message=payload["message"], details=deep_copy(payload.get("details")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityContext:
    """The facts of one attempt of an activity.

    ``attempt`` counts from 1. ``idempotency_key`` is the same in every attempt: pass it to systems that must not do the
    same thing twice. ``heartbeat_details`` are the last details that an earlier attempt sent with its heartbeat.
    ``previous_failure`` is the failure of the last attempt, a ``PreviousFailure``, or None if no attempt has failed. It
    is stored with the activity, so another worker has it, too. ``headers`` are those of the run, with what interceptors
    have added.
    """

    attempt: int
    idempotency_key: str
    workflow_id: str
    run_id: str
    heartbeat_details: Any = None
    previous_failure: PreviousFailure | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    _seq: int = field(default=0, repr=False)
    _owner: str | None = field(default=None, repr=False)  # the run that executes it, if a reset has kept ``run_id``
    _heartbeat: Callable[[Any], None] = field(default=lambda _: None, repr=False)
    _progress: Callable[[Mapping[str, Any]], None] = field(default=lambda _: None, repr=False)
    _is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)

    def heartbeat(self, details: Any = None) -> None:
        """Send a heartbeat, the sign that this attempt is alive. The next attempt can read ``details`` (a payload).

        A heartbeat costs little, so call it often. Raises ``PayloadError`` for details that would come back from JSON
        as something else: pass a Decimal as a text. Raises ``TaskCancelled`` in a background task that somebody has
        cancelled.
        """
        self._heartbeat(encode_lossless(details, label="heartbeat details"))

    def progress(self, done: float, total: float, text: str = "") -> None:
        """Report the progress of this attempt, which interfaces show as a bar. It is a heartbeat, too.

        ``done`` and ``total`` are numbers of 0 or more. They may be of any unit and may go back, for example when a new
        phase begins. ``text`` says what happens now, in at most 200 characters. At most one report a second is stored:
        the latest. The last one before the end may be lost.

        Raises ``TypeError`` or ``ValueError`` for other numbers, and ``TaskCancelled`` in a background task that
        somebody has cancelled.
        """
        for name, number in (("done", done), ("total", total)):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise TypeError(f"progress: {name}={number!r} is not a number")
            if not 0 <= number < math.inf:
                raise ValueError(f"progress: {name}={number!r} is not a number of 0 or more")
        if not isinstance(text, str):
            raise TypeError(f"progress: text={text!r} is not a text")
        self._progress({"done": done, "total": total, "text": to_storable(text)[:_LONGEST_TEXT]})

    def is_cancelled(self) -> bool:
        """Return True if the attempt should end.

        Its wait was cancelled, somebody has cancelled the background task, or the worker has lost its lease.
        """
        return self._is_cancelled()


# A context variable, so that async activities which share a thread each see their own attempt.
_current: ContextVar[ActivityContext | None] = ContextVar("temporalex_activity", default=None)


current.is_in_activity = lambda: _current.get() is not None


def activity_context() -> ActivityContext:
    """Return the context of the activity that runs here. Raises ``OutsideWorkflow`` elsewhere."""
    context = _current.get()
    if context is None:
        raise OutsideWorkflow("activity_context() was called outside a running activity")
    return context


@contextmanager
def use_context(context: ActivityContext) -> Iterator[None]:
    """Return a context manager in whose block ``activity_context()`` returns ``context``."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def progress(done: float, total: float, text: str = "") -> None:
    """Report the progress of the activity or the background task that runs here; see ``ActivityContext.progress``.

    Raises ``OutsideWorkflow`` outside of activities.
    """
    activity_context().progress(done, total, text)
