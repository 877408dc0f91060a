"""Waiting in tests: for something, with a deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], *, seconds: float = 60.0, what: str = "") -> T:
    """The first true value of ``condition``; fails the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what or condition!r}")
        time.sleep(0.02)
