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
from temporalex_django.console.run import timeline
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import Sleepy, drain
from tests.support.commands import shell
from tests.support.run_pages import address_of

pytestmark = pytest.mark.django_db


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
    monkeypatch.setattr(timeline, "ROWS", 5)


def happened(client: Client, run: Any, query: str = "") -> list[tuple[str, str, str]]:
    """Number of the first event, words and state of the rows of a page."""
    return rows_of(client.get(f"{address_of(run)}{query}").content.decode())


def rows_of(text: str) -> list[tuple[str, str, str]]:
    rows = re.findall(
        r'<tr id="t-(\w+)">.*?<th scope="row" title="(.*?)">.*?</th>\s*<td[^>]*>(.*?)</td>', text, re.DOTALL
    )
    return [
        (number, html.unescape(said), re.sub(r"<[^>]+>", "", state, flags=re.DOTALL).strip())
        for number, said, state in rows
    ]


def every_page(client: Client, run: Any) -> list[list[tuple[str, str, str]]]:
    """Return the rows of all pages, from the first one on, by the links to later ones."""
    address: str | None = f"{address_of(run)}?after=0"
    pages = []
    while address:
        text = client.get(address).content.decode()
        pages.append(rows_of(text))
        later = re.search(r'href="([^"]*)" rel="next"', text)
        address = None if later is None else html.unescape(later[1])
    return pages


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
def test_the_page_that_opens_first_is_full_and_its_rows_are_whole(admin: Client) -> None:
    run = PacksMany.start(12, id="many")
    drain()

    last = happened(admin, run.run_id)
    assert len(last) == 5
    assert [said for _, said, _ in last if not re.match(r"(Pack the parcel: \d|Run )", said)] == []
    assert {state for _, _, state in last} == {"done", "completed"}


@pytest.mark.usefixtures("small_pages")
def test_a_row_is_the_same_on_every_page_and_in_every_interface(admin: Client) -> None:
    run = PacksMany.start(12, id="many")
    drain()
    told = {(str(row["first"]), row["text"]) for row in over_rest(admin, run.run_id)}
    with translation.override("en"):
        printed = shell("history", run.id).out

    pages = every_page(admin, run.run_id)

    assert len(pages) == 3
    assert {(number, said) for rows in pages for number, said, _ in rows} == told
    earlier = re.search(r'href="([^"]*)" rel="prev"', admin.get(address_of(run.run_id)).content.decode())
    assert earlier is not None
    back = rows_of(admin.get(html.unescape(earlier[1])).content.decode())
    assert len(back) == 5
    assert {(number, said) for number, said, _ in back} < told
    assert all(said in printed for _, said in told)
    for limit in (1, 5):
        assert {(str(row["first"]), row["text"]) for row in over_rest(admin, run.run_id, limit=limit)} == told


@pytest.mark.usefixtures("small_pages")
def test_the_start_of_a_run_is_over_at_once_and_its_row_ends_with_the_run(admin: Client) -> None:
    run, other = PacksMany.start(12, id="many"), Sleepy.start(id="s-1")
    drain()

    states = {said: state for _, said, state in happened(admin, run.run_id, "?after=0")}
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
    pages = [row for rows in every_page(admin, run.run_id) for row in rows]

    assert whole == ["taken"] * 8 + ["unread"] * 12
    for limit in (1, 7):
        rows = over_rest(admin, run.run_id, limit=limit)
        assert [row["state"] for row in rows if row["name"] == "note"] == whole
    states = [state for _, said, state in pages if "note" in said and said.startswith("Signal")]
    assert states == ["consumed"] * 8 + ["never consumed"] * 12
