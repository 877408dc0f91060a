"""A request to cancel: who has heard of it."""

from __future__ import annotations

from typing import Any

from temporalex_django.core.ivar import IVar
from temporalex_django.core.scheduler import Scheduler


class Cancellation:
    """``requested`` once the run was asked to cancel; ``notice`` is filled then."""

    __slots__ = ("_attributes", "_scheduler", "notice", "requested")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._attributes: dict[str, Any] = {}
        self.requested = False
        self.notice = IVar("a cancel request")

    def request(self, attributes: dict[str, Any]) -> None:
        """Tell every unit that no other one has started; the others hear of it from theirs."""
        self.requested = True
        self._attributes = attributes
        for unit in list(self._scheduler.units.values()):
            if unit.parent is None:
                self._scheduler.cancel(unit, requested=True, notice=self.notice)
        if self.notice.waiters:
            self._scheduler.acknowledge_request()
        self.notice.put()

    def acknowledge(self) -> None:
        """Workflow code has asked for it and knows."""
        self._scheduler.acknowledge_request()

    @property
    def unseen_request(self) -> dict[str, Any] | None:
        """The attributes of a request that no unit has heard of; None when there is none."""
        return self._attributes if self.requested and not self._scheduler.request_seen else None
