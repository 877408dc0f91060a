"""Human tasks in the console, in pages of the project's own, in its templates, and by mail."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from smtplib import SMTPRecipientsRefused
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core import mail
from django.db import connection
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django import errors
from temporalex_django.models import HumanTask, OperatorAction
from temporalex_django.operations.alerts import send_mail
from temporalex_django.pages.mail import TaskMail, make_token, read_token
from tests.support.client_flows import drain
from tests.support.invoices import ACCOUNTING, InvoiceDesk, PlainQuestion
from tests.support.people import stored

pytestmark = pytest.mark.django_db(transaction=True)

INBOX = "/admin/temporalex_django/instance/console/desk/"
ENTRY = "/admin/temporalex_django/humantask/"


def staff(name: str, *groups: str, permissions: tuple[str, ...] = (), email: str = "") -> Any:
    user = stored(name, *permissions)
    user.is_staff, user.email = True, email
    user.save()
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    return user


def browser(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text(answer: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


@pytest.fixture
def task() -> HumanTask:
    InvoiceDesk.start("4711", {"number": 4711, "total": 1200, "form": "schema"})
    drain()
    return HumanTask.objects.get()


def fill(**more: Any) -> dict[str, Any]:
    return {
        "outcome": "approved",
        "comment": "as ordered",
        "form-arg_account": "0",
        "form-arg_cost_centre": "7",
        "token": "t",
    } | more


#: The page of a task, as the console serves it, and that of the package's pages.
PAGES = {"console": INBOX, "pages": "/tasks/"}


def test_the_inbox_of_the_console(task: HumanTask) -> None:
    ann, eve = staff("ann", ACCOUNTING), staff("eve")
    for number in range(60):
        PlainQuestion.start({"title": f"Question {number}?", "users": ["eve"]})
    drain()

    assert "Approve invoice 4711 over 1200 EUR" in text(browser(ann).get(INBOX))
    client = browser(eve)
    with CaptureQueriesContext(connection) as asked:
        first = text(client.get(INBOX))
    assert sum("temporalex_" in query["sql"] for query in asked.captured_queries) == 1
    questions = re.compile(r"Question \d+\?")
    for page_number in ("3", "-3", "9" * 30):  # the last of a page are decided meanwhile
        assert questions.findall(text(client.get(INBOX, {"p": page_number}))) == questions.findall(first)
    assert len({*questions.findall(first), *questions.findall(text(client.get(f"{INBOX}?p=2")))}) == 60
    assert "Question 7?" in text(client.get(f"{INBOX}?due=never&q=question+7"))
    assert "No human tasks match" in text(client.get(f"{INBOX}?due=today"))
    assert "Approve" not in text(client.get(f"{INBOX}?whose=all"))
    op = browser(staff("op", permissions=("temporalex_django.view_instance", "temporalex_django.view_payload")))
    assert "Approve" in text(op.get(f"{INBOX}?whose=all"))
    assert "Nothing is waiting for your decision" in text(op.get(f"{INBOX}?whose=inbox"))

    assert op.get(ENTRY)["Location"] == INBOX
    assert op.get(f"{ENTRY}{task.pk}/change/")["Location"] == f"/tasks/{task.pk}/"
    of_run = op.get(f"/admin/temporalex_django/instance/console/runs/{task.run_id}/people/").content.decode()
    (address,) = re.findall(r'<a href="([^"]*)">Approve invoice 4711', of_run)
    assert "Approve invoice 4711" in text(op.get(address, follow=True))


@pytest.mark.parametrize("place", [*PAGES])
def test_a_task_is_claimed_and_decided_on_its_page(task: HumanTask, place: str) -> None:
    ann, bob, eve = staff("ann", ACCOUNTING), staff("bob", ACCOUNTING), staff("eve")
    page = f"{PAGES[place]}{task.pk}/"

    assert browser(eve).get(page).status_code == 404
    shown = text(browser(ann).get(page))
    assert "Decide by" in shown
    assert "Cost centre" in shown
    assert "Delegate" not in shown
    assert browser(ann).put(page).status_code == 405
    assert "You have claimed it." in text(browser(ann).post(page, {"do": "claim"}, follow=True))
    refused = text(browser(bob).get(page))
    assert "is claimed by ann until" in refused
    late = browser(bob).post(page, fill())
    assert late.status_code == 409
    assert "is claimed by ann until" in text(late)
    assert "The claim was released." in text(browser(ann).post(page, {"do": "release"}, follow=True))

    wrong = browser(bob).post(page, fill(**{"form-arg_cost_centre": "many"}))
    assert wrong.status_code == 409
    assert "Enter a whole number" in text(wrong)
    changed = browser(bob).post(page, fill(shown="an older one"))
    assert changed.status_code == 409
    assert "has changed since you opened it" in text(changed)
    done = browser(bob).post(page, fill(), follow=True)
    assert "Your decision was recorded in the history." in text(done)
    assert "bob decided" not in text(browser(bob).get(PAGES[place]))
    late = browser(ann).post(page, fill(outcome="rejected"))
    assert late.status_code == 409
    assert "bob decided" in text(late)
    assert "as ordered" in text(late)
    drain()
    assert InvoiceDesk.handle(id="invoice::4711").result(timeout=0)["data"]["cost_centre"] == 7
    source = {"console": "admin", "pages": "pages"}[place]
    assert [
        *OperatorAction.objects.filter(action="decide", denied=False).values_list("actor_name", "source", "reason")
    ] == [("bob", source, "")]


@pytest.mark.parametrize("place", [*PAGES])
def test_a_form_of_django_judges(place: str) -> None:
    ann = staff("ann", ACCOUNTING, permissions=("temporalex_django.delegate_humantask",))
    staff("eve")
    InvoiceDesk.start("1", {"number": 1, "total": 5, "form": "django"})
    drain()
    page = f"{PAGES[place]}{HumanTask.objects.get().pk}/"

    shown = browser(ann).get(page).content.decode()
    assert 'name="form-cost_centre"' in shown
    wrong = browser(ann).post(
        page, {"outcome": "approved", "token": "t", "form-account": "goods", "form-cost_centre": "13"}
    )
    assert "Nobody sits there." in text(wrong)
    # nobody learns who there is: a name that nobody has is refused as one of somebody who may not have it
    stored("gone", is_active=False)
    refused = [browser(ann).post(page, {"do": "delegate", "to": name}) for name in ("nobody", "gone")]
    assert [one.status_code for one in refused] == [403, 403]
    said = [re.search(r"ann may not delegate [^<]*", text(one))[0] for one in refused]
    assert said[0].replace("nobody", "gone") == said[1] and "active user of that name" in said[0]
    assert "The task was delegated." in text(browser(ann).post(page, {"do": "delegate", "to": "eve"}, follow=True))
    eve = browser(stored_again("eve"))
    right = {"outcome": "approved", "token": "t", "form-account": "goods", "form-cost_centre": "7"}
    assert "Your decision was recorded in the history." in text(eve.post(page, right, follow=True))
    drain()
    assert InvoiceDesk.handle(id="invoice::1").result(timeout=0)["data"] == {"account": "goods", "cost_centre": 7}


def stored_again(name: str) -> Any:
    from django.contrib.auth import get_user_model

    return get_user_model().objects.get(username=name)


def test_in_pages_and_templates_of_the_projects_own(task: HumanTask) -> None:
    ann, eve = staff("ann", ACCOUNTING), staff("eve")
    ann.is_staff = False
    ann.save()
    page = f"/tasks/{task.pk}/"

    assert Client().get("/tasks/").status_code == 302
    assert "Nothing is waiting for your decision" in text(browser(eve).get("/tasks/"))
    assert browser(eve).get(page).status_code == 404
    assert f'href="{page}"' in browser(ann).get("/tasks/").content.decode()
    assert "You have claimed it." in text(browser(ann).post(page, {"do": "claim"}, follow=True))
    assert "This field is required" in text(browser(ann).post(page, {"token": "t"}))
    assert "Candidates: " in text(browser(ann).get(page))

    request = RequestFactory().get("/")
    request.user = ann
    tags = Template("{% load temporalex %}{% temporalex_inbox_count %}:{% temporalex_inbox limit=5 %}")
    with CaptureQueriesContext(connection) as asked:
        shown = tags.render(Context({"request": request}))
    assert len([query for query in asked.captured_queries if "temporalex_candidate" in query["sql"]]) == 2
    assert shown.startswith("1:")
    assert f'<a href="{page}">Approve invoice 4711 over 1200 EUR</a>' in shown
    assert tags.render(Context({})).startswith("0:")

    assert "Your decision was recorded in the history." in text(
        browser(ann).post(page, fill(outcome="rejected"), follow=True)
    )
    again = browser(ann).post(page, fill())
    assert again.status_code == 409
    assert "ann decided" in text(again)
    assert OperatorAction.objects.get(action="decide").source == "pages"


@pytest.fixture
def by_mail() -> Iterator[TaskMail]:
    told = TaskMail(base_url="https://shop.example/")
    told.attach()
    yield told
    told.detach()


@pytest.mark.usefixtures("by_mail")
def test_by_a_link_in_a_mail() -> None:
    ann = staff("ann", ACCOUNTING, email="ann@shop.example")
    staff("bob", ACCOUNTING)
    staff("eve", email="eve@shop.example")
    InvoiceDesk.start("4711", {"number": 4711, "total": 1200})
    drain()
    (told,) = mail.outbox
    assert (told.to, told.subject) == (["ann@shop.example"], "Decision needed: Approve invoice 4711 over 1200 EUR")
    (link,) = re.findall(r"https://shop\.example(/tasks/by-link/\S+)", told.body)

    task, client = HumanTask.objects.get(), Client(enforce_csrf_checks=True)
    shown = client.get(link)
    assert "You are deciding as ann." in text(shown)
    assert "no-store" in shown["Cache-Control"]
    assert client.post(link, fill()).status_code == 403  # without the token of the page
    token = client.cookies["csrftoken"].value

    for wrong in (f"{link[:-2]}x/", link.replace("by-link/", "by-link/x")):
        assert client.get(wrong).status_code == 404
    with pytest.raises(errors.HumanTaskNotFound, match="sign in instead"):
        read_token(make_token(task, ann), lifetime=timedelta(seconds=-1))
    ann.groups.clear()
    assert client.get(link).status_code == 403
    assert OperatorAction.objects.get(denied=True).actor == ann
    ann.groups.add(Group.objects.get(name=ACCOUNTING))
    done = client.post(link, {**fill(), "csrfmiddlewaretoken": token}, follow=True)
    assert "Your decision was recorded in the history." in text(done)
    ann.set_password("another")
    ann.save()
    assert client.get(link).status_code == 404
    drain()
    assert InvoiceDesk.handle(id="invoice::4711").result(timeout=0)["by"] == "ann"
    assert timezone.now() > HumanTask.objects.get().closed_at


def test_a_link_outlives_a_rotation_of_the_key(task: HumanTask, settings: Any) -> None:
    ann = staff("ann", ACCOUNTING)
    token = make_token(task, ann)
    settings.SECRET_KEY, old = "n" * 50, settings.SECRET_KEY
    settings.SECRET_KEY_FALLBACKS = [old]
    assert read_token(token) == (ann, task.pk)
    assert read_token(make_token(task, ann)) == (ann, task.pk)
    ann.set_password("another")
    ann.save()
    with pytest.raises(errors.HumanTaskNotFound):
        read_token(token)
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(errors.HumanTaskNotFound):
        read_token(token)


@pytest.mark.usefixtures("by_mail")
def test_an_address_that_is_refused_keeps_no_mail_from_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ann", "bob", "cid"):
        staff(name, ACCOUNTING, email=f"{name}@shop.example")
    tries: list[str] = []

    def send(subject: str, text: str, sender: str | None, to: list[str]) -> None:
        tries.extend(to)
        if to == ["ann@shop.example"] or (to == ["bob@shop.example"] and tries.count(to[0]) == 1):
            raise SMTPRecipientsRefused({to[0]: (550, b"no such user")})
        send_mail(subject, text, sender, to)

    monkeypatch.setattr("temporalex_django.pages.mail.send_mail", send)
    InvoiceDesk.start("4711", {"number": 4711, "total": 1200})
    drain()

    assert [message.to for message in mail.outbox] == [["cid@shop.example"], ["bob@shop.example"]]
    assert [name[:3] for name in tries] == ["ann", "bob", "cid", "ann", "bob"]
    assert "the mail to 1 of 3 people could not be sent" in caplog.text
    assert "shop.example" not in caplog.text
