"""An operator's shift over a broken fleet: from the overview, everything is seen and repaired in few clicks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.db import background_hooks
from temporalex_django.models import HumanTask, Instance, Schedule, Worker
from tests.browser.test_admin import CONSOLE, Operator, operator  # noqa: F401 - the second is a fixture
from tests.support import fleet
from tests.support.client_flows import drain
from tests.support.commands import shell

pytestmark = pytest.mark.django_db(transaction=True)

#: Clicks from the overview, at most. Choosing a row or opening a menu is a click; what is typed is none.
MOST_CLICKS = {
    "the whole": 0,
    "a stuck run and why": 2,
    "retry one": 3,
    "retry five": 3,
    "retry 143": 3,
    "reset": 4,
    "last night": 2,
    "backfill": 4,
    "reassign": 3,
    "drain": 2,
    "deploy": 1,
}


@activity(name="day.charge", retry=RetryPolicy(initial_interval=3600, max_attempts=9))
def charge_the_card(order: int) -> int:
    if "bank" in fleet.AWAY:
        raise ConnectionError("the bank is away")
    return order


class Sale(Workflow):
    """Charges a card."""

    name = "test.SaleOfTheDay"

    async def run(self, order: int) -> Ok[int]:
        return Ok(await charge_the_card(order))


class Shift:
    """What an operator does, each task from the overview, with the clicks that it takes."""

    def __init__(self, somebody: Operator) -> None:
        self.operator, self.page = somebody, somebody.page
        self.clicks: dict[str, int] = {}
        self._now = ""

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        self._now = name
        self.clicks[name] = 0
        self.page.goto(f"{self.operator.url}{CONSOLE}")
        self.operator.looks()
        yield
        assert self.clicks[name] <= MOST_CLICKS[name], name

    def goes(self, role: str, name: str) -> None:
        """Click something that leads to another page."""
        self.clicks[self._now] += 1
        with self.page.expect_navigation():
            self.page.get_by_role(role, name=name, exact=True).first.click()
        self.operator.looks()

    def opens_first(self) -> None:
        """Click the first run of the list."""
        self.clicks[self._now] += 1
        with self.page.expect_navigation():
            self.page.locator(".tx-runs tbody th a").first.click()
        self.operator.looks()

    def picks(self, locator: Any) -> None:
        """Click something that stays on the page."""
        self.clicks[self._now] += 1
        locator.click()

    def gives_reason(self, text: str) -> None:
        self.page.get_by_label("Reason").first.fill(text)

    def confirms_job(self) -> None:
        self.gives_reason("the bank is back")
        self.goes("button", "Retry now")
        while background_hooks.run_hooks("default"):
            pass
        drain()


@pytest.fixture
def _broken_fleet() -> Iterator[None]:
    try:
        fleet.start_fleet()
        Sale.start(1, id="sale-1")
        fleet.break_fleet()
        yield
    finally:
        fleet.AWAY.clear()


@pytest.fixture
def _worker() -> None:
    now = timezone.now()
    Worker.objects.create(
        id=uuid.uuid4(), epoch=1, kind="worker", host="box", pid=1, queues=["default"], workflows={}, started_at=now,
        beat_at=now, expires_at=now + timedelta(hours=1),
    )  # fmt: skip


@pytest.mark.usefixtures("_broken_fleet", "_worker")
def test_a_shift_over_a_broken_fleet(operator: Operator) -> None:  # noqa: F811 - the fixture
    shift, page = Shift(operator), operator.page

    with shift.task("the whole"):
        for text in (
            "143 activities of fleet.Checkout: fleet.charge: ConnectionError",
            "5 activities of fleet.Mailing: fleet.send_mail: OSError",
            "1 activity of test.SaleOfTheDay: day.charge: ConnectionError",
            "14 runs of fleet.Claim: NondeterminismError",
            "12 runs of fleet.Onboard: fleet.look_up_vat: KeyError",
            "The schedule rates has left out its last 8 slots",
            "the group ghosts does not exist",
            "Start a worker with the class fleet.Dropped",
        ):
            assert text in operator.reads, text

    with shift.task("a stuck run and why"):
        shift.goes("link", "27 Need attention")
        shift.opens_first()
        assert "KeyError: 'CHF' in support/fleet.py" in operator.reads

    fleet.AWAY.clear()
    for name, button, count in (
        ("retry one", "Retry it…", "1 activity in 1 of 1 selected run"),
        ("retry five", "Retry all 5…", "5 activities in 5 of 5 selected runs"),
        ("retry 143", "Retry all 143…", "143 activities in 143 of 143 selected runs"),
    ):
        with shift.task(name):
            shift.goes("link", button)
            assert f"The action can currently be applied to {count}." in operator.reads
            shift.confirms_job()
    repaired = Instance.objects.filter(workflow__in=(Sale.name, fleet.Mailing.name, fleet.Checkout.name))
    assert set(repaired.values_list("status", flat=True)) == {"completed"}
    assert repaired.count() == 149

    _reset_and_look_at_schedules(shift)
    _give_drain_and_deploy(shift)
    assert shift.clicks.keys() == MOST_CLICKS.keys()
    assert page.url.endswith("/deploy/")


def _reset_and_look_at_schedules(shift: Shift) -> None:
    page, operator = shift.page, shift.operator  # noqa: F811 - not the fixture
    with shift.task("reset"):
        shift.goes("link", "12 Failed in 24 h")
        shift.opens_first()
        first = page.url
        shift.goes("link", "Reset")
        shift.gives_reason("the firm has a VAT number now")
        shift.goes("button", "Reset")
        assert page.url != first  # it leads to the new run
        assert "runs/" in page.url

    with shift.task("last night"):
        shift.goes("link", "Schedules")
        strip = page.locator("#tx-live tr", has_text="rates").locator(".tx-outcomes")
        assert strip.locator("li").count() == 9
        assert "the run rates-1 is in the way" in operator.reads or strip.get_by_role("link").count() == 9

    with shift.task("backfill"):
        Schedule.objects.filter(name="rates").update(overlap="allow_all")
        shift.goes("link", "Schedules")
        shift.goes("link", "Backfill… rates")
        page.get_by_label("From").fill("2026-01-01T00:00")
        page.get_by_label("To", exact=True).fill("2026-01-01T00:03")
        shift.goes("button", "Preview")
        shift.goes("button", "Start 4 runs")
        assert "Backfill: 0 of 4 slots" in operator.reads


def _give_drain_and_deploy(shift: Shift) -> None:
    page, operator = shift.page, shift.operator  # noqa: F811 - not the fixture
    with shift.task("reassign"):
        shift.goes("link", "Human tasks")
        task = HumanTask.objects.get(workflow_id="refund-ghost")
        shift.picks(page.locator(f"#t-{task.pk.hex} input"))
        page.get_by_label("To", exact=True).focus()
        page.keyboard.type("ann")
        shift.gives_reason("on leave")
        shift.goes("button", "Reassign")
        task.refresh_from_db()
        assert task.delegated[0]["to"] == "ann"

    with shift.task("drain"):
        shift.goes("link", "1 Workers alive")
        shift.goes("button", "Drain box:1")
        assert Worker.objects.get().drained_at is not None

    shell("doctor", "--deploy", "--record", "2027.3")
    with shift.task("deploy"):
        shift.goes("link", "Deploy")
        assert "The code of 2027.3 was compared with the open runs" in operator.reads
        assert "fleet.Dropped" in operator.reads


def test_a_run_is_reset_from_a_row_of_its_history(operator: Operator) -> None:  # noqa: F811 - the fixture
    Sale.start(7, id="sale-7")
    drain()
    first = Instance.objects.get().pk
    shift, page = Shift(operator), operator.page
    with shift.task("reset"):
        page.goto(f"{operator.url}{CONSOLE}runs/")
        shift.opens_first()
        shift.picks(page.locator(".tx-menu > summary").first)
        shift.goes("link", "Reset to here")
        shift.gives_reason("charged the wrong card")
        shift.goes("button", "Reset")
    drain()

    assert Instance.objects.exclude(pk=first).get().status == "completed"
    assert str(first) not in page.url  # it leads to the new run
