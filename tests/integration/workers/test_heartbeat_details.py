"""The details of the last heartbeat reach the next attempt, however soon after it the attempt failed."""

from __future__ import annotations

import pytest

from temporalex_django import Ok, RetryPolicy, Workflow, activity, activity_context
from temporalex_django.testing import drain
from tests.support.waiting import wait_for

SEEN: list[object] = []
QUICK = RetryPolicy(max_attempts=3, initial_interval=0.001)


@activity(retry=QUICK)
def copies(last: int) -> int:
    """Beats, and fails at once."""
    context = activity_context()
    SEEN.append(context.heartbeat_details)
    done = (context.heartbeat_details or {"done": 0})["done"]
    context.heartbeat({"done": done + 1})
    if done + 1 < last:
        raise OSError("the connection broke")
    return done + 1


@activity(retry=QUICK)
async def copies_async(last: int) -> int:
    return copies.__wrapped__(last)


@activity(retry=QUICK)
def says_nothing_again(last: int) -> int:
    """Beats with details in its first attempt alone."""
    context = activity_context()
    SEEN.append(context.heartbeat_details)
    context.heartbeat("first" if context.attempt == 1 else None)
    if context.attempt < last:
        raise OSError("the connection broke")
    return 1


def drain_until_closed(handle):
    """Drain again until the run is closed: a retry may be due a moment after nothing was due."""

    def is_closed():
        drain()
        return handle.describe().closed_at is not None

    wait_for(is_closed)


class Copying(Workflow):
    name = "test.HeartbeatCopying"

    async def run(self, args):
        code = {"sync": copies, "async": copies_async, "once": says_nothing_again}[args]
        return Ok(await code(3))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_next_attempt_goes_on_where_the_last_one_was(kind):
    SEEN.clear()
    handle = Copying.start(kind, id="copying")

    drain_until_closed(handle)

    assert handle.result(timeout=0) == 3
    assert SEEN == [None, {"done": 1}, {"done": 2}]


@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_without_details_keeps_those_before():
    SEEN.clear()
    handle = Copying.start("once", id="copying")

    drain_until_closed(handle)

    assert handle.result(timeout=0) == 1
    assert SEEN == [None, "first", "first"]
