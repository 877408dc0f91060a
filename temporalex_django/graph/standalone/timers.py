"""The timers of a process: one thread for all of them, and no thread while there is no timer."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from temporalex_django.core.failures import error_line

logger = logging.getLogger("temporalex_django.graph")


class _ScheduledCall:
    """A call of the function ``fn`` that is scheduled for later and can be cancelled; ``fn`` is None after that."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], None]) -> None:
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        self.fn = None


class ThreadTimers:
    """A scheduler of later calls, on the monotonic clock, with one thread. The timers are lost with the process.

    It implements ``contracts.Timers``.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _ScheduledCall]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float, fn: Callable[[], None]) -> _ScheduledCall:
        """Call ``fn`` after ``seconds`` in the thread of the timers, and return the scheduled call."""
        entry = _ScheduledCall(fn)
        with self._condition:
            # The number decides between equal times: calls cannot be compared.
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), entry))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="graph-timers", daemon=True)
                self._thread.start()
            self._condition.notify()
        return entry

    def stop(self) -> None:
        """Cancel all calls that were not made yet."""
        with self._condition:
            self._heap.clear()
            self._condition.notify()

    def _run(self) -> None:
        while (fn := self._wait_for_next()) is not None:
            try:
                fn()
            except Exception as exc:  # noqa: BLE001 - the thread also serves other timers
                logger.error("a timer failed: %s", error_line(exc))

    def _wait_for_next(self) -> Callable[[], None] | None:
        """Wait until the next call is due and return it. Return None if no timer is left; the thread then ends."""
        with self._condition:
            while self._heap:
                due, _, entry = self._heap[0]
                seconds_left = due - time.monotonic()
                if entry.fn is None or seconds_left <= 0:
                    heapq.heappop(self._heap)
                    if entry.fn is not None:
                        return entry.fn
                else:
                    # A new timer may be due earlier: it notifies, and the loop looks at the heap again.
                    self._condition.wait(min(seconds_left, threading.TIMEOUT_MAX))
            # Under the lock, so that a timer that starts now sees that it needs a new thread.
            self._thread = None
            return None
