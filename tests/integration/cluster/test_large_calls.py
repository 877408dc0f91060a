"""Many and large calls of one activation on a cluster: they are split into workflow tasks, and replays agree."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from temporalex_django import Ok, Workflow, activity, api
from temporalex_django.backends.cluster import outgoing
from temporalex_django.backends.cluster.client import cluster_client
from temporalex_django.backends.cluster.ids import cluster_id_of, task_queue
from temporalex_django.models import Instance
from temporalex_django.temporal.plugin import TemporalexPlugin
from temporalex_django.temporal.start_facts import TASK_LIMITS
from temporalex_django.testing import WorkflowEnvironment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-large-{uuid.uuid4().hex[:8]}"


@activity
async def weigh_large(text: str) -> int:
    return len(text)


@activity(queue="nobody-polls-this")
async def weigh_never(text: str) -> int:
    return len(text)


class LargeFan(Workflow):
    """It calls an activity ``count`` times at once, each with ``size`` characters."""

    task_queue = QUEUE

    async def run(self, args: dict[str, int]) -> Ok[int]:
        sizes = await api.parallel([weigh_large("x" * args["size"]) for _ in range(args["count"])])
        return Ok(sum(sizes))


class LargeFanAfterRace(LargeFan):
    """Its calls come in the task that cancels an activity, whose end the SDK reports in the same task."""

    task_queue = QUEUE

    async def run(self, args: dict[str, int]) -> Ok[int]:
        await api.race([weigh_never("x"), api.sleep(0.2)])
        return await super().run(args)


def fan(count: int, size: int, cls: Any = LargeFan) -> Any:
    return cls.start({"count": count, "size": size}, id=f"fan-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def kept(worker: None) -> Iterator[list[str]]:
    """The runs of the test: their tasks must not have failed or timed out, and their histories are replayed."""
    ids: list[str] = []
    yield ids
    client = cluster_client()
    for row in Instance.objects.filter(workflow_id__in=ids):
        there = client.call(
            lambda sdk, row=row: sdk.get_workflow_handle(row.cluster_id, run_id=str(row.cluster_run_id)).fetch_history()
        )
        kinds = {event.event_type for event in there.events}
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds
        assert EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT not in kinds
        client.call(lambda sdk, history=there: replay(sdk, history))


async def replay(sdk: Client, history: WorkflowHistory) -> None:
    plugin = TemporalexPlugin(queue_name=task_queue, workflow_id=cluster_id_of)
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)


def calls_by_task(handle: Any) -> list[int]:
    """How many activities each workflow task that scheduled some has scheduled."""
    row = Instance.objects.get(workflow_id=handle.id)
    history = cluster_client().call(lambda sdk: sdk.get_workflow_handle(row.cluster_id).fetch_history())
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    tasks = [attributes.workflow_task_completed_event_id for attributes in scheduled if attributes.activity_id]
    return [tasks.count(task) for task in sorted(set(tasks))]


def test_large_calls_of_one_activation_are_split_by_their_size(kept: list[str]) -> None:
    handle = fan(4, 1_300_000)
    kept.append(handle.id)
    assert handle.result(timeout=60) == 4 * 1_300_000
    assert calls_by_task(handle) == [1, 1, 1, 1]


def test_activations_of_one_task_share_its_room(kept: list[str]) -> None:
    handle = fan(4, 900_000, LargeFanAfterRace)
    kept.append(handle.id)
    assert handle.result(timeout=60) == 4 * 900_000
    assert calls_by_task(handle) == [1, 2, 2]


def test_small_calls_stay_together(kept: list[str]) -> None:
    handle = fan(20, 90_000)
    kept.append(handle.id)
    assert handle.result(timeout=60) == 20 * 90_000
    assert calls_by_task(handle) == [20]


@pytest.mark.slow
def test_thousands_of_calls_are_split_by_their_number(kept: list[str]) -> None:
    handle = fan(2_500, 10)
    kept.append(handle.id)
    assert handle.result(timeout=300) == 25_000
    WorkflowEnvironment().replay_history(LargeFan, handle.history())
    counts = calls_by_task(handle)
    assert sum(counts) == 2_500
    assert max(counts) <= TASK_LIMITS["calls"]


def test_a_run_that_began_without_limits_goes_on_as_before(kept: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    start_request = outgoing.calls.start_request

    def forget(*args: Any, facts: Any, **options: Any) -> Any:
        return start_request(*args, facts={key: fact for key, fact in facts.items() if key != "limits"}, **options)

    monkeypatch.setattr(outgoing.calls, "start_request", forget)
    handle = fan(600, 10)
    kept.append(handle.id)
    assert handle.result(timeout=60) == 6_000
    assert calls_by_task(handle) == [600]
