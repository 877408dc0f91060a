"""``mirrored``: how far the rows of runs on a Temporal cluster are behind it, and how fast they are rebuilt."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

from benchmarks.measures import percentile, wait_until
from benchmarks.peers.in_temporal import dev_server
from benchmarks.processes import worker

#: Runs that are started in a second while the lag is measured.
_RATE: Final = 50
#: Of these, the runs that one transaction starts.
_TOGETHER: Final = 10
#: Columns that say when a row was written, and the seed of random numbers, which a run on a cluster has from there.
_OWN_COLUMNS: Final = ("created_at", "mirrored_at", "cluster_task_at", "seed")


def run(count: int, seconds: float) -> dict[str, Any]:
    """Measure the lag of rows at 50 starts/s for ``seconds``, and the rebuilding of ``count`` runs by ``sync``.

    The lag of a row is the time from the beginning of the task that it shows, by the clock of the cluster, to the time
    of its write, by that of the database: the work of the worker is part of it. Of the rebuilt runs, half have ended
    and half are open.

    The server keeps its state in memory: with a file, its disk is measured.
    """
    from django.test import override_settings

    from temporalex_django.backends.cluster.client import cluster_client

    with dev_server(in_memory=True) as address:
        wait_until(lambda: is_reachable(address), seconds=30)
        options = {"BACKEND": "temporal", "CLUSTER": {"ADDRESS": address, "PREFIX": "bench:"}}
        with override_settings(TEMPORALEX=options), worker(BENCH_TEMPORALEX=json.dumps(options)):
            try:
                return {"lag": _measure_lag(seconds), "sync": _measure_sync(count)}
            finally:
                cluster_client().close()


def is_reachable(address: str) -> bool:
    """Return True if something listens at the address."""
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _measure_lag(seconds: float) -> dict[str, Any]:
    from benchmarks.app.workflows import Parked
    from temporalex_django.models import Instance

    at_rest = Instance.objects.filter(status="waiting")
    Parked.start_many([None])
    wait_until(lambda: at_rest.count() == 1, seconds=60)  # the worker polls
    count = round(_RATE * seconds)
    began = time.perf_counter()
    for number in range(0, count, _TOGETHER):
        time.sleep(max(0.0, began + number / _RATE - time.perf_counter()))
        Parked.start_many([None] * _TOGETHER)
    wait_until(lambda: at_rest.count() > count, seconds=60)
    rested_in = time.perf_counter() - began
    times: list[tuple[Any, Any]] = list(at_rest.values_list("cluster_task_at", "mirrored_at"))
    lags = [(written - began_at).total_seconds() for began_at, written in times]
    return {
        "runs": count,
        "runs_per_s": round(count / rested_in, 1),
        "p50_ms": round(percentile(lags, 0.5) * 1000, 1),
        "p99_ms": round(percentile(lags, 0.99) * 1000, 1),
        "longest_ms": round(max(lags) * 1000, 1),
    }


def _measure_sync(count: int) -> dict[str, Any]:
    from benchmarks.app.workflows import One, Parked
    from temporalex_django.backends.cluster.reconcile import sync
    from temporalex_django.db.storage import DjangoStorage
    from temporalex_django.models import Chain, HumanTask, Instance

    began = time.perf_counter()
    for cls in (One, Parked):
        for _ in range(0, count // 2, 500):
            cls.start_many([None] * min(500, count // 2))
    at_rest = Instance.objects.filter(status__in=["completed", "waiting"])
    wait_until(lambda: at_rest.count() == Instance.objects.count() >= count, seconds=1_800, every=0.5)
    executed_in = time.perf_counter() - began
    before = _rows()
    for model in (HumanTask, Instance, Chain):
        model.objects.all().delete()
    began = time.perf_counter()
    repairs = sync(storage=DjangoStorage())
    rebuilt_in = time.perf_counter() - began
    after = _rows()
    different = Counter(
        column
        for key, row in before.items()
        for column, value in row.items()
        if key in after and after[key][column] != value
    )
    return {
        "runs": len(before),
        "executed_in_s": round(executed_in, 1),
        "rebuilt_in_s": round(rebuilt_in, 1),
        "runs_per_s": round(len(before) / rebuilt_in),
        "written": repairs.written,
        "missing": len(before.keys() - after.keys()),
        "different": dict(different),
    }


def _rows() -> dict[Any, dict[str, Any]]:
    """Return the columns of all runs, by the ids that they have on the cluster."""
    from temporalex_django.models import Instance

    names = [field.name for field in Instance._meta.concrete_fields if field.name not in _OWN_COLUMNS]
    return {row["cluster_run_id"]: row for row in Instance.objects.values(*names)}
