"""Pages lead to the run that there is now, offer to go back where a row stands, and say what a request waits for."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.models import Chain, Instance, Worker
from tests.integration.operations.test_missing_workers import worker
from tests.support.client_flows import Generations, Sleepy, drain
from tests.support.commands import shell
from tests.support.run_pages import text_of

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("rows of histories")]

RUNS = "/admin/temporalex_django/instance/"
WAITS = "The request is waiting for a worker: no live worker polls the queue"


@activity(label="print the label")
def print_label(number: int) -> int:
    return number


@activity(label="hand it over")
def hand_over(number: int) -> int:
    return number


class Posts(Workflow):
    name = "test.LeadsOnPosts"

    async def run(self, args: Any) -> Any:
        await print_label(1)
        await api.wait_for_signal("called")
        await hand_over(2)
        return Ok(await api.wait_for_signal("fetched"))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def rest(admin: Client) -> APIClient:
    made = APIClient()
    made.force_authenticate(get_user_model().objects.get(username="root"))
    return made


@pytest.fixture
def posted() -> Any:
    run = Posts.start(id="p-1")
    drain()
    run.signal("called")
    drain()
    return run


def page(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def act(client: Client, address: str, **given: Any) -> Any:
    token = re.search(r'name="token" value="([^"]+)"', page(client, address))
    assert token is not None
    return client.post(address, {"token": token[1], "reason": "by mistake", **given})


def offered(client: Client, run: Any, action: str) -> dict[str, str]:
    """The addresses of the buttons of that kind in the rows of the history, by the words of the row."""
    found = {}
    for words, row in re.findall(
        r'<tr id="t-.*?<th scope="row" title="(.*?)"(.*?)</tr>', text_of(client, run.run_id, ""), re.DOTALL
    ):
        address = re.search(rf'href="([^"]+/do/{action}/\?to=\d+)"', row)
        if address is not None:
            found[words.partition(":")[0]] = address[1]
    return found


def test_a_row_offers_to_go_back_there_and_says_what_is_done_again(admin: Client, posted: Any) -> None:
    before = posted.run_id
    back = offered(admin, posted, "reset")
    assert {"Run started, version 1", "Print the label", "Signal called", "Hand it over"} <= {*back}
    assert {*offered(admin, posted, "fork")} == {*back}
    assert "Reset to here" in text_of(admin, before)

    text = page(admin, back["Signal called"])
    again = text[text.index("Repeated work") : text.index("<form", text.index("Repeated work"))]
    assert "Hand it over" in again
    assert "Print the label" not in again
    assert "Print the label" in page(admin, back["Run started, version 1"])

    response = act(admin, back["Signal called"], input_to=re.search(r"to=(\d+)", back["Signal called"])[1])  # type: ignore[index]
    new = Instance.objects.get(pk=Chain.objects.get().run_id)
    assert str(new.pk) != before
    assert response["Location"] == f"{RUNS}console/runs/{new.pk}/"


def test_a_fork_leads_to_the_new_run(admin: Client, posted: Any) -> None:
    address = offered(admin, posted, "fork")["Print the label"]
    response = act(admin, address, input_to=re.search(r"to=(\d+)", address)[1], input_id="p-2")  # type: ignore[index]

    assert response["Location"] == f"{RUNS}console/runs/{Instance.objects.get(workflow_id='p-2').pk}/"


def test_nothing_goes_back_to_the_end_of_a_run(admin: Client, posted: Any) -> None:
    posted.signal("fetched", 1)
    drain()

    assert "Run completed" not in offered(admin, posted, "reset")
    assert "Signal fetched" not in offered(admin, posted, "reset")
    assert "Signal called" in offered(admin, posted, "reset")


def test_an_earlier_run_leads_to_the_newest(admin: Client) -> None:
    run = Generations.start(0, id="g-1")
    drain()
    run.signal("word", "next")
    drain()
    first, newest = run.run_ids

    for address in (f"{RUNS}console/runs/{first}/", f"{RUNS}console/runs/{first}/do/cancel/"):
        text = page(admin, address)
        assert f'href="{RUNS}console/runs/{newest}/">Go to the newest run' in text
    assert "Go to the newest run" not in text_of(admin, newest)
    assert offered(admin, Generations.handle(str(first)), "reset") == {}


def test_a_request_to_cancel_says_what_it_waits_for_before_and_after(admin: Client, rest: APIClient) -> None:
    runs = {name: Sleepy.start(id=name) for name in ("admin", "rest", "command")}
    drain()

    address = f"{RUNS}console/runs/{runs['admin'].run_id}/do/cancel/"
    assert WAITS in page(admin, address)
    assert "To end the run now, terminate it." in page(admin, address)
    assert "Ask a run to end. The code of a function workflow may" in page(admin, address)
    said = act(admin, address)
    assert WAITS in page(admin, said["Location"])

    effects = {row["name"]: row["effect"] for row in rest.get("/api/instances/rest/operations/").json()["results"]}
    assert WAITS in effects["cancel"]
    assert WAITS in rest.post("/api/instances/rest/cancel/", {"reason": "no"}, format="json").json()["notice"]
    assert WAITS in shell("cancel", "command", "--yes").out


def test_a_request_to_cancel_a_blocked_run_says_that_it_waits(admin: Client) -> None:
    run = Sleepy.start(id="s-1")
    drain()
    worker(Sleepy)
    Instance.objects.update(blocked={"code": "nondeterminism", "error": "does not fit"})

    assert "The run is blocked, so the request waits" in page(admin, f"{RUNS}console/runs/{run.run_id}/do/cancel/")


def test_a_request_that_a_live_worker_hears_says_nothing_more(admin: Client, rest: APIClient) -> None:
    run = Sleepy.start(id="s-1")
    drain()
    worker(Sleepy)
    Worker.objects.update(expires_at=timezone.now() + timedelta(minutes=5))

    assert "The request is waiting" not in page(admin, f"{RUNS}console/runs/{run.run_id}/do/cancel/")
    assert "notice" not in rest.post(f"/api/instances/{run.id}/cancel/", {"reason": "no"}, format="json").json()
