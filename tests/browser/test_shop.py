"""The demo's shop and the admin in a real browser, on real workers: a purchase from the shelf to the completed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from example_project.replay.buyer import order_number
from example_project.replay.day import read_day
from example_project.shop.orders import REVIEW_ABOVE
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
DAY = ROOT / "example_project" / "data" / "2017-06-14" / "basket_lines.csv"
DEADLINE = 60.0
#: Orders that are on the way to the desk together.
AT_ONCE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A running demo and its login."""

    url: str
    password: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """``manage.py demo --no-play`` on the database of this lane, in a folder of its own."""
    folder = tmp_path_factory.mktemp("demo")
    dropped = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"SHOP_VAR": str(folder), "DEMO_DB": os.environ.get("TEST_DB", "sqlite"), "PYTHONUNBUFFERED": "1"}
    output = folder / "demo.log"
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "demo", "--no-play"], cwd=ROOT, env=env, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while "keeps running" not in (said := output.read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        url = re.search(r"shop +(http://\S+?)/\n", said)
        password = re.search(r"login +demo / (\S+)", said)
        assert url is not None
        assert password is not None
        yield Demo(url=url[1], password=password[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def complaints(page: Any) -> list[str]:
    """What the browser complains about: violations of the content security policy, script errors, missing files."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def follow(page: Any, target: Any) -> None:
    """Click a link or button, and wait until the next page has been loaded whole.

    Playwright's click ends as soon as the navigation has begun, when half of a page may be there.
    """
    with page.expect_navigation():
        (page.locator(target).first if isinstance(target, str) else target).click()


def sign_in(page: Any, demo: Demo, *, to: str) -> None:
    page.goto(f"{demo.url}/login/?next={to}")
    page.fill("input[name=username]", "demo")
    page.fill("input[name=password]", demo.password)
    follow(page, "form button[type=submit], form button.primary, form button:not([name])")
    page.wait_for_url(f"**{to}")


def test_a_purchase_from_the_shelf_to_the_admin(page: Any, demo: Demo, complaints: list[str]) -> None:
    sign_in(page, demo, to="/")
    page.fill("input[name=q]", "milk")
    follow(page, "form.search button")
    cards = page.locator("li.card")
    assert cards.count() > 3
    for index in range(3):
        follow(page, page.locator("li.card").nth(index).locator("button"))

    page.goto(f"{demo.url}/cart/")
    assert page.locator("table tbody tr, ul.lines li, .line").count() >= 3
    follow(page, "text=Check out")
    page.wait_for_url("**/orders/*/")

    # the page refreshes itself: nobody reloads it
    page.wait_for_selector("text=Confirm the order", timeout=30_000)
    order = page.url.rstrip("/").rsplit("/", 1)[1]
    page.click("text=Confirm the order")
    page.wait_for_selector("[data-final]", timeout=30_000)

    page.goto(f"{demo.url}/admin/temporalex_django/instance/?q={order}")
    assert "ShoppingCart" in page.inner_text("#result_list")
    assert "completed" in page.inner_text("#result_list").lower()
    follow(page, "#result_list tbody tr th a")
    follow(page, "text=Raw")
    text = page.inner_text("#tx-main")
    for kind in ("WorkflowStarted", "UpdateAccepted", "SignalReceived", "ActivityScheduled", "WorkflowCompleted"):
        assert kind in text
    assert complaints == []


MILK = ({"product_id": "1000236", "quantity": 3, "amount": "45.00"},)


def place_order(page: Any, demo: Demo, number: str, lines: Sequence[Any] = MILK) -> None:
    """Start an order through the REST API, with the session of the page."""
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    body = {"workflow": "OrderProcess", "value": number, "args": {"customer": "ann", "lines": [*lines]}}
    answer = page.request.post(
        f"{demo.url}/api/instances/", data=body, headers={"X-CSRFToken": token, "Referer": demo.url}
    )
    assert answer.status == 201, answer.text()


def test_a_large_order_is_approved_at_the_clerks_desk(page: Any, demo: Demo, complaints: list[str]) -> None:
    sign_in(page, demo, to="/review/")
    place_order(page, demo, "42")
    approve = page.locator("button[aria-label='Approve order 42']")
    deadline = time.monotonic() + DEADLINE
    while not approve.count():
        assert time.monotonic() < deadline, page.inner_text("main")
        page.goto(f"{demo.url}/review/")
    assert "$45.00" in page.inner_text("main table")

    page.fill("#why42", "a regular")
    follow(page, approve)
    page.wait_for_selector("text=Order 42 is approved.")
    assert "No orders are waiting" in page.inner_text("main")

    page.goto(f"{demo.url}/admin/temporalex_django/instance/?q=order::42")
    assert "OrderProcess" in page.inner_text("#result_list")
    follow(page, "#result_list tbody tr th a")
    assert "demo" in page.inner_text("#tx-main")
    follow(page, "text=Raw")
    assert "a regular" in page.content()
    assert complaints == []


@pytest.mark.slow
def test_the_large_orders_of_a_day_are_decided_one_after_the_other(
    page: Any, demo: Demo, complaints: list[str]
) -> None:
    """All that are above the limit in the data of the demo, by a clerk who always takes what stands above."""
    large = {order_number(one): one for one in read_day(DAY).baskets if one.cents > REVIEW_ABOVE}
    assert len(large) == 83
    sign_in(page, demo, to="/review/")
    waiting, decided = [*large], list[str]()
    deadline = time.monotonic() + 5 * DEADLINE
    while len(decided) < len(large):
        assert time.monotonic() < deadline, (len(decided), page.inner_text("main"))
        button = page.locator("button[value=approve]").first
        if not button.count():
            if len(decided) + len(waiting) == len(large):  # in small parts: what the desk shows it reads one by one
                for number in waiting[:AT_ONCE]:
                    place_order(page, demo, number, [asdict(line) for line in large[number].lines])
                del waiting[:AT_ONCE]
            page.goto(f"{demo.url}/review/")
            continue
        number = str(button.get_attribute("aria-label")).rsplit(" ", 1)[1]
        follow(page, button)
        page.wait_for_selector(f"text=Order {number} is approved.")
        decided.append(number)
    assert sorted(decided) == sorted(large)
    inbox = page.request.get(f"{demo.url}/api/human-tasks/?workflow=OrderProcess").json()
    assert inbox["results"] == []
    last = page.request.get(f"{demo.url}/api/instances/order::{decided[-1]}/events/").text()
    assert "approved" in last and "demo" in last
    assert complaints == []


def test_pages_work_in_the_dark(page: Any, demo: Demo, complaints: list[str]) -> None:
    page.emulate_media(color_scheme="dark")
    sign_in(page, demo, to="/")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    channels = [int(n) for n in re.findall(r"\d+", background)[:3]]
    assert sum(channels) < 200, background

    def shows_a_worker() -> bool:
        page.goto(f"{demo.url}/admin/temporalex_django/instance/console/workers/")
        return page.locator(".tx-workers tbody th").count() >= 1

    wait_for(shows_a_worker)  # this may be the first test: workers register when the pages are there already
    assert complaints == []
