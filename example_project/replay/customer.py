"""One customer: fills a cart line by line, checks out, confirms, and looks at the result."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from example_project.replay.rest import Answer, LostAnswer, Shop, value
from example_project.shop.money import amount, cents

if TYPE_CHECKING:
    from collections.abc import Callable

    from example_project.replay.clock import Clock
    from example_project.replay.day import Basket

#: The page with the cart is looked at after every so many lines, and before the checkout.
LOOK_EVERY = 5
CLOSED = {"completed", "failed", "cancelled", "terminated", "timed_out"}


class Stuck(Exception):
    """The shop did something that a customer would complain about."""


@dataclass(slots=True, kw_only=True)
class Visit:
    """What happened to one basket."""

    basket: Basket
    confirms: bool
    run_id: str = ""
    added: int = 0
    resent: int = 0
    waits: list[float] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problem: str = ""


class Customer:
    """Plays visits. ``patience``: seconds until the customer gives up on an answer, or on the order after the checkout."""

    def __init__(self, shop: Shop, *, clock: Clock, confirm_within: float, patience: float) -> None:
        self.shop = shop
        self.clock = clock
        self.confirm_within = confirm_within
        self.patience = patience

    def fill(self, visit: Visit) -> None:
        """Start the cart, add every line in its time, check out."""
        basket = visit.basket
        self.clock.wait_until(basket.begins)
        self._start(visit)
        for number, line in enumerate(basket.lines, start=1):
            self.clock.wait_until(basket.arrival(number))
            begun = time.monotonic()
            self._update(visit, "add_item", args=asdict(line), update_id=f"{basket.id}-{number}")
            visit.waits.append(time.monotonic() - begun)
            visit.added += 1
            if number % LOOK_EVERY == 0 or number == len(basket.lines):
                self._look(visit, expected=number)
        self.clock.wait_until(basket.stamp)
        # A second checkout, sent because the answer to the first was lost, finds a cart that no longer listens: harmless.
        self._insist(
            visit, lambda: self.shop.signal(basket.id, "checkout"), what="checkout", fine={HTTPStatus.ACCEPTED}
        )

    def finish(self, visit: Visit) -> None:
        """Confirm as soon as the shop asks (or never), and take the result."""
        if visit.confirms:
            self._wait_for_phase(visit, phases={"confirming", "done", "failed", "cancelled"})
            self._confirm(visit)
        else:
            self.clock.sleep(self.confirm_within)
        visit.result = self._result(visit)

    def _start(self, visit: Visit) -> None:
        # Whoever means to confirm is given as long as he would wait himself: a slow machine must not confirm in his place.
        within = max(self.confirm_within, self.patience) if visit.confirms else self.confirm_within
        args = {"customer": f"household of {visit.basket.id}", "confirm_within": within}
        lost = visit.resent

        def start() -> Answer:
            answer = self.shop.start(visit.basket.id, workflow="ShoppingCart", args=args)
            if answer.status == HTTPStatus.CONFLICT and visit.resent > lost:
                return self.shop.describe(visit.basket.id)  # our own start, whose answer was lost
            return answer

        answer = self._insist(visit, start, what="start")
        visit.run_id = str(answer.body.get("run_id", "")) if isinstance(answer.body, dict) else ""

    def _update(self, visit: Visit, name: str, *, args: Any, update_id: str) -> None:
        self._insist(
            visit, lambda: self.shop.update(visit.basket.id, name, args=args, update_id=update_id), what=update_id
        )

    def _look(self, visit: Visit, *, expected: int) -> None:
        answer = self._insist(visit, lambda: self.shop.query(visit.basket.id, "cart"), what="query of the cart")
        cart = value(answer.body)
        total = amount(sum(cents(line.amount) for line in visit.basket.lines[:expected]))
        if cart["item_count"] != expected or cart["total"] != total:
            message = (
                f"the page shows {cart['item_count']} lines, {cart['total']}; the customer put in {expected}, {total}"
            )
            raise Stuck(message)

    def _confirm(self, visit: Visit) -> None:
        def confirm() -> Answer:
            return self.shop.update(visit.basket.id, "confirm", args=None, update_id=f"{visit.basket.id}-confirm")

        # Refused or closed: the timeout was faster. Not an error of the shop; the report says how each was confirmed.
        self._insist(visit, confirm, what="confirm", fine={HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})

    def _wait_for_phase(self, visit: Visit, *, phases: set[str]) -> None:
        deadline, pause = time.monotonic() + self.patience, 0.1
        while True:
            answer = self._insist(visit, lambda: self.shop.query(visit.basket.id, "status"), what="query of the status")
            status = value(answer.body)
            if status["phase"] in phases:
                return
            self._patient(deadline, what=f"phase {status['phase']}")
            self.clock.sleep(pause)
            pause = min(pause * 1.3, 0.5)

    def _result(self, visit: Visit) -> dict[str, Any]:
        deadline, pause = time.monotonic() + self.patience, 0.1
        while True:
            answer = self._insist(visit, lambda: self.shop.describe(visit.basket.id), what="status of the run")
            status = answer.body["status"]
            if status in CLOSED:
                break
            self._patient(deadline, what=f"run is {status}, waits for {answer.body.get('waiting_for')}")
            self.clock.sleep(pause)
            pause = min(pause * 1.3, 0.5)
        answer = self._insist(visit, lambda: self.shop.result(visit.basket.id), what="result")
        result = value(answer.body)
        if status != "completed" or not isinstance(result, dict):
            message = f"run is {status}: {answer.reason}"
            raise Stuck(message)
        return result

    def _insist(
        self, visit: Visit, ask: Callable[[], Answer], *, what: str, fine: frozenset[int] | set[int] = frozenset()
    ) -> Answer:
        """Ask until there is an answer. Everything a customer sends may be sent twice, so a lost answer is no problem."""
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
            self._patient(deadline, what=f"{what}: {reason}")
            visit.resent += 1
            self.clock.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _patient(self, deadline: float, *, what: str) -> None:
        if time.monotonic() > deadline:
            message = f"gave up after {self.patience:g} s: {what}"
            raise Stuck(message)
