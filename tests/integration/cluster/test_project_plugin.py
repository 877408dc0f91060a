"""The plugin of the project, with clients, workers and replayers of the SDK."""

from __future__ import annotations

import asyncio
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

from temporalex_django import Ok, Workflow, activity, api, errors
from temporalex_django.backends.cluster import server_history
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.ids import task_queue
from temporalex_django.backends.cluster.names import OLD_ANSWER
from temporalex_django.backends.cluster.worker import project_plugin
from temporalex_django.models import Instance, Message
from temporalex_django.workers.loop import run_until_idle
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"project-plugin-{uuid.uuid4().hex[:8]}"
#: A run of ``PluginSender`` of an earlier version, which kept the answers of the tables in markers.
RECORDED = Path(__file__).parents[2] / "golden" / "cluster_messages.json"


@activity(atomic=True)
def count_messages(receiver: str) -> int:
    return Message.objects.filter(chain__run__workflow_id=receiver).count()


class PluginHeard(Workflow):
    backend = "tables"
    signals = ("hello",)

    async def run(self, args: Any) -> Any:
        return Ok([len(await api.wait_for_signal("hello")) for _ in range(args)])


class PluginChild(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(args)


class PluginSender(Workflow):
    """Sends messages to runs on the tables, of which some are unknown."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        results = []
        for receiver in args:
            try:
                await api.signal_external(receiver, "hello", "x")
                results.append("sent")
            except errors.WorkflowNotFound:
                results.append("unknown")
        await api.wait_for_signal("go")
        return Ok(results)


class PluginParent(Workflow):
    """Has a child, sends a message, and calls an activity."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        child = await api.child(PluginChild, 1)
        await api.signal_external(args, "hello", "x" * child)
        return Ok(await count_messages(args))


class PluginLarge(Workflow):
    """Sends several messages at once that are too large for one task."""

    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        await api.parallel(*(api.signal_external(args["to"], "hello", "x" * 1_300_000) for _ in range(args["times"])))
        return Ok("sent")


def new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


def heard(times: int = 1) -> Any:
    handle = PluginHeard.start(times, id=new_id("heard"))
    run_until_idle()
    return handle


def history_of(handle: Any) -> WorkflowHistory:
    row = Instance.objects.get(pk=handle.run_id)
    assert row.cluster_id is not None
    return cluster_client().call(
        lambda client: client.get_workflow_handle(row.cluster_id, run_id=str(row.cluster_run_id)).fetch_history()
    )


def replay(history: WorkflowHistory) -> None:
    """Replay with the replayer of the SDK. Raises its error."""
    asyncio.run(Replayer(workflows=[], plugins=[project_plugin()]).replay_workflow(history))


def test_a_run_with_a_child_and_a_message_to_the_tables_replays_with_the_replayer(cluster: Any, worker: None) -> None:
    receiver = heard()
    parent = PluginParent.start(receiver.id, id=new_id("parent"))
    assert parent.result(timeout=20) == 1
    run_until_idle()
    assert receiver.result(timeout=20) == [1]
    replay(history_of(parent))


def test_answers_of_the_tables_are_in_the_history(cluster: Any, worker: None) -> None:
    sender = PluginSender.start([heard().id, "nobody", heard().id], id=new_id("sender"))
    wait_for(lambda: "go" in str(sender.describe().waiting_for))
    history = history_of(sender)
    for events in (sender.history(), server_history.read_events(history.events, cluster_client().payloads)):
        names = [event.kind for event in events]
        assert (names.count("ExternalFailed"), "ActivityScheduled" in names) == (1, False)
    replay(history)
    sender.signal("go")
    assert sender.result(timeout=20) == ["sent", "unknown", "sent"]
    replay(history_of(sender))


def test_a_history_with_the_markers_of_earlier_versions_replays(cluster: Any, settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "PREFIX": "recorded:"}}
    recorded = json.loads(RECORDED.read_text())
    history = WorkflowHistory.from_json(recorded["id"], recorded["history"])
    markers = [event for event in history.events if event.HasField("marker_recorded_event_attributes")]
    assert [OLD_ANSWER in str(marker) for marker in markers] == [True, True]
    replay(history)  # it raises if a command does not match


def test_large_messages_to_the_tables_are_split_into_tasks(cluster: Any, worker: None) -> None:
    receiver = heard(5)
    sender = PluginLarge.start({"to": receiver.id, "times": 5}, id=new_id("large"))
    assert sender.result(timeout=60) == "sent"
    run_until_idle()
    assert receiver.result(timeout=20) == [1_300_000] * 5
    replay(history_of(sender))


def test_a_worker_of_the_sdk_writes_the_rows_of_its_runs(cluster: Any) -> None:
    receiver = heard()
    parent = PluginParent.start(receiver.id, id=new_id("parent"))
    cluster_id = str(Instance.objects.get(pk=parent.run_id).cluster_id)

    with ThreadPoolExecutor(1) as threads:

        async def work() -> Any:
            client = await Client.connect(cluster["ADDRESS"], plugins=[project_plugin(executor=threads)])
            async with Worker(client, task_queue=task_queue(QUEUE)):
                return await client.get_workflow_handle(cluster_id).result()

        assert asyncio.run(work()) == 1
        threads.submit(connections.close_all).result()
    assert parent.describe().status == "completed"
    assert parent.result(timeout=5) == 1
