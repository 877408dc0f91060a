"""A customer with a cart: fills it line by line, checks out, confirms, and looks at the result."""

from __future__ import annotations

import time
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from example_project.replay.person import Person, Stuck, Visit
from example_project.replay.rest import Answer, Shop, value
from example_project.shop.money import amount, cents

if TYPE_CHECKING:
    from datetime import datetime

    from example_project.replay.clock import Clock
    from example_project.replay.day import Basket

#: A customer looks at the cart after this many lines, and before the checkout.
LOOK_EVERY = 5
#: Seconds after the checkout; the shop's own page looks once a second.
FIRST_LOOK = 0.2


class Customer(Person):
    """A customer with a cart. ``confirm_within``: seconds after which the shop counts silence as a confirmation."""

    def __init__(self, shop: Shop, *, clock: Clock, confirm_within: float, patience: float) -> None:
        super().__init__(shop, clock=clock, patience=patience)
        self.confirm_within = confirm_within

    @staticmethod
    def comes(basket: Basket) -> datetime:
        """Return the time of the first line."""
        return basket.begins

    def fill(self, visit: Visit) -> None:
        """Start the cart, add every line at its time, and check out."""
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
        # If the answer to the first checkout was lost, a second one reaches a cart that no longer accepts it. This is
        # harmless.
        self.insist(visit, lambda: self.shop.signal(basket.id, "checkout"), what="checkout", fine={HTTPStatus.ACCEPTED})

    def finish(self, visit: Visit) -> None:
        """Confirm as soon as the shop asks (or never), and take the result."""
        if visit.confirms:
            self._wait_for_phase(visit, phases={"confirming", "done", "failed", "cancelled"})
            self._confirm(visit)
        else:
            self.clock.sleep(self.confirm_within)
        visit.result = self.result_of(visit, visit.basket.id)

    def _start(self, visit: Visit) -> None:
        # Customers who mean to confirm get as long as they would wait themselves: on a slow machine the timeout must
        # not confirm in their place.
        within = max(self.confirm_within, self.patience) if visit.confirms else self.confirm_within
        args = {"customer": f"household of {visit.basket.id}", "confirm_within": within}
        lost = visit.resent

        def start() -> Answer:
            answer = self.shop.start(visit.basket.id, workflow="ShoppingCart", args=args)
            if answer.status == HTTPStatus.CONFLICT and visit.resent > lost:
                return self.shop.describe(visit.basket.id)  # our own start, whose answer was lost
            return answer

        answer = self.insist(visit, start, what="start")
        visit.run_id = str(answer.body.get("run_id", "")) if isinstance(answer.body, dict) else ""

    def _update(self, visit: Visit, name: str, *, args: Any, update_id: str) -> None:
        self.insist(
            visit, lambda: self.shop.update(visit.basket.id, name, args=args, update_id=update_id), what=update_id
        )

    def _look(self, visit: Visit, *, expected: int) -> None:
        answer = self.insist(visit, lambda: self.shop.query(visit.basket.id, "cart"), what="query of the cart")
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
        self.insist(visit, confirm, what="confirm", fine={HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})

    def _wait_for_phase(self, visit: Visit, *, phases: set[str]) -> None:
        deadline, pause = time.monotonic() + self.patience, FIRST_LOOK
        while True:
            self.clock.sleep(pause)
            answer = self.insist(visit, lambda: self.shop.query(visit.basket.id, "status"), what="query of the status")
            status = value(answer.body)
            if status["phase"] in phases:
                return
            self.patient(deadline, what=f"phase {status['phase']}")
            pause = min(pause * 1.3, 0.5)
