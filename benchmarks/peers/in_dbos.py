"""The peer DBOS: workflows of steps that do nothing, in one process. Run as a module, it prints JSON.

It works in its documented ways: workflows that the process starts itself, in threads or in an event loop, and a queue
that a client has filled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
from typing import Any

from benchmarks.measures import milliseconds, timed
from benchmarks.peers.measured import best, told

#: As large as the pool of threads that DBOS starts workflows in.
_POOL = 32


def measure(row: str, count: int, url: str) -> dict[str, Any]:
    if url.startswith("sqlite:"):
        _newer_sqlite()
    from dbos import DBOS, DBOSConfig

    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": _POOL,
        "log_level": "ERROR",
        "application_version": "1",
    }
    DBOS(config=config)
    return {"one": _steps, "ten": _steps, "atomic": _atomic, "starts": _starts, "latency": _latency, "fan": _fan}[row](
        row, count, url
    )


def _newer_sqlite() -> None:
    """Replace ``sqlite3`` if it is older than the version 3.42 that DBOS needs, as in many builds of Python."""
    import sqlite3

    if sqlite3.sqlite_version_info < (3, 42):
        with contextlib.suppress(ImportError):
            sys.modules["sqlite3"] = importlib.import_module("pysqlite3")


def _work(steps: int) -> tuple[Any, Any]:
    """Return a workflow of so many steps for threads, and one for an event loop."""
    from dbos import DBOS

    @DBOS.step()
    def nothing() -> int:
        return 1

    @DBOS.workflow()
    def work() -> None:
        for _ in range(steps):
            nothing()

    @DBOS.step()
    async def anothing() -> int:
        return 1

    @DBOS.workflow()
    async def awork() -> None:
        for _ in range(steps):
            await anothing()

    return work, awork


def _steps(row: str, count: int, url: str) -> dict[str, Any]:
    from dbos import DBOS

    steps = 10 if row == "ten" else 1
    work, awork = _work(steps)
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=0.01, worker_concurrency=_POOL)
    work()

    def threads() -> float:
        began = time.perf_counter()
        for handle in [DBOS.start_workflow(work) for _ in range(count)]:
            handle.get_result()
        return steps * count / (time.perf_counter() - began)

    async def together() -> None:
        handles = [await DBOS.start_workflow_async(awork) for _ in range(count)]
        await asyncio.gather(*(handle.get_result() for handle in handles))

    def loop() -> float:
        return steps * count / timed(lambda: asyncio.run(together()))

    def queued() -> float:
        began = time.perf_counter()
        handles = [DBOS.enqueue_workflow("bench", work) for _ in range(count)]
        for handle in handles:
            handle.get_result(polling_interval_sec=0.05)
        return steps * count / (time.perf_counter() - began)

    figure = "steps_per_s" if row == "ten" else "workflows_per_s"
    return best(figure, {"threads": threads, "event loop": loop, "queue": queued})


def _atomic(row: str, count: int, url: str) -> dict[str, Any]:
    import sqlalchemy
    from dbos import DBOS, SQLAlchemyDatasource

    source = SQLAlchemyDatasource.create(url)
    with source.engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table if not exists bench_entry (number int)"))

    @source.transaction()
    def enter(number: int) -> int:
        source.sql_session().execute(sqlalchemy.text("insert into bench_entry values (:number)"), {"number": number})
        return number

    @DBOS.workflow()
    def work() -> None:
        for number in range(10):
            enter(number)

    DBOS.launch()
    work()

    def threads() -> float:
        began = time.perf_counter()
        for handle in [DBOS.start_workflow(work) for _ in range(count)]:
            handle.get_result()
        return 10 * count / (time.perf_counter() - began)

    return best("steps_per_s", {"threads": threads})


def _starts(row: str, count: int, url: str) -> dict[str, Any]:
    from dbos import DBOS, DBOSClient

    DBOS.launch()
    client = DBOSClient(system_database_url=url)
    options: Any = {"queue_name": "nobody", "workflow_name": "work"}
    client.enqueue(options)
    seconds = timed(lambda: [client.enqueue(options) for _ in range(count)])
    return {"starts_per_s": round(count / seconds), "way": "enqueued by a client"}


def _latency(row: str, count: int, url: str) -> dict[str, Any]:
    from dbos import DBOS

    @DBOS.step()
    def nothing() -> int:
        return 1

    @DBOS.workflow()
    def work() -> int:
        return nothing()

    DBOS.launch()
    for _ in range(5):
        work()
    return {**milliseconds([timed(work) for _ in range(count)]), "way": "in the process that starts it"}


def _fan(row: str, count: int, url: str) -> dict[str, Any]:
    from dbos import DBOS

    @DBOS.step()
    async def nothing() -> int:
        return 1

    @DBOS.workflow()
    async def work(branches: int) -> int:
        return len(await asyncio.gather(*(nothing() for _ in range(branches))))

    DBOS.launch()
    asyncio.run(work(10))

    def gather() -> float:
        return count / timed(lambda: asyncio.run(work(count)))

    return best("steps_per_s", {"gather of steps": gather})


if __name__ == "__main__":
    told(measure)
