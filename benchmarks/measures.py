"""Tools to measure with: waits with a deadline, limits, percentiles."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

#: The errors with which signals have interrupted the measurement, in their order.
_broken_off: list[BaseException] = []


class TooLong(Exception):
    """A benchmark has used up its time."""


def break_off(error: BaseException) -> NoReturn:
    """Raise ``error`` from a signal handler, and again in the next ``wait_until``.

    An error that a handler raises is lost if Python is in a callback of the garbage collector at that moment.
    """
    _broken_off.append(error)
    raise error


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise ``TooLong`` in the block if it takes longer. It must run in the main thread."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        break_off(TooLong(f"not finished within {seconds:.0f} s"))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _broken_off[:] = [error for error in _broken_off if not isinstance(error, TooLong)]


def wait_until(done: Callable[[], bool], *, seconds: float, every: float = 0.02) -> float:
    """Wait until ``done()`` is true and return that moment (``time.perf_counter``). Raises ``TimeoutError``."""
    deadline = time.perf_counter() + seconds
    while not done():
        if _broken_off:
            raise _broken_off[0]
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not finished after {seconds:g} s")
        time.sleep(every)
    return time.perf_counter()


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50_ms": round(percentile(values, 0.5) * 1000, 3),
        "p99_ms": round(percentile(values, 0.99) * 1000, 3),
        "n": len(values),
    }
