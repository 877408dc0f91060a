"""The cancel request of a run, and which of its units it has reached."""

from __future__ import annotations

from typing import Any

from temporalex_django.core.units.ivar import IVar
from temporalex_django.core.units.scheduler import Scheduler


class Cancellation:
    """The cancel request of a run, as far as there is one.

    ``requested`` becomes True, and the IVar ``notice`` is set, when the request arrives.
    """

    __slots__ = ("_attributes", "_scheduler", "notice", "requested")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._attributes: dict[str, Any] = {}
        self.requested = False
        self.notice = IVar("a cancel request")

    def request(self, attributes: dict[str, Any]) -> None:
        """Record the cancel request, and raise ``Cancelled`` in every coroutine of the run that is not in a shield.

        It is raised at the present wait of the coroutine, or at its next one. A coroutine that waits for the request
        itself (``wait_cancelled``) continues without an error. ``attributes`` are those of the job that delivers the
        request.
        """
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
        """Note that workflow code has noticed the cancel request, because it asked whether there is one."""
        self._scheduler.acknowledge_request()

    @property
    def unseen_request(self) -> dict[str, Any] | None:
        """The attributes of a cancel request that the code of the run has not noticed; None if there is none."""
        return self._attributes if self.requested and not self._scheduler.request_seen else None
