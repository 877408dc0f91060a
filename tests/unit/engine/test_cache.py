"""What is kept in memory is bounded by number and by bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from temporalex_django import Ok, api
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import RunInfo
from temporalex_django.engine.executors import Cache, CachedRun
from tests.support.runs import flow


async def _run(self: Any, args: Any) -> Any:
    return Ok(await api.wait_for_signal("go"))


def entry(*, payloads: int = 0, length: int = 0) -> CachedRun:
    info = RunInfo(workflow="Flow", id="f-1", run_id="r-1", version=1)
    executor = Executor(flow(_run).definition, info)
    facts: Any = None
    return CachedRun(executor, facts, None, 0, length, payload_bytes=payloads)


def filled(cache: Cache, entries: list[CachedRun]) -> list[UUID]:
    ids = [uuid4() for _ in entries]
    for run_id, one in zip(ids, entries, strict=True):
        cache.put(run_id, one)
    return ids


def kept(cache: Cache, ids: list[UUID]) -> list[bool]:
    return [cache.take(run_id) is not None for run_id in ids]


def test_the_least_recently_used_go_when_there_are_too_many_bytes() -> None:
    cache = Cache(100, max_bytes=entry(payloads=10_000).size * 3)
    ids = filled(cache, [entry(payloads=10_000) for _ in range(5)])
    assert len(cache) == 3
    assert kept(cache, ids) == [False, False, True, True, True]


def test_a_large_one_takes_the_place_of_many_and_stays_itself() -> None:
    cache = Cache(100, max_bytes=entry().size * 10)
    ids = filled(cache, [entry() for _ in range(10)])
    (large,) = filled(cache, [entry(payloads=10**7)])
    assert kept(cache, [*ids, large]) == [False] * 10 + [True]
    ids = filled(cache, [entry() for _ in range(12)])  # what was taken out counts no more
    assert kept(cache, ids) == [False] * 2 + [True] * 10


def test_an_entry_that_grew_is_counted_as_it_is_now() -> None:
    cache = Cache(100, max_bytes=entry().size * 10)
    ids = filled(cache, [entry() for _ in range(10)])
    grown = cache.take(ids[-1])
    assert grown is not None
    grown.payload_bytes += grown.size
    cache.put(ids[-1], grown)
    assert len(cache) < 9
    assert kept(cache, ids)[-1]
