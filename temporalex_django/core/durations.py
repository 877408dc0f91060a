"""Durations: a ``timedelta`` or a number of seconds, everywhere."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

#: About a hundred years: beyond that it is a mistake, and date arithmetic overflows.
MAX_SECONDS = 100 * 366 * 86400.0


def to_seconds(value: Any, *, label: str = "duration") -> float:
    """``value`` in seconds.

    Raises ``TypeError`` for what is no duration and ``ValueError`` for what no clock can wait for.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{label} must be a timedelta or a number of seconds, not {value!r}")
    if not math.isfinite(number) or number > MAX_SECONDS:
        raise ValueError(f"{label} of {value!r} is longer than 100 years")
    return number


def wait_seconds(value: Any, *, label: str) -> float:
    """The same for something to wait for: negative raises ``ValueError``."""
    number = to_seconds(value, label=label)
    if number < 0:
        raise ValueError(f"{label} must not be negative: {value!r}")
    return number


def check_wait(timeout: Any, mode: str = "auto") -> float | None:
    """How long a method of a handle waits, in seconds; None is for ever.

    Raises ``TypeError`` and ``ValueError``, also for another ``mode``.
    """
    if mode not in ("auto", "worker"):
        raise ValueError(f"mode is 'auto' or 'worker', not {mode!r}")
    return None if timeout is None else wait_seconds(timeout, label="timeout")
