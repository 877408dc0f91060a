"""Signals that tell a worker to stop, without the locks of what they interrupt.

The handler of a signal runs in the midst of whatever the main thread does. If that is ``wait`` or ``set`` of the very
event (the handler of a signal that came just before sets it, too), then the event's lock is taken, and a handler that
calls ``set`` waits for it for ever. So a thread sets it.
"""

from __future__ import annotations

import signal
import threading
import time
from queue import SimpleQueue
from typing import Any


class EventSetter:
    """Has a thread of its own set ``event`` when ``trigger`` is called, which any handler may do."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._signals: SimpleQueue[None] = SimpleQueue()  # the one whose ``put`` may be interrupted by itself
        threading.Thread(target=self._run, name="temporalex-stop", daemon=True).start()

    def trigger(self, *_: Any) -> None:
        self._signals.put(None)

    def _run(self) -> None:
        self._signals.get()
        self._event.set()


class StopSignals:
    """Sets ``event`` at SIGTERM or SIGINT.

    A second one, unless it is the same one by another way, ends this process at once.

    A signal to all processes of a service or a terminal comes twice: by itself, and from the parent.
    """

    _TWICE_WITHIN = 1.0

    def __init__(self, event: threading.Event) -> None:
        self._setter = EventSetter(event)
        self._signaled_at: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)

    def _handle_signal(self, number: int, _frame: Any) -> None:
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
            self._setter.trigger()
        elif now - self._signaled_at > self._TWICE_WITHIN:
            raise SystemExit(128 + number)
