"""The console in a browser: it stays true by itself, and keeps what somebody does on it, under a strict CSP."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import timezone

from temporalex_django.models import HumanTask, Instance
from tests.browser.test_admin import CONSOLE, Operator, operator  # noqa: F401 - the last is a fixture
from tests.support.broken_runs import broken_fleet
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.commands import shell
from tests.support.invoices import ACCOUNTING, InvoiceDesk

pytestmark = pytest.mark.django_db(transaction=True)

#: Longer than two polls.
PATIENCE = 15_000


def polled(page: Any) -> None:
    """Wait for the answer to the next poll."""
    with page.expect_response(lambda response: "mark=" in response.url, timeout=PATIENCE):
        pass


def test_a_change_is_shown_in_place_and_nothing_that_somebody_does_is_lost(operator: Operator) -> None:  # noqa: F811
    for name in ("a", "b", "c"):
        Basket.start(id=name)
    drain()
    page = operator.page
    page.goto(f"{operator.url}{CONSOLE}runs/")
    operator.looks()
    page.locator("#tx-q").fill("half of a wo")
    box = page.get_by_role("checkbox", name="Select b", exact=True)
    box.check()
    box.focus()
    page.evaluate("window.row = document.querySelector('.tx-runs tbody tr')")

    Basket.handle("a").terminate("enough")
    page.wait_for_selector(".tx-runs >> text=Terminated", timeout=PATIENCE)
    assert box.is_checked()
    assert box.evaluate("e => e === document.activeElement")
    assert page.locator("#tx-q").input_value() == "half of a wo"
    assert page.evaluate("row.isConnected")
    assert "live" in page.inner_text("#tx-status")

    Basket.start(id="d")
    page.wait_for_selector("text=1 new run: show", timeout=PATIENCE)
    assert page.locator(".tx-runs tbody tr").count() == 3
    assert page.get_by_role("checkbox", name="Select b", exact=True).is_checked()
    page.wait_for_function("document.getElementById('tx-say').textContent === '1 new run'", timeout=PATIENCE)
    operator.looks()
    with page.expect_navigation():
        page.get_by_role("link", name="show", exact=True).click()
    assert page.locator(".tx-runs tbody tr").count() == 4


def test_open_details_stay_open_while_their_page_changes(operator: Operator) -> None:  # noqa: F811
    Sleepy.start(id="a")
    drain()
    page = operator.page
    page.goto(f"{operator.url}{CONSOLE}")
    page.evaluate(
        """() => {
            const details = document.createElement('details');
            details.id = 'kept';
            details.innerHTML = '<summary>more</summary>text';
            details.open = true;
            document.body.append(details);
            const fresh = document.createElement('details');
            fresh.id = 'kept';
            fresh.innerHTML = '<summary>more</summary>other text';
            htmx.swap({target: details, text: fresh.outerHTML, swap: 'outerMorph', sourceElement: details});
        }"""
    )
    page.wait_for_selector("text=other text", timeout=PATIENCE)
    assert page.locator("#kept").evaluate("e => e.open")
    assert operator.complaints == []


def test_a_hidden_page_does_not_ask_and_one_without_a_session_says_so(operator: Operator) -> None:  # noqa: F811
    Basket.start(id="a")
    drain()
    page, asked = operator.page, list[str]()
    page.on("request", lambda request: asked.append(request.url) if "mark=" in request.url else None)
    page.goto(f"{operator.url}{CONSOLE}runs/")
    polled(page)
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    asked.clear()
    page.wait_for_timeout(6_000)
    assert asked == []

    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    operator.allowed = ("401 (Unauthorized)",)
    page.context.clear_cookies()
    page.wait_for_selector("text=You are signed out", timeout=PATIENCE)
    assert page.get_by_role("link", name="Sign in again").get_attribute("href") == page.url
    asked.clear()
    page.wait_for_timeout(6_000)
    assert asked == []


def test_twenty_runs_are_seen_at_once(operator: Operator) -> None:  # noqa: F811
    for number in range(30):
        (Basket if number % 2 else Sleepy).start(id=f"a-run-with-a-long-id-{number}")
    drain()
    page = operator.page
    page.goto(f"{operator.url}{CONSOLE}runs/")
    operator.looks()
    if page.viewport_size["width"] < 1000:
        return
    seen = page.evaluate(
        "[...document.querySelectorAll('.tx-runs tbody tr')].filter(e => e.getBoundingClientRect().bottom <= innerHeight)"
        ".length"
    )
    share = page.evaluate(
        "document.querySelector('.tx-runs tbody .tx-col-text').offsetWidth / document.querySelector('.tx-runs').offsetWidth"
    )
    assert seen >= 20
    assert 0.4 < share < 0.5


def test_the_overview_of_a_broken_fleet(operator: Operator) -> None:  # noqa: F811
    broken_fleet()
    page = operator.page
    page.goto(f"{operator.url}{CONSOLE}")
    operator.looks()
    assert "3 activities of" in operator.reads
    operator.tabs_to("link", "Retry all 3…")
    operator.presses("link", "Retry all 3…")
    operator.presses("link", "No, back to the runs")
    assert page.locator(".tx-runs tbody tr").count() == 3
    page.goto(f"{operator.url}{CONSOLE}runs/?colour=red")
    operator.complaints.clear()  # the browser names the status 400
    operator.looks()
    operator.presses("link", "Show the list without it")
    assert page.locator(".tx-runs tbody tr").count() == Instance.objects.count()


def test_it_works_without_javascript(browser: Any, live_server: Any) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, java_script_enabled=False)
    page = context.new_page()
    broken_fleet()
    somebody = Operator(page, live_server.url)
    somebody.signs_in(looks=False)
    page.goto(f"{live_server.url}{CONSOLE}")
    page.get_by_role("link", name="Retry all 3…").click()
    assert "3 of 3 selected runs" in page.inner_text("#tx-main")
    page.goto(f"{live_server.url}{CONSOLE}runs/")
    assert page.locator(".tx-runs tbody tr").count() == Instance.objects.count()
    page.get_by_role("checkbox", name="Select red-1").check()
    page.locator("select[name=action]").select_option(label="Pause…")
    page.get_by_role("button", name="Go", exact=True).click()
    assert "1 of 1 selected run" in page.inner_text("#tx-main")
    page.unroute_all(behavior="ignoreErrors")
    context.close()


def test_tasks_are_given_to_another_person_in_three_clicks(operator: Operator) -> None:  # noqa: F811
    page, people = operator.page, get_user_model().objects
    people.create_user("ann").groups.add(Group.objects.create(name=ACCOUNTING))
    for number in range(3):
        InvoiceDesk.start(str(number), {"number": number, "total": 5, "form": None})
    drain()
    page.goto(f"{operator.url}{CONSOLE}")
    operator.presses("link", "Human tasks")
    row = page.get_by_role("checkbox", name="Select Approve invoice 1 over 5 EUR")
    row.check()
    page.get_by_label("To", exact=True).select_option("ann")
    page.get_by_label("Reason").fill("on leave")
    HumanTask.objects.filter(workflow_id="invoice::2").update(escalated_at=timezone.now())
    page.wait_for_selector(".tx-tasks >> text=Escalated", timeout=PATIENCE)
    assert row.is_checked()
    operator.presses("button", "Reassign")
    assert "1 task was given to ann." in operator.reads
    assert HumanTask.objects.get(workflow_id="invoice::1").delegated[0]["to"] == "ann"


def test_the_page_of_releases_and_of_a_task_of_the_console(operator: Operator) -> None:  # noqa: F811
    InvoiceDesk.start("1", {"number": 1, "total": 5, "form": "schema"})
    drain()
    page = operator.page
    page.goto(f"{operator.url}{CONSOLE}deploy/")
    operator.looks()
    shell("doctor", "--deploy", "--record", "2027.3")
    page.wait_for_selector("text=Its runs would continue.", timeout=PATIENCE)
    operator.looks()
    page.goto(f"{operator.url}{CONSOLE}desk/{HumanTask.objects.get().pk}/")
    operator.looks()
    assert page.locator("h1").count() == 1
    operator.presses("button", "Claim")
    assert "You have claimed it." in operator.reads
