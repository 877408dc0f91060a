"""Rows of a history are whole on every page and in every interface: name, beginning and end."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import translation
from rest_framework.test import APIClient

from temporalex_django import NoReply, Ok, Stop, Workflow, activity, api
from temporalex_django.admin.run import history
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import Sleepy, drain
from tests.support.commands import shell

pytestmark = pytest.mark.django_db

RUNS = "/admin/temporalex_django/instance/"


@activity(label="pack the parcel")
def pack(number: int) -> int:
    return number


class PacksMany(Workflow):
    """Its activities are all scheduled before the first of them ends."""

    name = "test.PacksMany"

    async def run(self, args: int) -> Any:
        return Ok(sum(await api.parallel([pack(number) for number in range(args)])))


class Listens(Workflow):
    """Takes some signals, and leaves those that come later."""

    name = "test.ListensBriefly"

    async def run(self, args: Any) -> Any:
        await api.phase(0, signal={"note": lambda _, state: NoReply(state + 1), "end": lambda _, state: Stop(state)})
        await api.wait_for_signal("finish")
        return Ok(None)


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EVENTS_PER_PAGE", 10)


def happened(client: Client, run: Any, query: str = "") -> list[tuple[str, str, str]]:
    """Events, words and state of the rows of a page."""
    text = client.get(f"{RUNS}console/runs/{run}/{query}").content.decode()
    table = text[text.index('id="tx-happened"') : text.index('class="tx-more"')]
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", table, re.DOTALL)
    plain = [
        [html.unescape(re.sub(r"<ul.*?</ul>|<[^>]+>", "", cell, flags=re.DOTALL)).strip() for cell in row]
        for row in rows
    ]
    return [(numbers, said, state) for numbers, said, state in plain]


def over_rest(client: Client, run: Any, **query: Any) -> list[dict[str, Any]]:
    rest = APIClient()
    rest.force_authenticate(get_user_model().objects.get(username="root"))
    found: list[dict[str, Any]] = []
    address: str | None = f"/api/instances/{run}/timeline/"
    while address:
        page = rest.get(address, query if not found else None).json()
        found += page["results"]
        address = page["next"]
    return found


@pytest.mark.usefixtures("small_pages")
def test_the_page_that_opens_first_names_what_it_says_the_end_of(admin: Client) -> None:
    run = PacksMany.start(12, id="many")
    drain()

    last = happened(admin, run.run_id)
    assert len(last) > 3
    assert [said for _, said, _ in last if not re.match(r"(Pack the parcel: \d|Run )", said)] == []
    numbered = [numbers.split("–") for numbers, said, _ in last if said.startswith("Pack")]
    assert all(len(both) == 2 and int(both[0]) <= 14 < int(both[1]) for both in numbered)


@pytest.mark.usefixtures("small_pages")
def test_a_row_is_the_same_on_every_page_and_in_every_interface(admin: Client) -> None:
    run = PacksMany.start(12, id="many")
    drain()
    told = {(str(row["first"]), row["text"]) for row in over_rest(admin, run.run_id)}
    count = -(-len(run.history()) // 10)
    with translation.override("en"):
        printed = shell("history", run.id).out

    pages = [happened(admin, run.run_id, f"?p={number}") for number in range(1, count + 1)]

    assert count > 2
    assert {(numbers.split("–")[0], said) for rows in pages for numbers, said, _ in rows} == told
    assert all(said in printed for _, said in told)
    for limit in (1, 5):
        assert {(str(row["first"]), row["text"]) for row in over_rest(admin, run.run_id, limit=limit)} == told


@pytest.mark.usefixtures("small_pages")
def test_the_start_of_a_run_is_over_at_once_and_its_row_ends_with_the_run(admin: Client) -> None:
    run, other = PacksMany.start(12, id="many"), Sleepy.start(id="s-1")
    drain()

    states = {said: state for _, said, state in happened(admin, run.run_id, "?p=1")}
    assert states["Run started, version 1"] == "done"
    first = over_rest(admin, run.run_id, limit=1)[0]
    assert (first["kind"], first["state"], first["activation"]) == ("run", "done", 1)
    assert first["ended"] == over_rest(admin, run.run_id)[-1]["began"]
    assert {said: state for _, said, state in happened(admin, other.run_id)}["Run started, version 1"] == "done"


def test_what_was_open_when_the_run_ended_is_dropped(admin: Client) -> None:
    run = Sleepy.start(id="s-1")
    drain()
    run.terminate("enough")

    (_, said, state) = next(row for row in happened(admin, run.run_id) if row[1].startswith("Timer"))
    assert state == "dropped"
    assert "dropped when the run closed" in said
    assert [row["state"] for row in over_rest(admin, run.run_id, limit=1)] == ["done", "dropped", "terminated"]


@pytest.mark.usefixtures("small_pages")
def test_a_signal_that_nobody_took_says_so_far_from_the_end(admin: Client) -> None:
    env = DjangoEnvironment()
    run = env.start(Listens, id="l-1")
    for number in range(8):
        run.signal("note", number)
    run.signal("end")
    for number in range(12):
        run.signal("note", number)
    run.signal("finish")

    whole = [row["state"] for row in over_rest(admin, run.run_id) if row["name"] == "note"]
    count = -(-len(run.history()) // 10)
    pages = [row for number in range(1, count + 1) for row in happened(admin, run.run_id, f"?p={number}")]

    assert whole == ["taken"] * 8 + ["unread"] * 12
    for limit in (1, 7):
        rows = over_rest(admin, run.run_id, limit=limit)
        assert [row["state"] for row in rows if row["name"] == "note"] == whole
    states = [state for _, said, state in pages if "note" in said and said.startswith("Signal")]
    assert states == ["consumed"] * 8 + ["never consumed"] * 12
