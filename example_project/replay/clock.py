"""The day's time, run faster."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class Stopped(Exception):
    """The play was interrupted."""


class Clock:
    """The clock of a day: it starts at ``begins`` and runs ``speed`` times as fast as real time."""

    def __init__(self, *, begins: datetime, speed: float) -> None:
        self.begins = begins
        self.speed = speed
        self._origin = time.monotonic()
        self._stop = threading.Event()

    @property
    def elapsed(self) -> float:
        """Real seconds since the day began."""
        return time.monotonic() - self._origin

    @property
    def stopped(self) -> bool:
        """True if the play was interrupted."""
        return self._stop.is_set()

    def wait_until(self, moment: datetime) -> None:
        """Sleep until a moment of the day; return at once if it is past. Raises ``Stopped``."""
        self.sleep((moment - self.begins).total_seconds() / self.speed - self.elapsed)

    def sleep(self, seconds: float) -> None:
        """Sleep real seconds. Raises ``Stopped``."""
        if self._stop.wait(max(seconds, 0)):
            raise Stopped

    def stop(self) -> None:
        """Interrupt the play and wake all who sleep."""
        self._stop.set()
