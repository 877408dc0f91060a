"""The cancel request of a run, and which of its units it has reached."""

from __future__ import annotations

from typing import Any

from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler


class Cancellation:
    """State of the cancel request. ``requested`` becomes True with the request, which also fills ``notice``."""

    __slots__ = ("_attributes", "_scheduler", "notice", "requested")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._attributes: dict[str, Any] = {}
        self.requested = False
        self.notice = IVar("a cancel request")

    def request(self, attributes: dict[str, Any]) -> None:
        """Cancel every unit that has no parent; the scheduler passes the cancel on to their children."""
        self.requested = True
        self._attributes = attributes
        for unit in list(self._scheduler.units.values()):
            if unit.parent is None:
                self._scheduler.cancel(unit, requested=True, notice=self.notice)
        # A unit that waits for the notice continues without an error, so it counts as a unit that knows of the request.
        if self.notice.waiters:
            self._scheduler.acknowledge_request()
        self.notice.put()

    def acknowledge(self) -> None:
        """Note that workflow code asked for the request and knows of it."""
        self._scheduler.acknowledge_request()

    @property
    def unseen_request(self) -> dict[str, Any] | None:
        """Attributes of a request that no unit has noticed; None without one. The next run of the chain gets it."""
        return self._attributes if self.requested and not self._scheduler.request_seen else None
