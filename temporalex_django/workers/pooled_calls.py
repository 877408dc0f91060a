"""Calls in the threads of a pool that are no attempts of the tables: those of activities on a Temporal cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class PooledCall:
    """A function that waits for a thread of a pool, and the future of its result.

    ``workflow`` is the name by which calls and attempts take turns. ``claimed_at`` is a time of the monotonic clock.
    """

    workflow: str
    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    claimed_at: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Call the function and set the future, unless it was cancelled before. Never raises."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as exc:  # noqa: BLE001 - the one who waits for the future gets it
            self.future.set_exception(exc)
        else:
            self.future.set_result(result)
