"""What a unit of work costs does not depend on how many there are.

Counted in calls, since time is no measure in a test.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from temporalex_django import NoReply, Ok, Stop, api
from temporalex_django.core.determinism import guard
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow, work


async def fan(self, args):
    return Ok(len(await api.parallel([partial(work, number) for number in range(args)])))


async def long(self, args):
    def count(_, seen):
        return Stop(seen + 1) if seen + 1 == args else NoReply(seen + 1)

    return Ok(await api.phase(0, signal={"count": count}))


def branches(count: int) -> None:
    assert WorkflowEnvironment().start(flow(fan), count).result() == count


def messages(count: int) -> None:
    handle = WorkflowEnvironment().start(flow(long), count)
    for _ in range(count):
        handle.signal("count")
    assert handle.result() == count


def batch(count: int) -> None:
    env = WorkflowEnvironment()
    handle = env.start(flow(long), count)
    with env.batch():
        for _ in range(count):
            handle.signal("count")
    assert handle.result() == count


@pytest.fixture
def without_guard() -> Iterator[None]:
    """On Python 3.11 it and the profiler are in each other's way."""
    before = guard.mode()
    guard.configure("off")
    yield
    guard.configure(before)


def calls(once: Callable[[int], None], count: int) -> float:
    profile = cProfile.Profile()
    profile.runcall(once, count)
    return pstats.Stats(profile).total_calls / count


@pytest.mark.parametrize("once", [branches, messages, batch], ids=["branches", "messages", "batch"])
def test_calls_a_unit(without_guard, once):
    """Ten times as many branches or messages.

    The same calls for each, beside what is done once and the twenty waits shown.
    """
    once(10)  # what is only done the first time

    few, many = calls(once, 100), calls(once, 1000)

    assert many < 1.2 * few
