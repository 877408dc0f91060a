"""The base of everybody who deals with the shop: ask until there is an answer, wait for the end of a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from example_project.replay.rest import Answer, LostAnswer, Shop, value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from example_project.replay.clock import Clock
    from example_project.replay.day import Basket


class Stuck(Exception):
    """The shop did something that a customer would complain about."""


@dataclass(slots=True, kw_only=True)
class Visit:
    """The record of one basket. ``result`` has total, lines, units and charge, and more according to the flow."""

    basket: Basket
    confirms: bool = True
    run_id: str = ""
    added: int = 0
    resent: int = 0
    waits: list[float] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problem: str = ""


class Person(ABC):
    """A person who plays visits.

    ``patience``: seconds until they give up on an answer, or on an order. While other orders end, they go on waiting:
    on a slow machine an order waits behind hundreds of others.
    """

    def __init__(self, shop: Shop, *, clock: Clock, patience: float) -> None:
        self.shop = shop
        self.clock = clock
        self.patience = patience
        self._last_end = time.monotonic()

    @staticmethod
    @abstractmethod
    def comes(basket: Basket) -> datetime:
        """Return the time of the day at which the person first deals with the shop."""

    @abstractmethod
    def fill(self, visit: Visit) -> None:
        """Buy the basket."""

    @abstractmethod
    def finish(self, visit: Visit) -> None:
        """Wait for the order and store its result in the visit."""

    def result_of(self, visit: Visit, run: str) -> dict[str, Any]:
        """Wait until the run is closed and return its result. Raises ``Stuck`` if it did not complete."""
        deadline, pause = time.monotonic() + self.patience, 0.1
        while True:
            # The shop answers once the run is closed, or after a while that it is still open: no need to poll often.
            answer = self.insist(visit, lambda: self.shop.result(run), what="result", fine={HTTPStatus.ACCEPTED})
            status = answer.body["status"]
            if answer.status != HTTPStatus.ACCEPTED:
                break
            self.patient(deadline, what=f"run is {status}: {answer.body.get('detail')}")
            self.clock.sleep(pause)  # if too many wait, the shop answers at once
            pause = min(pause * 1.3, 0.5)
        self._last_end = time.monotonic()
        result = value(answer.body)
        if status != "completed" or not isinstance(result, dict):
            message = f"run is {status}: {answer.reason}"
            raise Stuck(message)
        return result

    def insist(
        self, visit: Visit, ask: Callable[[], Answer], *, what: str, fine: frozenset[int] | set[int] = frozenset()
    ) -> Answer:
        """Ask until there is an answer. Every request may be sent twice, so a lost answer is no problem."""
        deadline, pause = time.monotonic() + self.patience, 0.05
        while True:
            try:
                answer = ask()
            except LostAnswer as lost:
                reason = str(lost)
            else:
                if answer.ok or answer.status in fine:
                    return answer
                reason = answer.reason
                if not answer.again:
                    message = f"{what}: {reason}"
                    raise Stuck(message)
            self.patient(deadline, what=f"{what}: {reason}")
            visit.resent += 1
            self.clock.sleep(pause)
            pause = min(pause * 2, 1.0)

    def patient(self, deadline: float, *, what: str) -> None:
        """Raise ``Stuck`` if the deadline has passed, and no order has ended for as long as the person is patient."""
        if time.monotonic() > max(deadline, self._last_end + self.patience):
            message = f"gave up after {self.patience:g} s: {what}"
            raise Stuck(message)
