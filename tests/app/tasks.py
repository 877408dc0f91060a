"""Django tasks that tests enqueue; ``tests.settings_tasks`` (or the fixture of a test) names their backends."""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path

from temporalex_django import RetryPolicy, activity_context, progress
from temporalex_django.tasks import task

#: What ran, in order.
RAN: list[object] = []


@task
def add(a: int, b: int = 0) -> int:
    RAN.append(("add", a, b))
    return a + b


@task(priority=5, queue_name="mail")
def mail(to: str) -> None:
    RAN.append(to)


@task
def fails(text: str) -> None:
    raise ValueError(text)


@task(retry=RetryPolicy(max_attempts=3, initial_interval=0.0))
def flaky(times: int) -> str:
    RAN.append("flaky")
    if RAN.count("flaky") <= times:
        raise LookupError(f"no {len(RAN)}")
    return activity_context().idempotency_key


@task
async def later(n: int) -> dict[str, int]:
    return {"n": n}


@task(takes_context=True)
def told(context, name: str) -> list[object]:
    result = context.task_result
    return [context.attempt, result.id, str(result.status), result.args, name, result.started_at is not None]


@task(takes_context=True)
async def told_later(context) -> int:
    return context.attempt


@task
def no_json() -> date:
    return date(2026, 1, 1)


@task(start_to_close=60.0)
def held(log: str, hold: str) -> int:
    """Writes its process id, and waits until a file is gone."""
    with Path(log).open("a") as out:
        out.write(f"{os.getpid()}\n")
    deadline = time.monotonic() + 30
    while Path(hold).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return os.getpid()


@task(retry=RetryPolicy(max_attempts=1))
def dies(log: str) -> None:
    with Path(log).open("a") as out:
        out.write("here\n")
    os._exit(9)


@task
def kills(log: str) -> None:
    """Whoever runs it."""
    with Path(log).open("a") as out:
        out.write("here\n")
    os._exit(9)


def pause_of(exception: BaseException, task_result) -> float | None:
    """Return 30 seconds for each attempt so far, and None for what no attempt can repair."""
    RAN.append((type(exception).__name__, task_result.attempts, len(task_result.errors), str(task_result.status)))
    return None if isinstance(exception, KeyError) else 30.0 * task_result.attempts


@task(max_attempts=3, backoff=pause_of)
def stumbles(error: str) -> None:
    raise {"LookupError": LookupError, "KeyError": KeyError}[error](error)


@task(max_attempts=3, backoff=pause_of)
async def stumbles_later(error: str) -> None:
    raise LookupError(error)


@task(max_attempts=2)
def stumbles_twice() -> None:
    raise LookupError("twice")


@task(backoff=lambda exception, task_result: -1)
def stumbles_backwards() -> None:
    raise LookupError("backwards")


@task
def beats(log: str, end: str) -> str:
    """Send heartbeats until the file ``end`` exists or a heartbeat raises."""
    context = activity_context()
    Path(log).write_text("here")
    deadline = time.monotonic() + 30
    while not Path(end).exists() and time.monotonic() < deadline:
        context.heartbeat()
        time.sleep(0.01)
    return "returned"


@task(retry=RetryPolicy(max_attempts=5, initial_interval=3600.0, max_interval=3600.0))
def notices(log: str, end: str) -> str:
    """Wait until the task is cancelled, and do then what ``end`` says: return, or raise an error of its own."""
    context = activity_context()
    Path(log).write_text("here")
    deadline = time.monotonic() + 30
    while not context.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.01)
    if end == "raise":
        raise LookupError("stopped half way")
    return "returned"


@task
def reports(done: float, total: float, text: str, end: str) -> None:
    """Report the progress again and again, until the file ``end`` exists."""
    deadline = time.monotonic() + 30
    while not Path(end).exists() and time.monotonic() < deadline:
        progress(done, total, text)
        time.sleep(0.01)
