"""The page of a run on a cluster in the admin: where it lives, and what only the cluster knows."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from temporalex_django import Ok, Stop, Workflow, api
from temporalex_django.models import Instance
from temporalex_django.workers.loop import run_until_idle
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-pages-{uuid.uuid4().hex[:8]}"
RUNS = "/admin/temporalex_django/instance/"


class PagedTables(Workflow):
    backend = "tables"
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.sleep(86_400)
        return Ok(None)


class PagedTill(Workflow):
    task_queue = QUEUE
    signals = ("close",)

    async def run(self, args: Any) -> Any:
        return Ok(await api.phase(0, signal={"close": lambda _, total: Stop(total)}))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def page(client: Client, run: Any) -> str:
    response = client.get(f"{RUNS}{run}/change/")
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def facts(text: str) -> dict[str, str]:
    """The headings and the values in the first panel of a page."""
    pairs = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text)
    return {name: re.sub(r"<[^>]*>", "", value).strip() for name, value in pairs}


def test_the_page_says_where_a_run_lives_and_when_its_row_was_written(worker: None, admin: Client) -> None:
    handle = PagedTill.start(None, id="<b>till")
    wait_for(lambda: handle.describe().status == "waiting")
    run = Instance.objects.get()
    assert run.cluster_id is not None
    assert run.mirrored_at is not None

    text = page(admin, run.pk)
    shown = facts(text)

    assert shown["Runs on"] == "a Temporal cluster"
    assert shown["Id on the cluster"] == run.cluster_id.replace("<", "&lt;").replace(">", "&gt;")
    assert shown["Run id on the cluster"] == str(run.cluster_run_id)
    assert run.mirrored_at.strftime("%H:%M:%S") in shown["As of"]
    assert "<b>till" not in text


def test_a_run_that_has_not_reached_the_cluster_says_so(cluster: dict[str, Any], admin: Client) -> None:
    cluster["ADDRESS"] = "127.0.0.1:1"
    handle = PagedTill.start(None, id="early", start_delay=3600)

    assert facts(page(admin, handle.run_id))["Run id on the cluster"].startswith("none yet")


def test_the_list_marks_runs_on_a_cluster_and_a_page_of_the_tables_has_no_such_facts(
    cluster: dict[str, Any], admin: Client
) -> None:
    there = PagedTill.start(None, id="there", start_delay=3600)
    here = PagedTables.start(None, id="here", start_delay=3600)
    run_until_idle()

    text = " ".join(admin.get(RUNS).content.decode().split())

    assert "PagedTill on a Temporal cluster" in text
    assert 'tx-under">PagedTables<' in text
    assert "Runs on" in facts(page(admin, there.run_id))
    assert not {"Runs on", "As of"} & facts(page(admin, here.run_id)).keys()
