"""Input that a run cannot take: it is named, nothing is lost, and the run goes on when the cause is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.client import Client, WorkflowUpdateFailedError

from temporalex_django import Ok, Reply, Stop, Workflow, activity, api
from temporalex_django.temporal.options import HostOptions
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.temporal.run import TemporalRun
from tests.support.temporal_cluster import Cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.once
#: The server waits for this time before it tries a task again that has failed.
TASK_TIMEOUT = timedelta(seconds=1)
PARTED = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR


def start(cluster: Cluster, workflow: str, args: Any = None, *, task_timeout: timedelta = TASK_TIMEOUT) -> Any:
    """A run whose failed tasks are soon tried again."""
    run = cluster.client.start_workflow(
        workflow,
        args=[args, {"version": 1}],
        id=f"{workflow}-{cluster.queue}",
        task_queue=cluster.queue,
        task_timeout=task_timeout,
    )
    return cluster.call(run)


def task_failures(cluster: Cluster, handle: Any) -> list[Any]:
    """The failed tasks of a run, oldest first. The server records the first one of a row."""
    return [
        event.workflow_task_failed_event_attributes
        for event in cluster.history(handle).events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]


def failure_of(cluster: Cluster, handle: Any) -> Any:
    """The first failed task of a run, which it waits for."""
    return wait_for(lambda: task_failures(cluster, handle))[0]


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_an_unknown_job_fails_the_task():
    info: Any = SimpleNamespace(workflow_type="Any", workflow_id="any-1", run_id="1", namespace="n", task_queue="q")
    act = WorkflowActivation(run_id="1")
    act.jobs.add().resolve_nexus_operation.SetInParent()
    completion = TemporalRun(HostOptions(payloads=Payloads()), info).activate(act)
    assert completion.HasField("failed")
    assert "'resolve_nexus_operation'" in completion.failed.failure.message
    assert "does not know" in completion.failed.failure.message


# -- types and payloads --------------------------------------------------------------------------------------------


def test_a_run_whose_type_the_worker_lacks_goes_on_when_one_has_it(cluster):
    with cluster.worker():
        handle = start(cluster, "Newcomer", 5)
        cluster.call(handle.signal("early", 1))
        assert "restore the class" in failure_of(cluster, handle).failure.message

        class Newcomer(Workflow):
            async def run(self, args):
                return Ok([args, await api.wait_for_signal("early")])

        assert cluster.result(handle) == [5, 1]


class Backwards:
    """A codec whose payloads only this codec reads."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return json.loads(data[::-1])


class ClusterEcho(Workflow):
    async def run(self, args):
        return Ok([args, await api.wait_for_signal("say")])


@pytest.fixture
def other_cluster(temporal_address: str, cluster: Cluster) -> Iterator[Cluster]:
    """The same queue, with workers and clients that have a codec of their own."""
    other = Cluster(temporal_address, codec=Backwards())
    other.queue = cluster.queue
    yield other
    other.close()


def test_a_run_of_another_codec_goes_on_when_a_worker_has_it(cluster, other_cluster):
    handle = start(other_cluster, "ClusterEcho", {"name": "Ada"})
    other_cluster.call(handle.signal("say", "hello"))
    with cluster.worker():
        message = failure_of(other_cluster, handle).failure.message
        assert "the encoding 'binary/temporalex', which this process does not read" in message
        assert "Ada" not in message
    with other_cluster.worker():
        assert other_cluster.result(handle) == [{"name": "Ada"}, "hello"]


# -- code that loops -----------------------------------------------------------------------------------------------

loops = {"on": True}


def count_for_ever(_, state):
    while loops["on"]:
        pass
    return Stop(state)


class ClusterSpinning(Workflow):
    async def run(self, args):
        return Ok(await api.phase(args, signal={"count": count_for_ever}))


def test_a_handler_that_loops_is_interrupted_and_the_run_goes_on(cluster, monkeypatch, caplog):
    monkeypatch.setitem(loops, "on", True)
    with cluster.worker():
        handle = start(
            cluster, "ClusterSpinning", 3, task_timeout=timedelta(seconds=10)
        )  # the SDK interrupts after 2 s
        other = start(cluster, "ClusterEcho")
        cluster.call(handle.signal("count"))
        assert "TMPRL1101" in failure_of(cluster, handle).failure.message
        wait_for(lambda: "the handler of signal count failed: _InterruptDeadlockError" in caplog.text)
        cluster.call(other.signal("say", 1))
        assert cluster.result(other) == [None, 1]  # the worker goes on with other runs
        monkeypatch.setitem(loops, "on", False)
        assert cluster.result(handle) == 3


# -- updates -------------------------------------------------------------------------------------------------------


class ClusterCollecting(Workflow):
    async def run(self, args):
        def add(text, total):
            return Reply(total + len(text), total + len(text))

        return Ok(await api.phase(0, signal={"close": lambda _, total: Stop(total)}, update={"add": add}))


async def update_as_stranger(cluster: Cluster, workflow_id: str, text: str) -> None:
    """Send an update from a client without the plugin, which would refuse it."""
    client = await Client.connect(cluster.client.service_client.config.target_host)
    await client.get_workflow_handle(workflow_id).execute_update("add", text)


@pytest.mark.parametrize(
    ("size", "type_and_message"),
    [
        (2_050_000, ("PayloadError", "2,050,002 bytes")),
        # The rejection would have to repeat it. The server rejects what the worker does not answer.
        (2_200_000, ("UnprocessedUpdate", "wasn't processed by worker")),
    ],
)
def test_an_update_that_is_too_large_is_rejected_before_it_is_accepted(cluster, size, type_and_message):
    with cluster.worker():
        handle = start(cluster, "ClusterCollecting")
        cluster.wait_until_waiting(handle, "phase")
        with pytest.raises(WorkflowUpdateFailedError) as rejected:
            cluster.call(update_as_stranger(cluster, handle.id, "x" * size))
        assert type_and_message[0] == rejected.value.cause.type
        assert type_and_message[1] in rejected.value.cause.message
        assert cluster.call(handle.execute_update("add", "abc")) == 3
        cluster.call(handle.signal("close"))
        assert cluster.result(handle) == 3
    accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    assert [event.event_type for event in cluster.history(handle).events].count(accepted) == 1
    assert task_failures(cluster, handle) == []


# -- code that parts from the history ------------------------------------------------------------------------------


@activity
def weigh(value: int) -> int:
    return value


@activity
def measure(value: int) -> int:
    return value


def use_parting_class(*, step: Any, update: str) -> None:
    """Define the class with the step before its phase, and the name of its update."""

    def add(number, total):
        return Reply(total + number, total + number)

    class Parting(Workflow):
        async def run(self, args):
            total = await step(args)
            return Ok(await api.phase(total, signal={"close": lambda _, state: Stop(state)}, update={update: add}))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"step": measure, "update": "add"}, "measure"),
        ({"step": weigh, "update": "sum"}, "the history has accepted the update 'add'"),
    ],
    ids=["another activity", "an update that nothing takes"],
)
def test_code_that_parts_from_the_history_is_named_and_nothing_is_lost(cluster, changed, named):
    use_parting_class(step=weigh, update="add")
    with cluster.worker(cache=0):
        handle = start(cluster, "Parting", 1)
        cluster.wait_until_waiting(handle, "phase")
        assert cluster.call(handle.execute_update("add", 4)) == 5
    use_parting_class(**changed)
    with cluster.worker(cache=0):
        cluster.call(handle.signal("close"))
        failed = failure_of(cluster, handle)
        assert failed.cause == PARTED
        assert named in failed.failure.message
        use_parting_class(step=weigh, update="add")
        assert cluster.result(handle) == 5
