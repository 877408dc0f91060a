"""The peer Absurd: tasks of steps that do nothing, spawned by a client, in one worker process.

Run as a module: it prints JSON.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any
from uuid import uuid4

from benchmarks.measures import milliseconds, timed
from benchmarks.peers.measured import best, told

_AT_ONCE = 50


def measure(row: str, count: int, url: str) -> dict[str, Any]:
    _install(url)
    return {"one": _steps, "ten": _steps, "starts": _starts, "latency": _latency}[row](row, count, url)


def _install(url: str) -> None:
    """Install the schema, as its own tool ships it."""
    import absurdctl
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("select to_regclass('absurd.queues')").fetchone() == (None,):
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)


def _steps(row: str, count: int, url: str) -> dict[str, Any]:
    from absurd_sdk import Absurd, AsyncAbsurd

    steps = 10 if row == "ten" else 1

    def filled(kind: Any) -> tuple[Any, str]:
        """Return an app with a queue of its own, in which so many tasks wait."""
        name = f"q{uuid4().hex[:8]}"
        client = Absurd(url, queue_name=name)
        client.create_queue()
        for _ in range(count):
            client.spawn("work", {}, queue=name)
        client.close()
        return kind(url, queue_name=name), name

    def threads(concurrency: int, batch: int) -> float:
        app, name = filled(Absurd)

        @app.register_task(name="work")
        def work(params: Any, ctx: Any) -> int:
            for number in range(steps):
                ctx.step(f"step{number}", lambda: 1)
            return 1

        seconds = _watched(app, name, count, url)
        began = time.perf_counter()
        app.start_worker(concurrency=concurrency, batch_size=batch, poll_interval=0.01)
        return steps * count / (seconds() - began)

    def loop() -> float:
        app, name = filled(AsyncAbsurd)

        async def nothing() -> int:
            return 1

        @app.register_task(name="work")
        async def work(params: Any, ctx: Any) -> int:
            for number in range(steps):
                await ctx.step(f"step{number}", nothing)
            return 1

        seconds = _watched(app, name, count, url)
        began = time.perf_counter()
        asyncio.run(app.start_worker(concurrency=_AT_ONCE, batch_size=_AT_ONCE, poll_interval=0.01))
        return steps * count / (seconds() - began)

    figure = "steps_per_s" if row == "ten" else "workflows_per_s"
    ways = {
        "one after the other, 50 claimed at a time": lambda: threads(1, _AT_ONCE),
        "8 threads": lambda: threads(8, _AT_ONCE),
        "event loop, 50 at a time": loop,
    }
    return best(figure, ways)


def _watched(app: Any, name: str, count: int, url: str) -> Any:
    """Stop the worker when all tasks of the queue are completed; the function that is returned gives the moment."""
    import psycopg

    ended: list[float] = []

    def watch() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            query = f"select count(*) from absurd.t_{name} where state = 'completed'"
            while connection.execute(query).fetchone() != (count,):
                time.sleep(0.05)
        ended.append(time.perf_counter())
        app.stop_worker()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()

    def moment() -> float:
        watcher.join()
        return ended[0]

    return moment


def _starts(row: str, count: int, url: str) -> dict[str, Any]:
    from absurd_sdk import Absurd

    client = Absurd(url, queue_name="starts")
    client.create_queue()
    client.spawn("work", {}, queue="starts")
    seconds = timed(lambda: [client.spawn("work", {}, queue="starts") for _ in range(count)])
    return {"starts_per_s": round(count / seconds), "way": "spawned by a client"}


def _latency(row: str, count: int, url: str) -> dict[str, Any]:
    from absurd_sdk import Absurd

    app = Absurd(url, queue_name="latency")
    app.create_queue()

    @app.register_task(name="work")
    def work(params: Any, ctx: Any) -> int:
        return ctx.step("nothing", lambda: 1)

    threading.Thread(target=lambda: app.start_worker(poll_interval=0.01), daemon=True).start()
    client = Absurd(url, queue_name="latency")

    def call() -> None:
        client.await_task_result(client.spawn("work", {}, queue="latency")["task_id"], timeout=30)

    call()
    return {**milliseconds([timed(call) for _ in range(count)]), "way": "polled every 10 ms by the worker"}


if __name__ == "__main__":
    told(measure)
