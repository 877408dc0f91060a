"""An operator's day: failures with one cause are found, understood and repaired with few clicks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.db import background_hooks
from temporalex_django.models import ActivityTask, Chain, Instance, Worker
from tests.browser.test_admin import CONSOLE, Operator, operator  # noqa: F401 - the second is a fixture
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)

BANK = {"is_away": True}
_MOST_CLICKS_TO_RETRY, _MOST_CLICKS_TO_RESET = 3, 4


@activity(name="day.charge", retry=RetryPolicy(initial_interval=3600, max_attempts=9))
def charge_the_card(order: int) -> int:
    if BANK["is_away"]:
        raise ConnectionError("the bank is away")
    return order


class Sale(Workflow):
    """Charges a card."""

    name = "test.SaleOfTheDay"

    async def run(self, order: int) -> Ok[int]:
        if order < 0:
            raise KeyError("vat")
        return Ok(await charge_the_card(order))


class Clicks:
    """Counts what an operator clicks or chooses."""

    def __init__(self, somebody: Operator) -> None:
        self.operator = somebody
        self.count = 0

    def on(self, locator: Any) -> None:
        self.count += 1
        with self.operator.page.expect_navigation():
            locator.click()
        self.operator.looks()


@pytest.fixture(autouse=True)
def _the_bank_is_away() -> Iterator[None]:
    BANK["is_away"] = True
    yield
    BANK["is_away"] = True


def test_five_failures_with_one_cause_are_retried_together(operator: Operator) -> None:  # noqa: F811 - the fixture
    for order in range(1, 6):
        Sale.start(order, id=f"sale-{order}")
    drain()
    page, clicks = operator.page, Clicks(operator)
    page.goto(f"{operator.url}{CONSOLE}")
    cause = ActivityTask.objects.values_list("cause", flat=True)[0]
    assert f"5 activities of test.SaleOfTheDay: {cause}" in operator.reads  # what is wrong, and with how many

    clicks.on(page.get_by_role("link", name="Retry all 5…"))
    assert "The action can currently be applied to 5 activities in 5 of 5 selected runs." in operator.reads
    BANK["is_away"] = False
    page.get_by_label("Reason").fill("the bank is back")
    clicks.on(page.get_by_role("button", name="Retry now", exact=True))
    while background_hooks.run_hooks("default"):
        pass
    drain()

    assert {run.status for run in Instance.objects.all()} == {"completed"}
    assert clicks.count <= _MOST_CLICKS_TO_RETRY


def test_a_run_is_reset_from_a_row_of_its_history(operator: Operator) -> None:  # noqa: F811 - the fixture
    BANK["is_away"] = False
    Sale.start(7, id="sale-7")
    drain()
    first = Instance.objects.get().pk
    page, clicks = operator.page, Clicks(operator)
    page.goto(f"{operator.url}{CONSOLE}runs/")

    clicks.on(page.locator(".tx-runs tbody th a").first)
    page.locator(".tx-menu > summary").first.click()
    clicks.count += 1
    clicks.on(page.get_by_role("link", name="Reset to here").first)
    page.get_by_label("Reason").fill("charged the wrong card")
    clicks.on(page.get_by_role("button", name="Reset", exact=True))
    drain()

    assert Instance.objects.exclude(pk=first).get().status == "completed"
    assert str(first) not in page.url  # it leads to the new run
    assert clicks.count <= _MOST_CLICKS_TO_RESET


def test_a_blocked_run_is_understood_with_two_clicks(operator: Operator) -> None:  # noqa: F811 - the fixture
    BANK["is_away"] = False
    Sale.start(3, id="sale-3")
    drain()
    mark = {"code": "fault", "error": "the code has parted", "since": timezone.now().isoformat(), "attempt": 1}
    Instance.objects.update(status="running", closed_at=None, blocked=mark, cause="X at y.py:1", fault="X y.py:z")
    Chain.objects.update(open_key="sale-3", closed=False)
    page, clicks = operator.page, Clicks(operator)
    page.goto(f"{operator.url}{CONSOLE}")

    clicks.on(page.get_by_role("link", name="1 Need attention"))
    clicks.on(page.locator(".tx-runs tbody th a").first)

    assert "the code has parted" in operator.reads
    assert clicks.count == 2


def test_a_worker_is_drained_with_two_clicks(operator: Operator) -> None:  # noqa: F811 - the fixture
    now = timezone.now()
    Worker.objects.create(
        id=uuid.uuid4(), epoch=1, kind="worker", host="box", pid=1, queues=["default"], workflows={}, started_at=now,
        beat_at=now, expires_at=now + timedelta(hours=1),
    )  # fmt: skip
    page, clicks = operator.page, Clicks(operator)
    page.goto(f"{operator.url}{CONSOLE}")

    clicks.on(page.get_by_role("link", name="1 Workers alive"))
    clicks.on(page.get_by_role("button", name="Drain box:1"))

    assert "The worker will stop taking new work" in operator.reads
    assert Worker.objects.get().drained_at is not None
    assert clicks.count == 2
