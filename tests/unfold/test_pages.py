"""Each page of the admin is readable and works under django-unfold, wide and light, narrow and dark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.models import Group
from django.urls import reverse
from django.utils import timezone

from temporalex_django.admin import WorkflowAdminMixin
from temporalex_django.models import BulkJob, EndedTask, EnqueuedTask, OperatorAction, Schedule
from temporalex_django.workers.loop import run_until_idle
from tests.app import tasks as t
from tests.browser.test_admin import CSP, Operator
from tests.support.client_flows import Basket

pytestmark = pytest.mark.django_db(transaction=True)
ADMIN = "/admin/temporalex_django/"
UNFOLD_CSP = CSP.replace("script-src 'self'", "script-src 'self' 'unsafe-eval'").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)
#: Elements of ours in the page that something else covers. A sticky bar of unfold does not count: a page scrolls.
_COVERED = """
() => [...document.querySelectorAll('.tx-page .button, .tx-page a, .tx-page input, .tx-page select, .tx-page textarea')]
  .filter(e => e.checkVisibility() && e.type !== 'hidden')
  .filter(e => {
    e.scrollIntoView({block: 'center', inline: 'nearest'});
    const box = [...e.getClientRects()].find(one => one.width > 0);
    const top = box && document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    return top && !e.contains(top) && !top.contains(e);
  })
  .map(e => e.outerHTML)
"""


class UnfoldOperator(Operator):
    """Somebody at a browser, under the content security policy of the page about unfold."""

    @staticmethod
    def _strictly(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": UNFOLD_CSP})

    def looks(self) -> None:
        """Nothing is wider than the screen, nothing covers what people click, and axe has no complaint."""
        super().looks()
        width, screen = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= screen, self.page.url
        assert self.page.evaluate(_COVERED) == [], self.page.url

    @property
    def reads(self) -> str:
        return str(self.page.inner_text("#main"))

    def opens_page(self, address: str) -> None:
        answer = self.page.goto(f"{self.url}{address}")
        assert answer.status == 200
        self.looks()


class SubjectAdmin(WorkflowAdminMixin, GroupAdmin):
    """The admin of a subject."""


# Before the first request, which makes the URLs of the site.
admin.site.unregister(Group)
admin.site.register(Group, SubjectAdmin)


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light-wide", "dark-390"])
def operator(request: pytest.FixtureRequest, browser: Any, live_server: Any) -> Iterator[UnfoldOperator]:
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    somebody = UnfoldOperator(context.new_page(), live_server.url)
    somebody.signs_in()
    yield somebody
    context.close()


def test_the_site_is_that_of_unfold(operator: UnfoldOperator) -> None:
    assert type(admin.site).__module__ == "unfold.sites"
    colours = operator.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--hairline-color')")
    assert colours


def test_a_group_of_failed_tasks_is_retried(operator: UnfoldOperator) -> None:
    page = operator.page
    for _ in range(3):
        t.fails.enqueue("why")
    run_until_idle()
    operator.opens_page(f"{ADMIN}endedtask/")
    page.locator("tr", has_text="ValueError at app/tasks.py").first.get_by_role("link", name="Retry…").click()
    assert "3 tasks" in page.title()
    operator.looks()
    page.get_by_label("Reason").fill("the service is back")
    operator.presses("button", "Retry")
    assert BulkJob.objects.get().reason == "the service is back"
    operator.opens_page(f"{ADMIN}endedtask/{EndedTask.objects.all()[0].pk}/change/")
    assert "ValueError at app/tasks.py" in operator.reads


def test_a_task_that_waits_is_moved_and_the_audit_says_so(operator: UnfoldOperator) -> None:
    t.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2)
    operator.opens_page(f"{ADMIN}enqueuedtask/")
    operator.opens_page(f"{ADMIN}enqueuedtask/{EnqueuedTask.objects.get().pk}/change/")
    operator.page.locator("summary", has_text="Requeue").click()
    operator.looks()
    form = operator.page.locator("details[open]")
    form.get_by_label("Queue").select_option("mail")
    form.get_by_label("Reason").fill("it is a mail")
    operator.presses("button", "Requeue")
    assert EnqueuedTask.objects.get().queue == "mail"
    action = OperatorAction.objects.get(action="requeue")
    operator.opens_page(f"{ADMIN}operatoraction/")
    operator.opens_page(f"{ADMIN}operatoraction/{action.pk}/change/")
    assert "it is a mail" in operator.reads


def test_a_schedule_is_written_and_mended(operator: UnfoldOperator) -> None:
    operator.opens_page(f"{ADMIN}schedule/add/")
    operator.presses("link", "tests.app.tasks.add")
    operator.page.get_by_label("Name").fill("nightly-sum")
    operator.page.get_by_label("Arguments").fill("[1, 2, 3]")
    operator.page.get_by_label("Cron expressions").fill("30 2 * * *")
    operator.presses("button", "Save")
    assert "too many positional arguments" in operator.reads
    operator.page.get_by_label("Arguments").fill("[1, 2]")
    operator.page.get_by_role("button", name="Save", exact=True).click()
    operator.page.wait_for_url("**/console/schedules/**")
    assert Schedule.objects.get().task == "tests.app.tasks.add"


def test_lists_and_their_mistakes(operator: UnfoldOperator) -> None:
    Basket.start(id="basket-1")
    run_until_idle()
    operator.opens_page(f"{ADMIN}instance/?q=basket-1")
    assert "basket-1" in operator.reads
    operator.opens_page(f"{ADMIN}outbox/")
    operator.allowed = ("400 (Bad Request)",)
    assert operator.page.goto(f"{operator.url}{ADMIN}outbox/?colour=red").status == 400
    operator.looks()
    assert "has no parameter “colour”" in operator.reads


def test_the_page_of_a_subject_shows_its_runs(operator: UnfoldOperator) -> None:
    group = Group.objects.create(name="clerks")
    Basket.start(id="basket-1", subject=group)
    run_until_idle()
    operator.opens_page(reverse("admin:auth_group_change", args=[group.pk]))
    assert "basket-1" in operator.reads
    operator.page.locator(".tx-lead a").first.click()
    operator.page.wait_for_url("**/console/runs/**")
    assert "basket-1" in operator.page.inner_text("#tx-main")
