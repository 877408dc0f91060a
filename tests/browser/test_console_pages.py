"""Every page of the console: on a wide screen, in the dark on a telephone, without scripts, and by keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from temporalex_django.models import BulkJob, HumanTask, Instance, Schedule, SwitchedOff, Worker
from tests.browser.test_admin import CONSOLE, Operator
from tests.support.console_state import console_pages, fill_console
from tests.support.run_pages import address_of

pytestmark = pytest.mark.django_db(transaction=True)

#: Scheme of colours, width, and whether scripts run.
MODES: Final = {
    "light-wide": ("light", 1280, True),
    "dark-390": ("dark", 390, True),
    "no-script": ("light", 1280, False),
}
_MOST_TABS: Final = 400
#: Where the focus is in the order of the document, and whether somebody sees it there.
_FOCUS: Final = """() => {
    const element = document.activeElement, box = element.getBoundingClientRect(), style = getComputedStyle(element);
    // The browser marks the part of a time that has the focus.
    const isTime = element.type === 'datetime-local';
    const isMarked = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none';
    return {
        place: [...document.querySelectorAll('*')].indexOf(element),
        isOutside: element === document.body || element === document.documentElement,
        isSeen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight,
        isMarked: isTime || (isMarked && element.matches(':focus-visible')),
        text: element.outerHTML.slice(0, 200),
    };
}"""


class WithoutScripts(Operator):
    """An operator whose browser runs no scripts, so that none can look at the page either."""

    def looks(self) -> None:
        assert self.complaints == [], self.page.url
        box = self.page.locator("main").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= self.page.viewport_size["width"], self.page.url
        assert self.page.locator("main h1").count() == 1, self.page.url


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def operator(request: pytest.FixtureRequest, browser: Any, live_server: Any) -> Iterator[Operator]:
    scheme, width, has_scripts = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=has_scripts
    )
    somebody = (Operator if has_scripts else WithoutScripts)(context.new_page(), live_server.url)
    somebody.signs_in(looks=False)
    fill_console(get_user_model().objects.get(username="root"))
    yield somebody
    somebody.page.unroute_all(behavior="ignoreErrors")
    context.close()


def test_every_page_fits_is_clean_and_shows_the_focus(operator: Operator) -> None:
    page = operator.page
    for address in console_pages():
        page.goto(f"{operator.url}{address}")
        operator.looks()
        if isinstance(operator, WithoutScripts):
            continue
        width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], (address, width)
        _walk(page, address)


def _walk(page: Any, address: str) -> None:
    """Go through the page with the tabulator: in the order of the document, and always where somebody sees it."""
    last, count = -1, 0
    for _ in range(_MOST_TABS):
        page.keyboard.press("Tab")
        focus = page.evaluate(_FOCUS)
        if focus["isOutside"] or focus["place"] < last:
            break
        assert focus["isSeen"], (address, focus["text"])
        assert focus["isMarked"], (address, focus["text"])
        last, count = focus["place"], count + 1
    assert count >= 8, (address, count)  # the navigation alone has as many
    assert count < _MOST_TABS, address


def test_forms_are_sent_by_keyboard(operator: Operator) -> None:
    page = operator.page
    get_user_model().objects.create_user("ann").groups.add(Group.objects.create(name="clerks"))
    HumanTask.objects.update(asked=["user:root", "group:clerks"])

    page.goto(f"{operator.url}{CONSOLE}workers/")
    page.get_by_label("Reason").first.fill("a new release")
    operator.presses("button", "Drain box:1")
    assert "The worker will stop taking new work" in operator.reads
    assert Worker.objects.get().drained_at is not None

    page.goto(f"{operator.url}{CONSOLE}switches/")
    operator.presses("button", "Switch reports on")
    assert not SwitchedOff.objects.exists()
    page.get_by_label("What").select_option("queue:default")
    operator.presses("button", "Switch off")
    assert SwitchedOff.objects.get().name == "default"

    page.goto(f"{operator.url}{CONSOLE}schedules/")
    operator.presses("link", "nightly")
    _opens(page, "Pause")
    page.locator("#pause_reason").fill("the printer is broken")
    operator.presses("button", "Pause")
    assert Schedule.objects.get().pause_reason == "the printer is broken"
    operator.presses("link", "Backfill…")
    page.get_by_label("From").fill("2026-01-01T00:00")
    page.get_by_label("To", exact=True).fill("2026-01-05T00:00")
    operator.presses("button", "Preview")
    operator.presses("button", "Start 4 runs")
    assert "Backfill: 0 of 4 slots" in operator.reads

    page.goto(f"{operator.url}{CONSOLE}jobs/")
    _follows(page, "#tx-live tbody th a")
    operator.presses("button", "Stop")
    assert BulkJob.objects.get().state == "stopped"
    operator.presses("button", "Resume")
    assert BulkJob.objects.get().state == "running"

    page.goto(f"{operator.url}{CONSOLE}desk/?whose=all")
    page.locator(".tx-tasks .tx-pick input[name=task]").focus()
    page.keyboard.press("Space")
    page.get_by_label("To", exact=True).focus()
    page.keyboard.type("ann")
    page.get_by_label("Reason").first.fill("on leave")
    operator.presses("button", "Reassign")
    assert HumanTask.objects.get().delegated[0]["to"] == "ann"

    run = Instance.objects.get(workflow_id="red-basket")
    page.goto(f"{operator.url}{address_of(run.pk)}")
    _opens(page, "More")
    operator.presses("link", "Terminate")
    page.get_by_label("Reason").first.fill("enough")
    operator.presses("button", "Terminate")
    run.refresh_from_db()
    assert run.status == "terminated"


def _follows(page: Any, selector: str) -> None:
    page.locator(selector).first.focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")


def _opens(page: Any, summary: str) -> None:
    page.locator("summary", has_text=summary).first.focus()
    page.keyboard.press("Enter")
    page.locator("details[open]", has_text=summary).first.wait_for()
