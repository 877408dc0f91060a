"""The program of docs/howto/run-on-temporal.md."""

from __future__ import annotations

from typing import Any

# worker
from temporalio.client import Client
from temporalio.worker import Worker

from temporalex_django.temporal.plugin import TemporalexPlugin


async def connect(address: str) -> Client:
    return await Client.connect(address, plugins=[TemporalexPlugin()])


async def work(client: Client) -> None:
    await Worker(client, task_queue="default").run()


# client
async def order(client: Client) -> Any:
    handle = await client.start_workflow(
        "Order", args=[{"total": 1}, {"version": 1}], id="order-7", task_queue="default"
    )
    await handle.signal("close")
    return await handle.result()
