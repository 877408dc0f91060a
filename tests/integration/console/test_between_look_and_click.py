"""What changes between the look at a page of the console and the click on it, and what is too large for a page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from temporalex_django.console.base import MAX_PAYLOAD_LENGTH
from temporalex_django.models import ActivityTask, BulkJob, Instance, OperatorAction, SwitchedOff
from tests.integration.console.test_bulk import finished, hidden
from tests.support.broken_runs import broken_fleet
from tests.support.client_flows import Basket, drain
from tests.support.run_pages import CONSOLE, address_of, text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(client: Client) -> Client:
    return signed_in("root", client)


def signed_in(name: str, client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser(name))
    return client


def retry_address(admin: Client) -> str:
    """Return the address of the preview to which the overview leads."""
    found = re.search(r'href="([^"]*action=retry_activity[^"]*)"', admin.get(CONSOLE).content.decode())
    assert found is not None
    return found[1].replace("&amp;", "&")


def fields(text: str, **more: str) -> dict[str, str]:
    return {name: hidden(text, name) for name in ("token", "newest")} | more


def test_a_group_that_empties_before_the_preview_and_before_the_click(admin: Client) -> None:
    broken_fleet()
    address = retry_address(admin)
    preview = admin.get(address).content.decode()
    assert "3 activities in 3 of 3 selected runs" in preview
    ActivityTask.objects.all().delete()
    Instance.objects.filter(workflow_id__in=("red-1", "red-2", "red-3")).update(status="completed")

    posted = admin.post(address, fields(preview), follow=True)
    assert "None of these runs exists any more. Nothing was done." in posted.content.decode()
    assert not BulkJob.objects.exists()
    looked = admin.get(address, follow=True)
    assert "None of these runs exists any more. Nothing was done." in looked.content.decode()


def test_two_operators_do_the_same_at_once(admin: Client) -> None:
    broken_fleet()
    ann = signed_in("ann", Client())
    address = retry_address(admin)
    first, second = (client.get(address).content.decode() for client in (admin, ann))
    for client, text in ((admin, first), (ann, second)):
        assert client.post(address, fields(text)).status_code == 302
    finished()
    done = [(job.done, job.not_possible + job.already_done) for job in BulkJob.objects.order_by("pk")]
    assert [sum(numbers) for numbers in done] == [3, 3]
    assert {job.state for job in BulkJob.objects.all()} == {"done"}

    handle = Basket.start(id="b-1")
    drain()
    terminate = f"{address_of(handle.run_id)}do/terminate/"
    pages = [(client, client.get(terminate).content.decode()) for client in (admin, ann)]
    answers = [client.post(terminate, {"token": hidden(text, "token"), "reason": "enough"}) for client, text in pages]
    assert [answer.status_code for answer in answers] == [302, 409]
    assert "Terminated" in answers[1].content.decode()
    assert OperatorAction.objects.filter(action="terminate", denied=False).count() == 1

    for client in (admin, ann):
        off = client.post(f"{CONSOLE}switches/off/", {"thing": "queue:default", "back": "switches"}, follow=True)
        assert off.status_code == 200
    assert SwitchedOff.objects.count() == 1


def test_a_huge_payload_is_cut_and_the_page_says_so(admin: Client) -> None:
    handle = Basket.start({"note": "x" * 900_000}, id="huge")
    drain()
    sizes = {part: len(text_of(admin, handle.run_id, part)) for part in ("", "data", "raw", "messages")}
    assert max(sizes.values()) < 10 * MAX_PAYLOAD_LENGTH, sizes
    assert "more characters" in text_of(admin, handle.run_id, "data")


@pytest.mark.parametrize("place", ["overview", "list", "run", "desk"])
def test_hostile_names_are_text_on_every_page(admin: Client, place: str) -> None:
    name = "<img src=x onerror=alert(1)>\"'&"
    handle = Basket.start(id=name)
    drain()
    Instance.objects.update(
        blocked={"code": "fault", "error": name, "since": "2027-01-01T00:00:00+00:00", "attempt": 1},
        cause=name,
        fault=name,
    )
    addresses: dict[str, Any] = {
        "overview": CONSOLE,
        "list": f"{CONSOLE}runs/",
        "run": address_of(handle.run_id),
        "desk": f"{CONSOLE}desk/?whose=all&q={name}",
    }
    assert "<img src=x" not in admin.get(addresses[place]).content.decode()
