"""The task queues of a cluster in the table of queues."""

from __future__ import annotations

import re
import socket
import time
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from temporalex_django import Ok, Workflow, api
from temporalex_django.backends.cluster import queues
from temporalex_django.operations.fleet.switches import SwitchOff
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-queues-{uuid.uuid4().hex[:8]}"


class QueuedThere(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await api.wait_for_signal("go"))


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def row(client: Client) -> dict[str, Any]:
    """The row of the queue on the cluster, by REST."""
    results = client.get("/api/queues/").json()["results"]
    (found,) = [each for each in results if (each["queue"], each["backend"]) == (QUEUE, "temporal")]
    return found


def cells(client: Client) -> list[str]:
    """The cells of that row on the page of the workers."""
    text = client.get("/admin/temporalex_django/instance/console/workers/").content.decode()
    (found,) = [
        each for each in re.findall(r"<tr.*?</tr>", text, re.DOTALL) if QUEUE in each and "Temporal cluster" in each
    ]
    return [
        " ".join(re.sub(r"<[^>]*>", " ", cell).split())
        for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", found, re.DOTALL)
    ]


def test_work_on_the_cluster_waits_in_the_table_of_queues(
    cluster: Any, start_worker: Any, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_LOOK_SECONDS", 60.0)  # a busy server is slow
    assert (row(admin)["due_runs"], row(admin)["waiting_since"]) == (0, None)
    handle = QueuedThere.start(None, id=f"queued-{uuid.uuid4().hex[:6]}")
    wait_for(lambda: row(admin)["due_runs"] == 1)

    waiting, shown = row(admin), cells(admin)

    assert waiting["waiting_since"] is not None
    assert (waiting["lag"] >= 0, waiting["running"], waiting["workers"]) == (True, None, [])
    assert shown[1:3] == ["1", "0"]
    assert (shown[4], shown[7]) == ("–", "no worker")
    assert shown[6] != "–"
    SwitchOff("queue", QUEUE, reason="tests").execute()
    assert (row(admin)["kept_back"], row(admin)["waiting_since"]) == (1, None)
    with start_worker():
        wait_for(lambda: row(admin)["due_runs"] == 0)
    handle.terminate()


def test_a_cluster_that_does_not_answer_is_a_sentence_in_the_row(cluster: Any, settings: Any, admin: Client) -> None:
    with socket.socket() as mute:  # it accepts connections, and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        away = {**cluster, "ADDRESS": f"127.0.0.1:{mute.getsockname()[1]}"}
        settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": away}
        began = time.monotonic()
        shown = cells(admin)
        took = time.monotonic() - began
        told = row(admin)

    assert took < 4
    assert "The Temporal cluster has not answered in time." in shown[0]
    assert shown[1:3] == ["–", "–"]
    assert (told["due_runs"], told["lag"], told["problem"]) == (
        None, None, "The Temporal cluster has not answered in time.",
    )  # fmt: skip
