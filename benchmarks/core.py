"""``replay``, ``steps``, ``fan``, ``long``, ``memory``: the executor by itself and in memory.

Time is CPU time of this process.

Each figure is the best of its rounds: the others show how busy the machine was.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks import flows
from temporalex_django import Workflow
from temporalex_django.core.executor import Executor
from temporalex_django.core.history.activation import Activation, RunInfo
from temporalex_django.core.history.events import HistoryEvent, Job
from temporalex_django.core.history.replay import replay as replay_history
from temporalex_django.testing import WorkflowEnvironment

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def replay(count: int, rounds: int) -> dict[str, Any]:
    """Measure events/s from history to executor.

    The histories are one run with ``count`` activities, and carts with as many messages together.
    """
    env = WorkflowEnvironment()
    steps = env.start(flows.Steps, count).history()
    carts = [_shopped(env, f"cart-{number}") for number in range(max(count // 100, 1))]
    return {
        "steps_events_per_s": _rate(len(steps), lambda: replay_history(flows.Steps.definition, steps), rounds),
        "carts_events_per_s": _rate(sum(map(len, carts)), lambda: _replay_all(carts), rounds),
        "events_per_cart": len(carts[0]),
    }


def steps(count: int, rounds: int) -> dict[str, Any]:
    """Measure activity steps/s of one run; each activation brings the last result and asks for the next activity."""
    return {"steps_per_s": _rate(count, lambda: _steps(count), rounds)}


def fan(sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure µs a branch of one ``parallel``.

    There are three ways: all results in one activation, each in one of its own, and in a ``WorkflowEnvironment``.
    """
    return {
        "at_once": _growth(sizes, lambda size: _fan(size, size), rounds),
        "one_by_one": _growth(sizes, lambda size: _fan(size, 1), rounds),
        "environment": _growth(sizes, _fan_in_environment, rounds),
    }


def long(sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure µs a signal through one phase.

    There are three ways: all in one activation, each in one of its own, and in a ``WorkflowEnvironment``.
    """
    return {
        "at_once": _growth(sizes, lambda size: _long(size, size), rounds),
        "one_by_one": _growth(sizes, lambda size: _long(size, 1), rounds),
        "environment": _growth(sizes, _long_in_environment, rounds),
    }


def memory(count: int) -> dict[str, Any]:
    """Measure bytes of a parked executor: a cart with ten items in its phase, and a run that waits for one activity.

    The figures are averages over ``count`` / 10 executors.
    """
    count = max(count // 10, 1)
    return {
        "cart_bytes": _bytes(count, lambda number: _parked(flows.Cart, [_update(i) for i in range(10)], number)),
        "activity_bytes": _bytes(count, lambda number: _parked(flows.Steps, [], number)),
    }


def _shopped(env: WorkflowEnvironment, cart_id: str) -> list[HistoryEvent]:
    handle = env.start(flows.Cart, id=cart_id)
    for number in range(50):
        handle.update("add", {"sku": f"sku-{number}", "quantity": number})
        handle.signal("seen", {"page": number})
    handle.signal("checkout")
    env.advance(60)
    assert handle.status == "completed"
    return handle.history()


def _replay_all(histories: list[list[HistoryEvent]]) -> None:
    for history in histories:
        replay_history(flows.Cart.definition, history)


def _steps(count: int) -> None:
    executor = _executor(flows.Steps)
    completion = executor.activate(Activation(now=NOW, start={"args": count, "seed": 1}))
    for number in range(1, count + 1):
        completion = executor.activate(Activation(now=NOW, jobs=(_completed(number),)))
    assert completion.closed == "CompleteWorkflow"


def _fan(branches: int, batch: int) -> None:
    executor = _executor(flows.Fan)
    completion = executor.activate(Activation(now=NOW, start={"args": branches, "seed": 1}))
    for first in range(1, branches + 1, batch):
        jobs = tuple(_completed(number) for number in range(first, first + batch))
        completion = executor.activate(Activation(now=NOW, jobs=jobs))
    assert completion.closed == "CompleteWorkflow"


def _long(signals: int, batch: int) -> None:
    executor = _executor(flows.Long)
    completion = executor.activate(Activation(now=NOW, start={"args": signals, "seed": 1}))
    for _ in range(0, signals, batch):
        jobs = tuple(Job("SignalReceived", {"name": "count", "payload": 1}) for _ in range(batch))
        completion = executor.activate(Activation(now=NOW, jobs=jobs))
    assert completion.closed == "CompleteWorkflow"


def _fan_in_environment(branches: int) -> None:
    assert WorkflowEnvironment().start(flows.Fan, branches).status == "completed"


def _long_in_environment(signals: int) -> None:
    handle = WorkflowEnvironment().start(flows.Long, signals)
    for _ in range(signals):
        handle.signal("count", 1)
    assert handle.status == "completed"


def _parked(workflow: type[Workflow], messages: list[Job], number: int) -> Executor:
    executor = _executor(workflow, f"run-{number}")
    executor.activate(Activation(now=NOW, start={"args": 1, "seed": number}))
    for message in messages:
        executor.activate(Activation(now=NOW, jobs=(message,)))
    assert executor.closed is None
    return executor


def _update(number: int) -> Job:
    item = {"sku": f"sku-{number}", "quantity": number}
    return Job("UpdateRequested", {"id": f"update-{number}", "name": "add", "args": item})


def _completed(number: int) -> Job:
    return Job("ActivityCompleted", {"seq": number, "result": number})


def _executor(workflow: type[Workflow], id: str = "1") -> Executor:
    return Executor(workflow.definition, RunInfo(workflow=workflow.name, id=id, run_id=id, version=1))


def _bytes(count: int, park: Callable[[int], Executor]) -> int:
    park(0).evict()  # objects that the first one creates for all belong to none
    gc.collect()
    tracemalloc.start()
    try:
        parked = [park(number) for number in range(count)]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for executor in parked:
        executor.evict()
    return round(held / count)


def _rate(count: int, once: Callable[[], object], rounds: int) -> int:
    return round(count / _best(once, rounds))


def _growth(sizes: Sequence[int], once: Callable[[int], None], rounds: int) -> dict[str, Any]:
    """Return µs a unit for each size, and the growth from 100 (or the smallest) to the largest."""
    costs = {size: _cost(size, once, rounds) for size in sizes}
    shown: dict[str, Any] = {f"us_at_{size}": round(cost, 2) for size, cost in costs.items()}
    return {**shown, "growth": round(costs[max(costs)] / costs.get(100, costs[min(costs)]), 2)}


def _cost(size: int, once: Callable[[int], None], rounds: int) -> float:
    """Return µs a unit. Small sizes are repeated, so that a round is long enough to be measured."""
    times = max(1_000 // size, 1)

    def several() -> None:
        for _ in range(times):
            once(size)

    return _best(several, rounds) / (size * times) * 1e6


def _best(once: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        gc.collect()
        began = time.process_time()
        once()
        seconds.append(time.process_time() - began)
    return min(seconds)
