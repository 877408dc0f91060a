"""The work of ``clustered`` with the plain SDK of Temporal, as its documentation writes a worker and a client.

Run as a module with the address of a server, it is the worker: it prints a line when it polls.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE: Final = "plain"
_THREADS: Final = 10


@activity.defn
def nothing() -> int:
    return 1


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, steps: int) -> int:
        for _ in range(steps):
            await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=60))
        return 1


@workflow.defn
class Counter:
    """Counts signals and updates up to a number."""

    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.wait_condition(lambda: self.count >= number)
        return self.count

    @workflow.signal
    def seen(self, number: int) -> None:
        self.count += number

    @workflow.update
    def add(self, number: int) -> int:
        self.count += number
        return self.count


class PlainClient:
    """The client: each call of a work starts a run and waits for its result."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.works: Mapping[str, Callable[[list[float]], Awaitable[None]]] = {
            "one": lambda _: self._steps(1),
            "ten": lambda _: self._steps(10),
            "signals": lambda _: self._signals(),
            "updates": self._updates,
        }

    async def _start(self, cls: Any, number: int) -> Any:
        return await self._client.start_workflow(cls.run, number, id=uuid.uuid4().hex, task_queue=QUEUE)

    async def _steps(self, number: int) -> None:
        await (await self._start(Steps, number)).result()

    async def _signals(self) -> None:
        run = await self._start(Counter, 10)
        for _ in range(10):
            await run.signal(Counter.seen, 1)
        await run.result()

    async def _updates(self, took: list[float]) -> None:
        run = await self._start(Counter, 5)
        for _ in range(5):
            began = time.perf_counter()
            await run.execute_update(Counter.add, 1)
            took.append(time.perf_counter() - began)
        await run.result()


async def _work(address: str) -> None:
    client = await Client.connect(address)
    with ThreadPoolExecutor(_THREADS) as threads:
        worker = Worker(
            client, task_queue=QUEUE, workflows=[Steps, Counter], activities=[nothing], activity_executor=threads
        )
        async with worker:
            print("ready", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
