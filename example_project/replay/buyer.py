"""A customer who orders everything at once: the order is a graph and proceeds without them."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from example_project.replay.person import Person, Stuck, Visit
from example_project.shop.orders import ORDER, OrderProcess

if TYPE_CHECKING:
    from example_project.replay.day import Basket
    from example_project.replay.rest import Answer

#: Basket ids that are order numbers as they stand. Others are written in hexadecimal after an x, so that no two baskets
#: have one number.
PLAIN = re.compile(r"(?!x)[a-z0-9]+", re.ASCII)


def order_number(basket: Basket) -> str:
    """Return the number under which a basket is ordered."""
    return basket.id if PLAIN.fullmatch(basket.id) else f"x{basket.id.encode().hex()}"


class Buyer(Person):
    """A customer who orders at the moment of the basket's checkout."""

    @staticmethod
    def comes(basket: Basket) -> datetime:
        """Return the time of the checkout."""
        return basket.stamp

    def fill(self, visit: Visit) -> None:
        """Send the order."""
        basket = visit.basket
        self.clock.wait_until(basket.stamp)
        lines = [asdict(line) for line in basket.lines]
        args = {"customer": f"household of {basket.id}", "lines": lines}
        begun, sent = datetime.now(UTC), time.monotonic()
        lost = visit.resent

        def start() -> Answer:
            if visit.resent > lost and (ours := self._started(visit, since=begun)):
                return ours
            answer = self.shop.start_by_value(order_number(basket), workflow=OrderProcess.name, args=args)
            if answer.status == HTTPStatus.CONFLICT and visit.resent > lost:
                return self._started(visit, since=begun) or answer
            return answer

        answer = self.insist(visit, start, what="order")
        visit.waits.append(time.monotonic() - sent)
        visit.run_id = str(answer.body["run_id"])
        visit.added = len(lines)

    def _started(self, visit: Visit, *, since: datetime) -> Answer | None:
        """Return our own order if only the answer was lost; an order of an earlier play began before ``since``."""
        found = self.shop.describe(_run(visit))
        if not found.ok:
            return None
        return found if datetime.fromisoformat(found.body["created_at"]) >= since else None

    def finish(self, visit: Visit) -> None:
        """Wait for the invoice."""
        steps = self.result_of(visit, _run(visit))
        if "send_invoice" not in steps:
            message = f"the order was cancelled: {steps['cancel_order']['reason']}"
            raise Stuck(message)
        visit.result = sale(steps)


def sale(steps: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a delivered order in the form that the books use."""
    sums = steps["validate_order"]
    return {
        **{name: sums[name] for name in ("total", "lines", "units")},
        "charge": steps.get("charge_payment"),
        "reviewed": "review" in steps,
        "approved_by": steps.get("review", {}).get("by"),
        "delivered": "trace_parcel" not in steps,
        "invoice": steps["send_invoice"]["number"],
    }


def _run(visit: Visit) -> str:
    return ORDER.id_for(order_number(visit.basket))
