"""One worker for the tables and the cluster: what it polls, how it ends, and how activities run in it."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from temporalex_django import Ok, Workflow, activity, activity_context, errors, signals
from temporalex_django.models import Instance, SwitchedOff, Worker
from temporalex_django.workers.loop import WorkerLoop
from tests.support.commands import shell
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-worker-{uuid.uuid4().hex[:8]}"
_released = threading.Event()
_seen: list[Any] = []


@contextmanager
def looping(queue: str = QUEUE, **options: Any) -> Iterator[WorkerLoop]:
    """A worker in threads of this process, as ``temporalex worker`` runs it."""
    loop, stop = WorkerLoop(queues=[queue], **options), threading.Event()
    thread = threading.Thread(target=loop.run, args=[stop])
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


@activity
def triple_on_cluster(number: int) -> int:
    return number * 3


@activity
async def triple_in_the_loop(number: int) -> int:
    await asyncio.sleep(0)
    return number * 3


@activity(heartbeat=3)  # the cluster tells of a cancellation in the answer to a heartbeat
def wait_until_cancelled(_: Any) -> None:
    _seen.extend([activity_context().idempotency_key, activity_context().workflow_id])
    while not activity_context().is_cancelled():
        time.sleep(0.01)
    _seen.append("cancelled")


@activity(atomic=True)
def wait_for_release(number: int) -> int:
    _seen.append("begun")
    assert _released.wait(30)
    return number


class MirroredLanes(Workflow):
    task_queue = QUEUE

    async def run(self, args: int) -> Any:
        return Ok([await triple_on_cluster(args), await triple_in_the_loop(args)])


class TablesLanes(Workflow):
    backend = "tables"
    task_queue = QUEUE

    async def run(self, args: int) -> Any:
        return Ok(await triple_on_cluster(args))


class MirroredWaits(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await (wait_for_release(args) if args else wait_until_cancelled(None)))


def new_id() -> str:
    return f"worker-{uuid.uuid4().hex[:8]}"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    _released.clear()
    _seen.clear()
    yield
    _released.set()


def test_one_worker_serves_the_tables_and_the_cluster(cluster: Any) -> None:
    with transaction.atomic():
        theirs, ours = MirroredLanes.start(2, id=new_id()), TablesLanes.start(3, id=new_id())
    with looping() as loop:
        result = theirs.result(timeout=60)
        assert ours.result(timeout=20) == 9
        assert loop.cluster is not None
        assert loop.cluster.polled_queues == {QUEUE}
        assert Worker.objects.get().queues == [QUEUE]
    assert result == [6, 6]
    assert {run.workflow: run.status for run in Instance.objects.all()} == {
        "MirroredLanes": "completed",
        "TablesLanes": "completed",
    }
    assert not Worker.objects.exists()


@pytest.mark.parametrize("backend", ["tables", "temporal"])
def test_a_worker_of_one_backend_leaves_the_other_one_alone(cluster: Any, backend: str) -> None:
    runs = {"tables": TablesLanes.start(1, id=new_id()), "temporal": MirroredLanes.start(1, id=new_id())}
    mine, other = runs.pop(backend), next(iter(runs.values()))
    with looping(backends=[backend]):
        mine.result(timeout=60)
        if backend == "tables":
            assert other.describe().status == "pending"
        else:
            assert Worker.objects.get().queues == []
            assert Instance.objects.get(pk=other.run_id).started_at is None


def test_an_activity_learns_that_it_is_cancelled(cluster: Any) -> None:
    handle = MirroredWaits.start(None, id=new_id())
    with looping():
        wait_for(lambda: _seen)
        run = Instance.objects.get()
        assert _seen == [f"{run.pk}:1", handle.id]
        handle.cancel(reason="enough")
        wait_for(lambda: "cancelled" in _seen)
        with pytest.raises(errors.WorkflowCancelled):
            handle.result(timeout=20)


def test_a_stop_waits_for_an_activity_and_sends_its_result(cluster: Any) -> None:
    handle = MirroredWaits.start(7, id=new_id())

    def release_during_the_stop(loop: Any) -> None:
        wait_for(lambda: loop.cluster._stopping is not None)
        _released.set()

    with looping() as loop:
        wait_for(lambda: _seen)
        threading.Thread(target=release_during_the_stop, args=[loop]).start()
    with looping():
        assert handle.result(timeout=60) == 7
    assert _seen == ["begun"]


def test_a_drained_worker_and_a_queue_that_is_off_are_not_polled(cluster: Any) -> None:
    with looping() as loop:
        assert loop.cluster is not None
        wait_for(lambda: loop.cluster.polled_queues)
        SwitchedOff.objects.create(kind="queue", name=QUEUE, since=timezone.now())
        wait_for(lambda: not loop.cluster.polled_queues)
        SwitchedOff.objects.all().delete()
        wait_for(lambda: loop.cluster.polled_queues)
        Worker.objects.update(drained_at=timezone.now())
        wait_for(lambda: not loop.cluster.polled_queues)
        handle = MirroredLanes.start(1, id=new_id())
        Worker.objects.update(drained_at=None)
        assert handle.result(timeout=60)[0] == 3


def test_the_tables_go_on_while_the_cluster_does_not_answer(
    cluster: Any, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "ADDRESS": "127.0.0.1:1"}}
    handle = TablesLanes.start(1, id=new_id())
    with looping() as loop:
        assert handle.result(timeout=60) == 3
        wait_for(lambda: "is polled again" in caplog.text)
        assert not loop.cluster.polled_queues
        settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": cluster}
        wait_for(lambda: loop.cluster.polled_queues)


def test_signals_about_activities_are_sent(cluster: Any) -> None:
    heard: list[tuple[str, str]] = []

    def hear(sender: Any, **facts: Any) -> None:
        heard.append((facts["workflow_id"], facts["activity"]))

    signals.activity_started.connect(hear)
    try:
        handle = MirroredLanes.start(1, id=new_id())
        with looping():
            handle.result(timeout=60)
    finally:
        signals.activity_started.disconnect(hear)
    assert len(heard) == 2
    assert {workflow_id for workflow_id, _ in heard} == {handle.id}


def test_a_cluster_is_not_polled_in_a_burst(cluster: Any) -> None:
    ran = shell("worker", "--burst", "--backend", "temporal")
    assert ran.status != 0
    assert "--burst and --backend temporal cannot be combined" in ran.err


def test_a_project_without_a_cluster_polls_none() -> None:
    assert WorkerLoop(queues=[QUEUE]).cluster is None
    ran = shell("worker", "--backend", "temporal")
    assert "the settings name no Temporal cluster" in ran.err
