"""``observed``: the throughput of ``one`` with traces and metrics, in pairs with the same without them."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import server
from benchmarks.backlog import queue
from benchmarks.measures import wait_until

#: Share of the traces that are sampled.
SAMPLED: Final = 0.01
#: Slices of a pair: with traces and metrics, or without. Whatever changes steadily meanwhile falls on both alike.
_ORDER: Final = (True, False, False, True, False, True, True, False)
#: Two-sided quantiles of Student's distribution for 95 %, by degrees of freedom; 2.0 for more.
_STUDENT: Final = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23}


def run(count: int, pairs: int) -> dict[str, Any]:
    """Measure workflows/s of ``pairs`` pairs of slices with traces and metrics, and of slices without them.

    All slices run in one worker of this process, since two processes of one program differ by more than what is
    measured. Each pair takes ``count`` due runs, and the first pair, which warms the process up, counts nothing.
    """
    from temporalex_django.management.worker import tune_collector

    _set_tracer_provider()
    server.empty()
    tune_collector()
    with _worker_loop():
        times = [_pair(count // len(_ORDER)) for _ in range(pairs + 1)][1:]
    half = count // len(_ORDER) * len(_ORDER) / 2
    return {
        "workflows": count,
        "sampled": SAMPLED,
        "plain_per_s": [round(half / plain.wall) for _, plain in times],
        "observed_per_s": [round(half / observed.wall) for observed, _ in times],
        **_summary("ratio", [plain.wall / observed.wall for observed, plain in times]),
        **_summary("cpu_ratio", [plain.cpu / observed.cpu for observed, plain in times]),
    }


def _summary(name: str, ratios: list[float]) -> dict[str, Any]:
    """Return the ratios of the pairs with their mean and its 95 % interval."""
    mean = statistics.fmean(ratios)
    spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
    half = _STUDENT.get(len(ratios) - 1, 2.0) * spread / math.sqrt(len(ratios))
    return {
        f"{name}s": [round(ratio, 3) for ratio in ratios],
        name: round(mean, 3),
        f"{name}_interval_95": [round(mean - half, 3), round(mean + half, 3)],
    }


@dataclass(slots=True)
class _Times:
    """Seconds that slices took: by the clock, and of the processors."""

    wall: float = 0.0
    cpu: float = 0.0


def _set_tracer_provider() -> None:
    """Have this process sample some of its traces, and send them to an exporter in memory."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(SAMPLED)))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)


def _pair(count: int) -> tuple[_Times, _Times]:
    """Return the times of slices of ``count`` runs each, with traces and metrics, and without them."""
    times = {True: _Times(), False: _Times()}
    for observes in _ORDER:
        _measure(count, times[observes], observes=observes)
    return times[True], times[False]


@contextmanager
def _worker_loop() -> Iterator[None]:
    """Run a worker loop in a thread of this process until the block ends."""
    from temporalex_django.workers.loop import WorkerLoop

    stop = threading.Event()
    thread = threading.Thread(target=WorkerLoop().run, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _measure(count: int, times: _Times, *, observes: bool) -> None:
    """Add the times that the worker loop takes for ``count`` runs, which become due at once."""
    from benchmarks.app.workflows import One
    from temporalex_django.engine.ids import uuid7
    from temporalex_django.models import Instance

    with _observed(observes=observes):
        began = uuid7()
        queue(One, count)
        open_runs = Instance.objects.filter(pk__gt=began, closed_at=None)
        wall, cpu = time.perf_counter(), time.process_time()
        wait_until(lambda: not open_runs.exists(), seconds=60, every=0.005)
        times.wall += time.perf_counter() - wall
        times.cpu += time.process_time() - cpu


@contextmanager
def _observed(*, observes: bool) -> Iterator[None]:
    """Have this process record traces and metrics during the block, if it ``observes``."""
    from temporalex_django.contrib import exporters
    from temporalex_django.contrib.otel import Tracing
    from temporalex_django.interceptors.chain import chain

    if not observes:
        yield
        return
    exporters.install(["prometheus"])
    chain.install([Tracing()])
    try:
        yield
    finally:
        chain.install([])
        exporters.uninstall("prometheus")
