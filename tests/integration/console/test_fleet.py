"""Queues, workers and switches in the console."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from temporalex_django.console import live
from temporalex_django.models import OperatorAction, SwitchedOff, Worker
from tests.support.client_flows import Basket, Sleepy, drain

pytestmark = pytest.mark.django_db

CONSOLE = "/admin/temporalex_django/instance/console/"
WORKERS, SWITCHES = f"{CONSOLE}workers/", f"{CONSOLE}switches/"


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    live._values.clear()


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def somebody(name: str, *codes: str) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codes))
    client = Client()
    client.force_login(user)
    return client


def worker(epoch: int, **columns: Any) -> Worker:
    now = timezone.now()
    given: dict[str, Any] = {"queues": ["default"], "workflows": {}, "started_at": now, "beat_at": now, **columns}
    return Worker.objects.create(
        id=uuid.uuid4(), epoch=epoch, kind="worker", host="box", pid=epoch, expires_at=now + timedelta(hours=1), **given
    )


def poll(client: Client, page: Any) -> Any:
    (address,) = re.findall(r'data-hx-get="([^"]*)"', page.content.decode())
    return client.get(address.replace("&amp;", "&"))


def test_a_worker_is_drained_in_place(admin: Client) -> None:
    one = worker(1)
    text = admin.get(WORKERS).content.decode()
    assert f'formaction="{WORKERS}{one.pk}/drain/"' in text
    done = admin.post(f"{WORKERS}{one.pk}/drain/", {"reason": "a new release", "back": "workers"}, follow=True)
    assert "The worker will stop taking new work" in done.content.decode()
    assert "Undrain box:1" in done.content.decode()
    assert OperatorAction.objects.get().reason == "a new release"
    assert admin.post(f"{WORKERS}{one.pk}/undrain/", {})["Location"] == WORKERS
    assert Worker.objects.get().drained_at is None
    assert "tx-note-" in admin.post(f"{WORKERS}{one.pk}/undrain/", {}, follow=True).content.decode()
    for odd in ("x", uuid.uuid4()):
        assert admin.post(f"{WORKERS}{odd}/drain/", {}).status_code == 404
    assert admin.get(f"{WORKERS}{one.pk}/drain/").status_code == 405
    assert admin.post(f"{WORKERS}{one.pk}/drain/", {"back": "https://evil.example"})["Location"] == WORKERS


def test_somebody_who_was_signed_out_learns_that_nothing_was_done(admin: Client) -> None:
    one = worker(1)
    admin.logout()
    answer = admin.post(f"{WORKERS}{one.pk}/drain/", {})
    console = WORKERS.removesuffix("workers/")
    assert answer["Location"] == f"/admin/login/?next={console}"
    admin.force_login(get_user_model().objects.get(username="root"))
    assert "nothing was done. Press the button again." in admin.get(console).content.decode()
    assert Worker.objects.get().drained_at is None
    # An address that has a page of its own leads back to it.
    admin.logout()
    assert admin.get(WORKERS)["Location"] == f"/admin/login/?next={WORKERS}"


def test_a_queue_is_switched_in_place_and_on_the_page_of_switches(admin: Client) -> None:
    worker(1)
    back = admin.post(f"{SWITCHES}off/", {"thing": "queue:default", "reason": "the bank", "back": "workers"})
    assert back["Location"] == WORKERS
    text = admin.get(WORKERS).content.decode()
    assert "switched off" in text
    assert "Switch default on" in text
    text = admin.get(SWITCHES).content.decode()
    assert "the bank" in text
    admin.post(f"{SWITCHES}on/", {"thing": "queue:default", "back": "switches"})
    assert not SwitchedOff.objects.exists()
    assert "Everything is on." in admin.get(SWITCHES).content.decode()
    refused = admin.post(f"{SWITCHES}on/", {"thing": "queue:default"}, follow=True).content.decode()
    assert "tx-note-error" in refused


def test_who_may_not_has_no_buttons_and_no_page(admin: Client) -> None:
    one = worker(1)
    looks, switches = somebody("ann", "view_worker"), somebody("bob", "view_switchedoff", "use_switches")
    text = looks.get(WORKERS).content.decode()
    assert "box:1" in text
    assert "formaction" not in text
    assert looks.get(SWITCHES).status_code == 403
    assert looks.get(CONSOLE).status_code == 403
    assert looks.post(f"{WORKERS}{one.pk}/drain/", {}).status_code == 403
    assert "Switch something off" in switches.get(SWITCHES).content.decode()
    assert switches.get(WORKERS).status_code == 403
    nav = re.findall(r'<li><a href="([^"]*)"', text.partition("tx-nav")[2].partition("</nav>")[0])
    assert nav == [WORKERS, f"{CONSOLE}desk/", f"{CONSOLE}deploy/"]


def test_the_pages_take_few_statements_and_polls_none(admin: Client, django_assert_max_num_queries: Any) -> None:
    worker(1, workflows={"test.Basket": [1]})
    worker(2, workflows={"test.Basket": [1], "test.Sleepy": [1]})
    for number in range(10):
        (Basket if number % 2 else Sleepy).start(id=f"b-{number}")
    drain()
    with django_assert_max_num_queries(12):
        page = admin.get(WORKERS)
    assert '<span class="tx-problem">test.Sleepy</span>' in page.content.decode()
    with django_assert_max_num_queries(2):  # the session and the user
        assert poll(admin, page).status_code == 204
    live._values.clear()
    Worker.objects.filter(epoch=2).delete()
    changed = poll(admin, page)
    assert changed.status_code == 200
    assert "csrfmiddlewaretoken" not in changed.content.decode()
    assert "box:2" not in changed.content.decode()
    with django_assert_max_num_queries(12):
        switches = admin.get(SWITCHES)
    assert poll(admin, switches).status_code == 204
    SwitchedOff.objects.create(kind="queue", name="default", since=timezone.now(), by="ann", reason="why")
    assert "default" in poll(admin, switches).content.decode()
