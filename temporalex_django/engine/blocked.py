"""What a blocked run says of itself, and when it is tried again."""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalex_django.core.failures import message_of, name_of
from temporalex_django.engine.shapes import Blocked
from temporalex_django.errors import TemporalexError

#: Longest wait between two tries, in seconds.
_LONGEST_BACKOFF = 300.0


def next_try(tries: int, now: datetime) -> datetime:
    """When a run is tried again whose present activation has failed so many times."""
    return now + timedelta(seconds=min(2.0 ** min(tries, 16), _LONGEST_BACKOFF))


def mark(code: str, error: str, *, tries: int, now: datetime, waits_for: str | None = None) -> Blocked:
    """What stands on the row of the run; ``waits_for`` is what no worker has."""
    found: Blocked = {"code": code, "error": error, "since": now.isoformat(), "attempt": tries}
    if waits_for is not None:
        found["waits_for"] = waits_for
    return found


def mark_of(error: BaseException, *, tries: int, now: datetime, waits_for: str | None = None) -> Blocked:
    """The same of what an activation raised."""
    code = error.code if isinstance(error, TemporalexError) else type(error).__name__
    text = f"{name_of(type(error))}: {message_of(error)}"
    return mark(code, text, tries=tries, now=now, waits_for=waits_for)
