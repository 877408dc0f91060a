"""An operator steers a blocked, a failing and a waiting run from the admin alone, click by click, under a strict CSP.

Each in the light on a wide screen, in the dark on a telephone, and with the keyboard alone; axe looks at each kind of
page.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import timedelta
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import timezone

from temporalex_django import (
    Approval,
    Done,
    Event,
    GraphWorkflow,
    Ok,
    RetryPolicy,
    Step,
    Unique,
    Workflow,
    activity,
)
from temporalex_django.db import background_hooks
from temporalex_django.models import HumanTask, Instance, OperatorAction
from tests.support.client_flows import Basket, Sleepy, drain
from tests.support.graphs import leads
from tests.support.invoices import ACCOUNTING, InvoiceDesk, PlainQuestion

pytestmark = pytest.mark.django_db(transaction=True)

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
RUNS = "/admin/temporalex_django/instance/"
CONSOLE = f"{RUNS}console/"
_KEYS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[?#].*")
#: What is Django's own is for Django to mend.
_OURS = {"include": [[".tx-page"]]}


@activity(retry=RetryPolicy(initial_interval=100, max_attempts=20))
def refused_at_the_counter() -> None:
    raise ConnectionError("refused at the counter")


class AtTheCounter(Workflow):
    name = "test.AtTheCounter"

    async def run(self, args: Any) -> Any:
        return Ok(await refused_at_the_counter())


class Price(Step):
    events = ("small", "large")

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("large")


class Pay(Step):
    events = ("paid",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("paid")


class Thank(Step):
    events = ("thanked",)

    def execute(self, instance: Any, config: Any, context: Any) -> Event:
        return Event("thanked")


clerk = Approval(key="clerk", due=timedelta(days=2))


class Refund(GraphWorkflow):
    name = "test.RefundInTheBrowser"
    unique = Unique(key="refund")
    initial = Price
    transitions = {
        **leads(Price, small=Pay, large=clerk),
        **leads(clerk, approved=Pay, rejected=Thank, overdue=Thank),
        **leads(Pay, paid=Thank),
        **leads(Thank, thanked=Done),
    }


class Operator:
    """Somebody at a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.examined: set[str] = set()
        self.url = url
        self.complaints: list[str] = []
        self.allowed: tuple[str, ...] = ("409 (Conflict)",)
        page.on(  # what has no address is axe's, which measures with styles of its own
            "console",
            lambda said: (
                self.complaints.append(said.text)
                if said.type == "error" and not any(text in said.text for text in self.allowed) and said.location["url"]
                else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.route("**/*", self._strictly)

    @staticmethod
    def _strictly(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": CSP})

    def signs_in(self, *, looks: bool = True) -> None:
        get_user_model().objects.create_superuser("root", password="secret")
        self.page.goto(f"{self.url}{RUNS}")
        self.page.fill("input[name=username]", "root")
        self.page.fill("input[name=password]", "secret")
        with self.page.expect_navigation():
            self.page.press("input[name=password]", "Enter")
        if looks:
            self.looks()

    def opens(self, run: str, *, query: str = "") -> None:
        self.page.goto(f"{self.url}{CONSOLE}runs/?q={run}{query}")
        self.looks()
        self.page.locator(".tx-runs tbody th a").first.focus()
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")
        self.looks()

    def opens_more(self) -> None:
        """With the keyboard: the operations that a run does not need now."""
        self.page.locator("#tx-more > summary").focus()
        self.page.keyboard.press("Enter")
        self.page.locator("#tx-more[open]").wait_for()

    def opens_menu(self, row: str) -> None:
        """With the keyboard: the menu of a row of the timeline."""
        self.page.locator(f"tr:has-text('{row}') .tx-menu > summary").first.focus()
        self.page.keyboard.press("Enter")
        self.page.locator(".tx-menu[open]").wait_for()

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
        kind = _KEYS.sub("", self.page.url)
        if kind not in self.examined and self.page.locator(".tx-page").count():
            self.examined.add(kind)
            self.examine()

    def examine(self) -> None:
        """What axe finds wrong with what is ours of the page."""
        found = Axe().run(self.page, context=_OURS)
        assert found.violations_count == 0, f"{self.page.url}\n{found.generate_report()}"

    def tabs_to(self, role: str, name: str) -> None:
        """With the tabulator alone, to something that shows where the focus is."""
        wanted = self.page.get_by_role(role, name=name, exact=True).first
        for _ in range(2_000):  # filters name the classes that any test has registered
            self.page.keyboard.press("Tab")
            if wanted.evaluate("e => e === document.activeElement"):
                shown = "e => e.matches(':focus-visible') && e.getBoundingClientRect().width > 0"
                assert wanted.evaluate(shown)
                return
        raise AssertionError(f"no way to {role} {name!r}")

    @property
    def reads(self) -> str:
        return str(self.page.inner_text("#container, main"))


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light-wide", "dark-390"])
def operator(request: pytest.FixtureRequest, browser: Any, live_server: Any) -> Any:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    somebody = Operator(context.new_page(), live_server.url)
    somebody.signs_in()
    yield somebody
    somebody.page.unroute_all(behavior="ignoreErrors")  # a page that polls is never at rest
    context.close()


@pytest.mark.each_python  # the admin of both Djangos
def test_a_blocked_run_is_found_read_and_terminated(operator: Operator) -> None:
    Sleepy.start(id="blocked-1")
    drain()
    since = timezone.now().isoformat()
    Instance.objects.update(
        blocked={"code": "nondeterminism", "error": "the code has parted", "since": since, "attempt": 1}
    )

    operator.opens("blocked-1", query="&stuck=true")
    assert "the code has parted" in operator.reads
    assert "NEXT STEP" in operator.reads.upper()
    operator.opens_more()
    operator.tabs_to("link", "Terminate")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    operator.looks()
    operator.tabs_to("button", "Terminate")
    operator.page.keyboard.press("Enter")  # without a reason: the browser does not send it
    assert Instance.objects.get().status == "waiting"
    assert operator.page.get_by_label("Reason").evaluate("e => e === document.activeElement")
    operator.page.keyboard.type("the code is gone for good")
    operator.tabs_to("button", "Terminate")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    operator.looks()

    assert "Terminated" in operator.reads
    assert "the code is gone for good" in operator.reads
    assert OperatorAction.objects.get(action="terminate").source == "admin"


def test_a_failing_run_says_why_and_is_cancelled(operator: Operator) -> None:
    AtTheCounter.start(id="failing-1")
    drain()

    operator.opens("failing-1")
    assert "refused at the counter" in operator.reads
    assert "1 / 20" in operator.reads
    operator.presses("link", "Retry now: tests.browser.test_admin.refused_at_the_counter")
    operator.page.get_by_label("Reason").fill("the counter is open again")
    operator.presses("button", "Retry now")
    drain()
    operator.page.reload()
    assert "2 / 20" in operator.reads
    operator.opens_more()
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
    operator.presses("link", "Send a message…")
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


def test_a_timer_is_skipped_and_a_graph_is_drawn_and_decided(operator: Operator) -> None:
    Sleepy.start(id="asleep-1")
    drain()
    operator.opens("asleep-1")
    operator.opens_menu("Timer")
    operator.presses("link", "Fire now")
    operator.page.get_by_label("Reason").fill("nobody waits so long")
    operator.presses("button", "Fire now")
    drain()
    operator.page.reload()
    assert "Completed" in operator.reads

    Refund.start("42")
    drain()
    operator.opens("refund::42")
    operator.presses("link", "Graph")
    assert "SVG" in operator.page.locator(".tx-graph").evaluate("e => e.tagName.toUpperCase()")
    operator.page.locator("#tx-graph").scroll_into_view_if_needed()
    operator.presses("link", "Messages")
    operator.page.locator("summary", has_text="approved").first.focus()
    operator.page.keyboard.press("Enter")
    operator.presses("button", "Send approved (clerk)")
    drain()
    operator.presses("link", "Graph")
    assert operator.page.locator(".tx-step-completed").count() == 5
    assert operator.page.locator(".tx-step-none").count() == 0


def test_many_runs_are_ended_by_a_job_that_is_stopped_and_resumed(operator: Operator) -> None:
    for number in range(4):
        Basket.start(id=f"many-{number}")
    Refund.start("7")
    drain()
    Basket.handle("many-3").terminate()
    operator.page.goto(f"{operator.url}{CONSOLE}runs/")
    operator.looks()
    for box in operator.page.locator(".tx-runs tbody tr:has-text('many-') input[name=run]").all():
        box.check()
    operator.page.locator("select[name=action]").select_option(label="Terminate…")
    operator.presses("button", "Go")
    assert "The action can currently be applied to 3 of 4 selected runs." in operator.reads
    operator.page.get_by_label("Reason").fill("spring cleaning")
    operator.presses("button", "Terminate")
    assert "0 of 4 finished" in operator.reads
    operator.presses("button", "Stop")
    assert "The job has been stopped" in operator.reads
    operator.presses("button", "Resume")
    while background_hooks.run_hooks("default"):
        pass
    operator.presses("link", "Refresh")
    assert "4 of 4 finished" in operator.reads
    assert "already closed" in operator.reads


def test_a_run_is_started_with_a_form(operator: Operator) -> None:
    operator.page.goto(f"{operator.url}{RUNS}console/runs/start/?workflow=test.Typed")
    operator.looks()
    operator.page.get_by_label("Owner").fill("ann")
    operator.presses("button", "Start")
    assert "Started" in operator.reads
    assert Instance.objects.get().workflow == "test.Typed"


def test_human_tasks_are_decided_in_the_inbox(operator: Operator) -> None:
    ann = get_user_model().objects.create_user("ann", password="secret")
    for number, total in ((4711, 1200), (4712, 80), (4713, 310)):
        InvoiceDesk.start(str(number), {"number": number, "total": total, "form": "schema"}, by=None)
    PlainQuestion.start({"title": "Shall we order more?", "users": ["root"]}, id="more")
    drain()
    operator.page.goto(f"{operator.url}{CONSOLE}desk/?whose=inbox")
    operator.looks()
    asked = operator.page.locator(".tx-tasks tbody th").all_inner_texts()
    assert asked[-1] == "Shall we order more?"  # what is due comes first
    operator.tabs_to("link", "Approve invoice 4711 over 1200 EUR")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    operator.looks()
    assert "Decide by" in operator.reads
    operator.tabs_to("button", "Claim")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    operator.looks()
    assert "You have claimed it." in operator.reads

    operator.tabs_to("radio", "Approve")
    operator.page.keyboard.press("Space")
    operator.page.get_by_label("Account").select_option("goods")
    operator.page.get_by_label("Cost centre").fill("7")
    operator.page.get_by_label("Comment").fill("as ordered")
    operator.tabs_to("button", "Decide")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    operator.looks()
    assert "Your decision was recorded in the history." in operator.reads
    drain()
    assert InvoiceDesk.handle(id="invoice::4711").result(timeout=0)["comment"] == "as ordered"

    # somebody else is quicker than whoever has the page open
    operator.presses("link", "Back to the inbox")
    operator.presses("link", "Approve invoice 4712 over 80 EUR")
    ann.groups.add(Group.objects.get_or_create(name=ACCOUNTING)[0])
    task = HumanTask.objects.get(workflow_id="invoice::4712")
    said = operator.page.request.post(
        f"{operator.url}/api/human-tasks/{task.pk}/decide/",
        data={"outcome": "rejected", "data": {"account": "goods", "cost_centre": 7}},
        headers={"Authorization": f"Basic {b64encode(b'ann:secret').decode()}", "Cookie": ""},
    )
    assert said.ok, said.text()
    operator.page.get_by_role("radio", name="Approve").check()
    operator.page.get_by_label("Account").select_option("goods")
    operator.page.get_by_label("Cost centre").fill("7")
    operator.presses("button", "Decide")
    assert "ann decided" in operator.reads
    assert not operator.page.get_by_role("button", name="Decide").count()

    # in a page outside of the admin, too
    operator.page.goto(f"{operator.url}/tasks/")
    operator.looks()
    operator.presses("link", "Shall we order more?")
    operator.page.get_by_role("radio", name="Yes").check()
    operator.presses("button", "Decide")
    assert "Your decision was recorded in the history." in operator.page.inner_text("main")
