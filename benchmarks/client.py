"""The client of ``clustered``: a process that starts runs, sends messages and waits for results, and says its cost.

``python -m benchmarks.client SIDE ADDRESS PID``: the side, the address of the Temporal server, and the worker's
process id. It prints JSON: figures by work.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

from benchmarks.measures import percentile
from benchmarks.processes import cpu_seconds, family

#: Runs of each work that are measured, and before that as many as warm up the processes.
RUNS: Final = {"one": 160, "ten": 48, "signals": 64, "updates": 64}
WARM: Final = 24
#: Runs that are open at a time.
_TOGETHER: Final = 8


class Meter:
    """The processor time of the worker, of this client and of PostgreSQL, in the block."""

    def __init__(self, worker: int, postmaster: int | None) -> None:
        self._worker, self._postmaster = worker, postmaster
        self.updates: list[float] = []

    def __enter__(self) -> Self:
        self.updates.clear()
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._spent = [after - before for after, before in zip(self._read(), self._before, strict=True)]

    def _read(self) -> list[float]:
        server = cpu_seconds(family(self._postmaster)) if self._postmaster else 0.0
        return [time.perf_counter(), cpu_seconds(family(self._worker)), time.process_time(), server]

    def figures(self, runs: int) -> dict[str, float]:
        seconds, worker, client, server = self._spent
        found = {
            "runs_per_s": runs / seconds,
            "worker_ms": worker / runs * 1000,
            "client_ms": client / runs * 1000,
            "worker_and_client_ms": (worker + client) / runs * 1000,
        }
        if self._postmaster:
            found["postgres_ms"] = server / runs * 1000
        if self.updates:
            found["update_p50_ms"] = percentile(self.updates, 0.5) * 1000
        return found


def ours() -> Mapping[str, Callable[[list[float]], None]]:
    """Return the works, each of which starts one of our runs and waits for its result."""
    from benchmarks.app.workflows import FiveUpdates, One, TenInSequence, TenSignals

    def signals(_: list[float]) -> None:
        handle = TenSignals.start(None)
        for _number in range(10):
            handle.signal("seen")
        handle.result(timeout=60)

    def updates(took: list[float]) -> None:
        handle = FiveUpdates.start(None)
        for _ in range(5):
            began = time.perf_counter()
            handle.update("add", 1)
            took.append(time.perf_counter() - began)
        handle.result(timeout=60)

    return {
        "one": lambda _: One.start(None).result(timeout=60),
        "ten": lambda _: TenInSequence.start(None).result(timeout=60),
        "signals": signals,
        "updates": updates,
    }


def in_threads(meter: Meter) -> dict[str, Any]:
    """Do our works. ``BENCH_RATES`` has the runs/s of works that are to be no faster than that."""
    import django

    django.setup()
    figures, rates = {}, json.loads(os.environ.get("BENCH_RATES", "{}"))
    with ThreadPoolExecutor(_TOGETHER) as threads:
        for name, work in ours().items():
            list(threads.map(work, [[] for _ in range(WARM)]))
            with meter:
                list(threads.map(_paced(work, meter.updates, rates.get(name)), range(RUNS[name])))
            figures[name] = meter.figures(RUNS[name])
    return figures


def _paced(work: Callable[[list[float]], None], took: list[float], rate: float | None) -> Callable[[int], None]:
    """Return a function that does the work, the number that it gets not before its turn at this rate."""
    began = time.perf_counter()

    def do(number: int) -> None:
        if rate:
            time.sleep(max(began + number / rate - time.perf_counter(), 0.0))
        work(took)

    return do


async def in_loop(address: str, meter: Meter) -> dict[str, Any]:
    from temporalio.client import Client

    from benchmarks.peers.plain_temporal import PlainClient

    figures = {}
    for name, work in PlainClient(await Client.connect(address)).works.items():
        await _several(work, [], WARM)
        with meter:
            await _several(work, meter.updates, RUNS[name])
        figures[name] = meter.figures(RUNS[name])
    return figures


async def _several(work: Callable[[list[float]], Awaitable[None]], took: list[float], number: int) -> None:
    places = asyncio.Semaphore(_TOGETHER)

    async def one() -> None:
        async with places:
            await work(took)

    await asyncio.gather(*(one() for _ in range(number)))


def main() -> None:
    side, address, pid = sys.argv[1:]
    meter = Meter(int(pid), int(os.environ.get("BENCH_POSTMASTER") or 0) or None)
    figures = asyncio.run(in_loop(address, meter)) if side == "plain" else in_threads(meter)
    print(json.dumps(figures), flush=True)
    os._exit(0)  # the threads of the SDK never end


if __name__ == "__main__":
    main()
