"""What customers of the replay ask the shop for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from example_project.replay.clock import Clock
from example_project.replay.customer import Customer
from example_project.replay.day import Basket
from example_project.replay.person import Visit
from example_project.replay.rest import Answer, Shop


class Slow:
    """A shop where a run is open when it is asked for the first time."""

    def __init__(self) -> None:
        self.answers = [
            Answer(status=202, body={"status": "waiting", "detail": "waiting for charge"}),
            Answer(status=200, body={"status": "completed", "result": {"total": "1.00"}}),
        ]

    def result(self, run_id: str) -> Answer:
        return self.answers.pop(0)


def test_a_customer_asks_for_the_result_until_there_is_one_and_for_nothing_else() -> None:
    visit = Visit(basket=Basket(id="7", stamp=datetime.now(UTC), lines=()))
    shop: Any = Slow()
    clock = Clock(begins=visit.basket.stamp, speed=1)
    customer = Customer(cast("Shop", shop), clock=clock, confirm_within=1, patience=60)

    assert customer.result_of(visit, "7") == {"total": "1.00"}
    assert (shop.answers, visit.resent) == ([], 0)
