"""A run that is dropped from memory takes all of its memory along.

Nothing of it is left for the garbage collector, which comes late.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any
from uuid import UUID

import pytest

from temporalex_django import Async, NoReply, Ok, Stop, activity, api
from temporalex_django.testing import WorkflowEnvironment
from tests.support.runs import flow


@activity
def held(n: int) -> int:
    return n


async def an_activity(self: Any, args: Any) -> Any:
    await held(1)


async def a_sleep(self: Any, args: Any) -> Any:
    await api.sleep(100)


async def a_condition(self: Any, args: Any) -> Any:
    ready: list[int] = []
    await api.wait_condition(lambda: ready)


async def a_condition_with_a_timeout(self: Any, args: Any) -> Any:
    ready: list[int] = []
    await api.wait_condition(lambda: ready, timeout=50)


async def a_signal(self: Any, args: Any) -> Any:
    await api.wait_for_signal("go")


async def branches(self: Any, args: Any) -> Any:
    await api.parallel([held(1), lambda: api.sleep(5)])


async def a_shield(self: Any, args: Any) -> Any:
    async with api.shield():
        await held(1)


async def a_generator(self: Any, args: Any) -> Any:
    async def numbers() -> Any:
        yield 1
        await api.sleep(5)

    async for _ in numbers():
        pass


async def a_phase(self: Any, args: Any) -> Any:
    async def later() -> Any:
        await api.sleep(10)
        return NoReply

    handlers = {"go": lambda _, state: Async(later, state), "stop": lambda _, state: Stop(state)}
    await api.phase(0, signal=handlers, timeout=100)


async def its_end(self: Any, args: Any) -> Any:
    await api.wait_for_signal("go")
    return Ok(1)


@pytest.mark.parametrize(
    "run",
    [
        *(an_activity, a_sleep, a_condition, a_condition_with_a_timeout, a_signal, branches, a_shield, a_generator),
        *(a_phase, its_end),
    ],
)
def test_what_is_dropped_is_free_at_once(run: Any) -> None:
    env = WorkflowEnvironment()
    env.hold(held)
    handle = env.start(flow(run))
    if run is a_phase:
        handle.signal("go")
    entry = env.engine.cache.take(UUID(handle.run_id))
    assert entry is not None
    kept: list[weakref.ref[Any]] = [weakref.ref(entry.executor)]
    kept += [weakref.ref(unit.coroutine) for unit in entry.executor.scheduler.units.values()]
    gc.disable()
    try:
        if run is its_end:
            env.engine.cache.put(UUID(handle.run_id), entry)
            del entry
            handle.signal("go")
            assert handle.status == "completed"
        else:
            entry.executor.evict()
            del entry
        assert all(ref() is None for ref in kept)
    finally:
        gc.enable()
