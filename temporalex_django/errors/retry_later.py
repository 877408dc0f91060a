"""The error by which an activity says when it is to be tried again."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Self

from temporalex_django.errors.outcomes import ApplicationError

#: Longest hold, in seconds: an hour.
LONGEST_HOLD = 3600.0
#: Longest pause between two attempts, in seconds: a year. A service may send any number.
LONGEST_PAUSE = 365 * 86_400.0
#: What a hold keeps back: the other activities of the queue, or those with the same concurrency key.
HOLDS = ("queue", "key")
#: Longest header that a message quotes, in characters.
_MAX_HEADER_LENGTH = 100
#: Numbers of seconds with more digits are longer than ``LONGEST_PAUSE``.
_MAX_DIGITS = 12


class RetryLater(ApplicationError):
    """The activity asked to be retried later.

    Raise it in an activity that knows when another attempt makes sense, for example because a service said so.

    - ``after`` is when: seconds or a ``timedelta`` from the end of the attempt, or an aware ``datetime``. It takes the
      place of the pause of the retry policy, even if it is longer than ``max_interval``. A time in the past means at
      once, and a pause is at most 365 days. With None, the retry policy decides the pause.
    - With ``counts=False``, the attempt does not count for ``max_attempts``, and the next one has the same number.
    - ``hold`` holds other work back until then, at most for an hour: "queue" all activities of the queue, "key" those
      of the queue with the same concurrency key. Activities that run already continue. An atomic activity, and "key"
      for an activity without a concurrency key, hold nothing back.

    ``message`` is shown as the reason for the wait. ``type`` and ``details`` are as in ``ApplicationError``.
    ``non_retryable`` of the retry policy does not apply. The activity fails with this error if no attempt is left, or
    if the next one would begin after ``schedule_to_close``.

    Raises ``TypeError`` or ``ValueError`` for an ``after`` or a ``hold`` that makes no sense.
    """

    code = "retry_later"
    next_step = (
        "Nothing to do while attempts are left: the next one begins at the time that the activity requested. If "
        "none is left, allow more attempts or more time, or pass `counts=False`."
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        after: timedelta | datetime | float | None = None,
        counts: bool = True,
        hold: Literal["queue", "key"] | None = None,
        type: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message, type=type, details=details)
        if hold is not None and hold not in HOLDS:
            raise ValueError(f'RetryLater: hold={hold!r} is unknown. Pass "queue", "key" or None.')
        self.after = _parse_after(after)
        self.counts = bool(counts)
        self.hold = hold

    @classmethod
    def from_header(
        cls,
        value: str | None,
        message: str | None = None,
        *,
        counts: bool = True,
        hold: Literal["queue", "key"] | None = None,
        type: str | None = None,
        details: Any = None,
    ) -> Self:
        """Return the error for the value of the HTTP header ``Retry-After``: a number of seconds, or a date.

        A header that is missing (None) or cannot be read never hides the answer of the service: the retry policy
        decides the pause then, and the message says so. The other arguments are those of the class.
        """
        after = _parse_header(value)
        if message is None:
            message = _header_message(value, after)
        return cls(message, after=after, counts=counts, hold=hold, type=type, details=details)

    def seconds_from(self, now: datetime) -> float | None:
        """Return the seconds from ``now`` until the next attempt, between 0 and a year.

        None means that the retry policy decides.
        """
        match self.after:
            case None:
                return None
            case datetime():
                seconds = (self.after - now).total_seconds()
            case _:
                seconds = self.after
        return min(max(seconds, 0.0), LONGEST_PAUSE)


def _parse_after(after: timedelta | datetime | float | None) -> datetime | float | None:
    """Return ``after`` in seconds, or as the aware datetime that it is. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(after, datetime):
        if after.utcoffset() is None:
            raise ValueError(
                f"RetryLater: after={after.isoformat()} has no time zone. Pass an aware datetime, such as "
                "django.utils.timezone.now() + timedelta(minutes=5), or a number of seconds."
            )
        return after
    if isinstance(after, timedelta):
        return after.total_seconds()
    if after is None:
        return None
    if isinstance(after, bool) or not isinstance(after, (int, float)):
        raise TypeError(
            f"RetryLater: after={after!r} is not a point in time. Pass seconds, a timedelta or an aware datetime. For the "
            "header Retry-After, use RetryLater.from_header(value)."
        )
    if isinstance(after, float) and math.isnan(after):
        raise ValueError("RetryLater: after=nan is not a number of seconds. Pass seconds, a timedelta or a datetime.")
    # Compared before the conversion: an int may be too large for a float.
    return float(max(-LONGEST_PAUSE, min(after, LONGEST_PAUSE)))


def _parse_header(value: str | None) -> datetime | float | None:
    """Return the time that a header ``Retry-After`` names, or None if it cannot be read."""
    text = "" if value is None else str(value).strip()
    if text.isascii() and text.isdigit():
        return LONGEST_PAUSE if len(text) > _MAX_DIGITS else float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # Dates of HTTP are in GMT. The oldest of their three forms does not say so.
    return moment.replace(tzinfo=UTC) if moment.utcoffset() is None else moment


def _header_message(value: str | None, after: datetime | float | None) -> str:
    if value is None:
        return "The service asked to wait and did not say how long; the retry policy decides the pause."
    text = str(value).strip()
    if len(text) > _MAX_HEADER_LENGTH:
        text = f"{text[:_MAX_HEADER_LENGTH]}…"
    if after is None:
        return (
            f"The service asked to wait, with an unreadable Retry-After: {text!r}; the retry policy decides the pause."
        )
    return f"The service asked to wait (Retry-After: {text})."
