"""Workflows and activities of the tests of attempts: what they raise, how long they take, what the clock says."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from temporalex_django import Ok, RetryPolicy, Workflow, activity, activity_context, api
from tests.app.durable import held_by, note

_ONCE = RetryPolicy(max_attempts=1)


@activity(atomic=True, retry=RetryPolicy(max_attempts=3, initial_interval=0.05))
def impatient(path: str, failures: int, *, own: bool) -> int:
    """A row of business data, and a statement that takes longer than this activity lets it, in the first attempts."""
    from django.contrib.auth import get_user_model
    from django.db import connection

    attempt = activity_context().attempt
    note(path, str(attempt))
    get_user_model().objects.create(username=f"impatient-{attempt}")
    with connection.cursor() as cursor:
        cursor.execute("set local statement_timeout = '300ms'" if own else "select 1")
        if attempt <= failures:
            cursor.execute("select pg_sleep(20)")
    return attempt


class Impatient(Workflow):
    async def run(self, args: Any) -> Any:
        return Ok(await impatient(args["path"], args["failures"], own=True))


@activity(start_to_close=5, schedule_to_close=60, retry=RetryPolicy(max_attempts=3, initial_interval=0.05))
def second_time(n: int) -> int:
    if activity_context().attempt == 1:
        raise ValueError("not yet")
    return n


class SecondTime(Workflow):
    """An activity with timeouts whose first attempt fails."""

    async def run(self, args: Any) -> Any:
        return Ok(await second_time(args))


@activity(retry=_ONCE)
async def exiting(which: str) -> None:
    await asyncio.sleep(0)
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[which](1)


class Exiting(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            await exiting(args)
        except Exception as exc:
            return Ok(getattr(exc, "type", None))
        return Ok(None)


@activity(atomic=True, retry=_ONCE)
def exiting_atomically(which: str) -> None:
    from django.contrib.auth import get_user_model

    get_user_model().objects.create(username=which)
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[which](1)


class ExitingAtomically(Workflow):
    async def run(self, args: Any) -> Any:
        try:
            await exiting_atomically(args)
        except Exception as exc:
            return Ok(getattr(exc, "type", None))
        return Ok(None)


@activity
def tiny(path: str) -> None:
    note(path, "tiny")


class Mixed(Workflow):
    """Some activities that take long, or many that take no time."""

    async def run(self, args: Any) -> Any:
        if args.get("long"):
            await api.parallel([long_held(args["hold"]) for _ in range(args["long"])], raise_errors=True)
        else:
            await api.parallel([tiny(args["path"]) for _ in range(args["tiny"])], raise_errors=True)
        return Ok(None)


@activity(retry=_ONCE)
def long_held(hold: str) -> None:
    held_by(hold)


@activity(start_to_close=2.0, retry=_ONCE)
def brief(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


class Many(Workflow):
    """Many attempts that may not be tried again, of which a worker has too few threads."""

    async def run(self, args: Any) -> Any:
        return Ok(len(await api.parallel([brief(args["seconds"]) for _ in range(args["n"])])))
