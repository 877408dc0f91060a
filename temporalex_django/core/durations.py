"""Durations: a ``timedelta`` or a number of seconds, everywhere."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

#: About a hundred years. A longer duration is a mistake, and date arithmetic would overflow.
MAX_SECONDS = 100 * 366 * 86400.0


def to_seconds(value: Any, *, label: str = "duration") -> float:
    """Return ``value`` in seconds.

    Raises ``TypeError`` for a value that is no duration, and ``ValueError`` for one that is not finite or too long.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{label} must be a timedelta or a number of seconds, not {value!r}")
    # ``isfinite`` comes first: every comparison with NaN is False, so the second test alone would let NaN pass.
    if not math.isfinite(number) or number > MAX_SECONDS:
        raise ValueError(f"{label} of {value!r} is longer than 100 years")
    return number


def wait_seconds(value: Any, *, label: str) -> float:
    """Return a time to wait in seconds. Raises ``ValueError`` if it is negative; see ``to_seconds``."""
    number = to_seconds(value, label=label)
    if number < 0:
        raise ValueError(f"{label} must not be negative: {value!r}")
    return number


def check_wait(timeout: Any, mode: str = "auto") -> float | None:
    """Return the timeout of a method of a handle in seconds; None means to wait without a limit.

    Raises ``TypeError`` and ``ValueError``, also for an unknown ``mode``.
    """
    if mode not in ("auto", "worker"):
        raise ValueError(f"mode must be 'auto' or 'worker', not {mode!r}")
    return None if timeout is None else wait_seconds(timeout, label="timeout")
