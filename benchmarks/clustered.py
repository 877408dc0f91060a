"""``clustered``: runs on a Temporal cluster beside the plain SDK, and beside the same runs on the tables.

Each side has a worker process and a client process, and does the same four works. The sides take turns, and another one
begins each round, so a ratio compares what the machine did within a minute. Of the ratios of all rounds, the medians
count.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import server
from benchmarks.measures import wait_until
from benchmarks.mirrored import is_reachable
from benchmarks.peers.in_temporal import dev_server
from benchmarks.processes import process, worker

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

SIDES: Final = ("plain", "ours", "tables", "tables_paced")
#: The sides that take turns. After them the tables get no more runs a second than the cluster has done.
_TURNS: Final = SIDES[:3]
WORKS: Final = ("one", "ten", "signals", "updates")
#: Pairs of figures that are compared: the name of the ratio, then the figure and the sides above and below the line.
_RATIOS: Final = (
    ("rate", "runs_per_s", "ours", "plain"),
    ("worker", "worker_ms", "ours", "plain"),
    ("client", "client_ms", "ours", "plain"),
    ("worker_and_client", "worker_and_client_ms", "ours", "plain"),
    ("update_p50", "update_p50_ms", "ours", "plain"),
    ("postgres", "postgres_ms", "ours", "tables"),
    ("postgres_at_same_rate", "postgres_ms", "ours", "tables_paced"),
)


def run(rounds: int) -> dict[str, Any]:
    """Measure ms of processor time a run, runs/s and the p50 of updates, in so many rounds."""
    with dev_server(in_memory=True) as address:
        wait_until(lambda: is_reachable(address), seconds=30)
        found = []
        for number in range(rounds):
            shift = number % len(_TURNS)
            figures = {side: _measure(side, address) for side in (*_TURNS[shift:], *_TURNS[:shift])}
            rates = {work: figures["ours"][work]["runs_per_s"] for work in WORKS}
            found.append(figures | {"tables_paced": _measure("tables", address, rates)})
    return {"rounds": rounds} | {work: _summary(found, work) for work in WORKS}


def _measure(side: str, address: str, rates: dict[str, float] | None = None) -> dict[str, Any]:
    server.empty()
    # With a prefix of its own, since a worker writes the rows of runs that have closed lately and lack them.
    cluster = {"ADDRESS": address, "PREFIX": f"bench-{time.monotonic_ns()}:"}
    options = {"BACKEND": "temporal", "CLUSTER": cluster} if side == "ours" else {}
    environment = {
        "BENCH_TEMPORALEX": json.dumps(options),
        "BENCH_POSTMASTER": str(server.postmaster or ""),
        "BENCH_RATES": json.dumps(rates or {}),
    }
    with (
        _worker(side, address, environment) as child,
        process("-m", "benchmarks.client", side, address, str(child.pid), **environment) as client,
    ):
        assert client.stdout is not None
        lines = [line for line in client.stdout if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"the client of {side} ended without figures")
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


@contextmanager
def _worker(side: str, address: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    if side != "plain":
        with worker(**environment) as child:
            yield child
        return
    with process("-m", "benchmarks.peers.plain_temporal", address) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child


def _summary(rounds: list[dict[str, Any]], work: str) -> dict[str, Any]:
    """Return the medians of the figures of a work by side, and those of its ratios."""
    names = rounds[0]["ours"][work]
    figures = {
        name: {side: round(median(each[side][work][name] for each in rounds), 2) for side in SIDES}
        for name in names
        if all(name in each[side][work] for each in rounds for side in SIDES)
    }
    ratios = {
        ratio: [each[above][work][name] / each[below][work][name] for each in rounds]
        for ratio, name, above, below in _RATIOS
        if name in figures
    }
    return figures | {
        "ratios": {ratio: round(median(values), 2) for ratio, values in ratios.items()},
        "ratios_of_rounds": {ratio: [round(value, 2) for value in values] for ratio, values in ratios.items()},
    }
