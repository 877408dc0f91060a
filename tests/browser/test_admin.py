"""An operator steers a blocked, a failing and a waiting run from the admin alone, click by click, under a strict CSP.

Each in the light on a wide screen, in the dark on a telephone, and with the keyboard alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model

from temporalex_django import Ok, RetryPolicy, Workflow, activity
from temporalex_django.models import Instance, OperatorAction
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db(transaction=True)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
RUNS = "/admin/temporalex_django/instance/"


@activity(retry=RetryPolicy(initial_interval=100, max_attempts=20))
def refused_at_the_counter() -> None:
    raise ConnectionError("refused at the counter")


class AtTheCounter(Workflow):
    name = "test.AtTheCounter"

    async def run(self, args: Any) -> Any:
        return Ok(await refused_at_the_counter())


class Operator:
    """Somebody at a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on(
            "console",
            lambda said: (
                self.complaints.append(said.text)
                if said.type == "error" and "409 (Conflict)" not in said.text
                else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.route("**/*", self._strictly)

    @staticmethod
    def _strictly(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": CSP})

    def signs_in(self) -> None:
        get_user_model().objects.create_superuser("root", password="secret")
        self.page.goto(f"{self.url}{RUNS}")
        self.page.fill("input[name=username]", "root")
        self.page.fill("input[name=password]", "secret")
        with self.page.expect_navigation():
            self.page.press("input[name=password]", "Enter")
        self.looks()

    def opens(self, run: str, *, query: str = "") -> None:
        self.page.goto(f"{self.url}{RUNS}?q={run}{query}")
        self.looks()
        self.page.locator("#result_list tbody th a").first.focus()
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")
        self.looks()

    def presses(self, role: str, name: str) -> None:
        """With the keyboard; another page comes."""
        self.page.get_by_role(role, name=name, exact=True).first.focus()
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")
        self.looks()

    def looks(self) -> None:
        """Nothing of ours sticks out of the screen, and the browser does not complain."""
        wide = self.page.evaluate(
            "[...document.querySelectorAll('.tx-page, .tx-page .tx-panel, .tx-page form, .tx-tools')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className)"
        )
        assert wide == [], self.page.url
        assert self.complaints == [], self.page.url

    @property
    def reads(self) -> str:
        return str(self.page.inner_text("#container"))


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light-wide", "dark-390"])
def operator(request: pytest.FixtureRequest, browser: Any, live_server: Any) -> Any:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    somebody = Operator(context.new_page(), live_server.url)
    somebody.signs_in()
    yield somebody
    context.close()


def test_a_blocked_run_is_found_read_and_terminated(operator: Operator) -> None:
    Sleepy.start(id="blocked-1")
    drain()
    Instance.objects.update(blocked={"code": "nondeterminism", "error": "the code has parted"})

    operator.opens("blocked-1", query="&standing=stuck")
    assert "the code has parted" in operator.reads
    assert "NEXT STEP" in operator.reads.upper()
    operator.presses("link", "Terminate")
    operator.page.get_by_role("button", name="Terminate").click()  # without a reason: the browser does not send it
    assert Instance.objects.get().status == "waiting"
    operator.page.get_by_label("Reason").fill("the code is gone for good")
    operator.presses("button", "Terminate")

    assert "Terminated" in operator.reads
    assert "the code is gone for good" in operator.reads
    assert OperatorAction.objects.get(action="terminate").source == "admin"


def test_a_failing_run_says_why_and_is_cancelled(operator: Operator) -> None:
    AtTheCounter.start(id="failing-1")
    drain()

    operator.opens("failing-1")
    assert "refused at the counter" in operator.reads
    assert "1 / 20" in operator.reads
    operator.presses("link", "Cancel")
    operator.page.get_by_label("Reason").fill("the counter is closed")
    operator.presses("button", "Cancel")
    drain()
    operator.page.reload()

    assert "Cancelled" in operator.reads
    assert Instance.objects.get().status == "cancelled"


def test_a_waiting_run_gets_its_messages_and_ends(operator: Operator) -> None:
    Basket.start(id="waiting-1")
    drain()

    operator.opens("waiting-1")
    operator.page.locator("summary", has_text="add").first.focus()
    operator.page.keyboard.press("Enter")
    operator.page.locator("details[open] input[name=payload]").fill("-1")
    operator.presses("button", "Send add")
    operator.page.wait_for_selector("text=only more than nothing")
    operator.page.get_by_label("Value").fill("5")
    operator.presses("button", "Send")
    operator.page.wait_for_selector("text=“add” is done: 1")
    operator.page.locator("summary", has_text="close").first.focus()
    operator.page.keyboard.press("Enter")
    operator.presses("button", "Send close")
    operator.page.wait_for_selector("text=Completed")

    assert Instance.objects.get().status == "completed"
