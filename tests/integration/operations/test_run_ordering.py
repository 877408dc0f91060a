"""In which order runs are listed, a page after the other: in code, over REST, in the admin, by commands."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from temporalex_django import Ok, Workflow, api
from temporalex_django.authoring.run_filters import ORDERS
from temporalex_django.models import Chain, Instance
from temporalex_django.operations.read import run_filters
from temporalex_django.testing import drain

pytestmark = pytest.mark.django_db

RUNS, API = "/admin/temporalex_django/instance/", "/api/instances/"
OPEN, CLOSED = ["o-0", "o-1", "o-2"], ["c-3", "c-4", "c-5", "c-6", "c-7"]


class Ordered(Workflow):
    name = "test.Ordered"

    async def run(self, args: Any) -> Any:
        if args is not None:
            await api.sleep(args)
        return Ok(None)


@pytest.fixture
def wanted() -> dict[str, list[str]]:
    """Of each order what comes: three runs sleep, five are closed, two of them at the same time."""
    for name, seconds in zip(OPEN, (5_000, 4_000, 6_000), strict=True):
        Ordered.start(seconds, id=name)
    for name in CLOSED:
        Ordered.start(id=name)
    drain()
    now = timezone.now()
    for name, days in zip(CLOSED, (0, 90, 2, 2, 100), strict=True):
        Instance.objects.filter(workflow_id=name).update(closed_at=now - timedelta(days=days))
    started, due, closed = [*OPEN, *CLOSED], ["o-1", "o-0", "o-2"], ["c-7", "c-4", "c-5", "c-6", "c-3"]
    found = {"started": started, "due": due, "closed": closed}
    return found | {f"-{name}": names[::-1] for name, names in found.items()}


def test_the_same_everywhere_and_in_pages(
    wanted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], client: Client
) -> None:
    assert set(wanted) == set(ORDERS)
    client.force_login(get_user_model().objects.create_superuser("root"))
    monkeypatch.setattr("temporalex_django.operations.run_lookup._PAGE", 2)
    monkeypatch.setattr(run_filters, "FETCH_SIZE", 3)
    for order, names in wanted.items():
        assert [handle.id for handle in Ordered.list(order=order)] == names
        assert [handle.id for handle in Ordered.list(order=order, id_prefix="c-")] == [n for n in names if n in CLOSED]

        pages, address = [], f"{API}?limit=2&order={order}"
        while address:
            body = client.get(address).json()
            pages.append([run["id"] for run in body["results"]])
            address, last = body["next"], address
        assert [name for page in pages for name in page] == names, order
        assert all(len(page) == 2 for page in pages[:-1])
        back = [pages[-1]]
        while before := client.get(last).json()["previous"]:
            last = before
            back.insert(0, [run["id"] for run in client.get(last).json()["results"]])
        assert [name for page in back for name in page] == names, order

        shown = client.get(f"{RUNS}console/runs/?order={order}").content.decode()
        assert re.findall(r"/console/runs/[0-9a-f-]{36}/[^>]*>([^<]+)<", shown) == names
        call_command("temporalex", "list", f"--order={order}", "--json")
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == names
    assert [run["id"] for run in client.get(f"{API}?order=closed&status=completed&limit=1").json()["results"]] == [
        "c-7"
    ]
    with CaptureQueriesContext(connection) as asked:
        client.get(f"{API}?limit=50")
    assert sum("temporalex_" in query["sql"] for query in asked.captured_queries) <= 4


def test_an_order_that_there_is_not_is_refused(client: Client) -> None:
    Ordered.start(id="one")
    client.force_login(get_user_model().objects.create_superuser("root"))
    with pytest.raises(ValueError, match="order must be one of started, -started, closed, .*not 'priority'"):
        Ordered.list(order="priority")
    answer = client.get(f"{API}?order=priority")
    assert (answer.status_code, "one of started" in answer.content.decode()) == (400, True)
    cursor = re.search(r"cursor=[^&\"]+", client.get(f"{API}?limit=1&order=-started").content.decode())
    assert cursor is None  # there is no further page
    for order, cursor in (("closed", "cD0wMTkw"), ("started", "cD0yMDI2LTAxLTAx")):
        assert client.get(f"{API}?order={order}&cursor={cursor}").status_code == 400
    with pytest.raises(CommandError, match="--order priority"):
        call_command("temporalex", "list", "--order", "priority")
    assert client.get(f"{RUNS}console/runs/?order=priority").status_code == 400


def test_what_closed_is_looked_for_near_the_place_first(wanted: dict[str, list[str]]) -> None:
    """By ranges of pages: so that a page does not read all runs that ever closed."""
    runs = run_filters.order_runs(Instance.objects.all(), "-closed")
    with CaptureQueriesContext(connection) as asked:
        near = run_filters.limit_to_range(runs, "-closed", None, rows=1)
        wide = run_filters.limit_to_range(runs, "-closed", None, rows=3)
        everything = run_filters.limit_to_range(runs, "-closed", None, rows=4)
    assert len(asked.captured_queries) == 1 + 2 + 2
    assert [len(found) for found in (near, wide, everything)] == [1, 3, 5]
    times = [run.closed_at for run in runs]
    assert all(later >= earlier for later, earlier in pairwise(times))
    assert Chain.objects.filter(closed=False).count() == len(OPEN)
