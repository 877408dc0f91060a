"""A few runs, some of them in trouble: activities that fail alike, a failed run, a blocked one, a task that is late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.models import HumanTask, Instance
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.invoices import PlainQuestion


@activity(name="console.pay", retry=RetryPolicy(initial_interval=3600, max_attempts=9))
def pay_at_the_console(order: int) -> None:
    raise ConnectionError("the bank is away")


class Purchase(Workflow):
    name = "test.PurchaseInTheConsole"

    async def run(self, order: int) -> Any:
        if order < 0:
            raise KeyError("vat")
        return Ok(await pay_at_the_console(order))


def broken_fleet() -> None:
    for order in (1, 2, 3):
        Purchase.start(order, id=f"red-{order}")
    Purchase.start(-1, id="blue-1")
    Basket.start(id="red-basket")
    Sleepy.start(id="blue-blocked")
    PlainQuestion.start({"title": "Shall we?", "users": ["root"]}, id="red-question")
    drain()
    Instance.objects.filter(workflow_id="blue-blocked").update(
        blocked={"code": "fault", "error": "TypeError: x", "since": timezone.now().isoformat(), "attempt": 3},
        cause="TypeError at flows.py:9",
        fault="TypeError flows.py:run",
    )
    HumanTask.objects.update(due_at=timezone.now() - timedelta(hours=1))
