"""Replays take no more processor time than those of the same workflows that are written with the SDK itself."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from temporalex_django import Ok, Reply, Stop, Workflow, activity, api
from temporalex_django.temporal.plugin import TemporalexPlugin
from tests.integration.temporal.plain_sdk import PlainCounter, PlainSteps, plain_step

pytestmark = pytest.mark.once
#: Highest ratio of the two processor times, each the best of the rounds. More rounds run only while it is above.
HIGHEST = 1.15
ROUNDS, MOST_ROUNDS, COPIES = 3, 12, 20


@activity
async def step(number: int) -> int:
    return number + 1


class ClusterSteps(Workflow):
    async def run(self, args):
        number = 0
        for _ in range(args):
            number = await step(number)
        return Ok(number)


class ClusterTally(Workflow):
    async def run(self, args):
        def add(number, total):
            return Reply(total + number, total + number)

        return Ok(await api.phase(0, signal={"close": lambda _, total: Stop(total)}, update={"add": add}))


async def plain_worker(cluster):
    client = await Client.connect(cluster.client.service_client.config.target_host)
    worker = Worker(
        client,
        task_queue=f"{cluster.queue}-plain",
        workflows=[PlainSteps, PlainCounter],
        activities=[plain_step],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    return client, worker


async def record_plain(cluster, start):
    client, worker = await plain_worker(cluster)
    async with worker:
        return await start(client, f"{cluster.queue}-plain")


async def add_and_close(handle: Any, updates: int) -> Any:
    for _ in range(updates):
        await handle.execute_update("add", 1)
    await handle.signal("close")
    await handle.result()
    return await handle.fetch_history()


def record_steps(cluster, steps):
    async def start(client, queue):
        handle = await client.start_workflow(PlainSteps.run, steps, id=f"{queue}-{steps}", task_queue=queue)
        assert await handle.result() == steps
        return await handle.fetch_history()

    with cluster.worker():
        handle = cluster.start("ClusterSteps", steps)
        assert cluster.result(handle) == steps
        return cluster.history(handle), cluster.call(record_plain(cluster, start))


def record_updates(cluster, updates):
    async def start(client, queue):
        handle = await client.start_workflow(PlainCounter.run, id=f"{queue}-updates", task_queue=queue)
        return await add_and_close(handle, updates)

    with cluster.worker():
        own = cluster.call(add_and_close(cluster.start("ClusterTally"), updates))
        return own, cluster.call(record_plain(cluster, start))


async def replay_time(replayer: Replayer, history: Any) -> float:
    """The processor time of this process in which copies of a history replay."""

    async def copies() -> AsyncIterator[Any]:
        for _ in range(COPIES):
            yield history

    start = time.process_time()
    results = await replayer.replay_workflows(copies())
    took = time.process_time() - start
    assert not results.replay_failures
    return took


@pytest.mark.parametrize(
    ("record", "number"),
    [(record_steps, 10), (record_steps, 60), (record_updates, 60)],
    ids=["10 activities", "60 activities", "60 updates"],
)
def test_a_replay_takes_no_longer_than_that_of_the_sdk(cluster, record, number):
    own, plain = record(cluster, number)
    own_replayer = Replayer(workflows=[], plugins=[TemporalexPlugin(**cluster.options)])
    plain_replayer = Replayer(workflows=[PlainSteps, PlainCounter], workflow_runner=UnsandboxedWorkflowRunner())
    best = [math.inf, math.inf]
    for number_of_rounds in range(1, MOST_ROUNDS + 1):  # in turns, so that both see the same machine
        for side, (replayer, history) in enumerate(((own_replayer, own), (plain_replayer, plain))):
            best[side] = min(best[side], cluster.call(replay_time(replayer, history)))
        if number_of_rounds >= ROUNDS and best[0] <= HIGHEST * best[1]:
            break
    assert best[0] / best[1] <= HIGHEST
