"""Signals that ask a worker to stop, handled without the locks of the code that they interrupt.

The handler of a signal runs in the middle of whatever the main thread does. That may be ``wait`` or ``set`` of the very
event that the handler sets; ``set`` may come from the handler of an earlier signal. Then the lock of the event is held,
and a handler that calls ``set`` would wait for it for ever. So a thread sets the event.
"""

from __future__ import annotations

import signal
import threading
import time
from queue import SimpleQueue
from typing import Any


class EventSetter:
    """A setter whose own thread sets ``event`` after a call of ``trigger``, which is safe in any handler."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event
        # Of all queues this one has a ``put`` that may be interrupted by itself.
        self._signals: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._run, name="temporalex-stop", daemon=True).start()

    def trigger(self, *_: Any) -> None:
        """Let the thread set the event. A signal handler may call this; the arguments are ignored."""
        self._signals.put(None)

    def _run(self) -> None:
        self._signals.get()
        self._event.set()


class StopSignals:
    """Handlers of SIGTERM and SIGINT that set ``event``.

    A second signal ends this process at once, unless it comes within a second after the first one. A signal to all
    processes of a service or a terminal arrives twice: directly, and forwarded by the parent.
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
