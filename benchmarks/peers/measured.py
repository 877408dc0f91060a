"""Measurements of peers: each does the work of a row, in a process of its own, on the same server.

If it cannot, the reason is part of the figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.measures import TooLong
from benchmarks.processes import process

#: Modules that run with the row, the count and the address of the database as arguments.
_CHILDREN: Final = {"dbos": "in_dbos", "absurd": "in_absurd", "temporal": "in_temporal"}
_BEGAN: Final = time.monotonic()
PEERS: Final = (*_CHILDREN, "django-q2", "django-tasks-db")
#: Peers are slower, and a rate needs no more: all ways of all peers have to fit into the time of a row.
_AT_MOST: Final = {
    "one": 600,
    "ten": 200,
    "atomic": 100,
    "starts": 1_000,
    "tasks": 2_000,
    "latency": 100,
    "update": 200,
    "fan": 1_000,
}
#: Limits of the dev server, which is made for trials: it does tens of activities a second, and has two minutes as well.
_OF_TEMPORAL: Final = {"one": 150, "ten": 30, "starts": 500}


def measured(peer: str, row: str, options: Namespace, seconds: float) -> dict[str, Any]:
    """Return the figures of a peer, or ``absent`` with the reason. It has so many seconds."""
    most = _AT_MOST | (_OF_TEMPORAL if peer == "temporal" else {})
    count = min(_count(row, options), most[row])
    try:
        if peer == "django-q2":
            from benchmarks.peers import django_q2

            return django_q2.run(row, count)
        if peer == "django-tasks-db":
            from benchmarks.peers import django_tasks_db

            return django_tasks_db.run(count)
        return _said(_CHILDREN[peer], row, str(count), os.environ["BENCH_PEER_URL"], str(seconds))
    except TooLong:
        raise
    except Exception as exc:  # noqa: BLE001 - a peer that cannot run for any reason is absent
        return {"absent": f"{type(exc).__name__}: {exc}"}


def _count(row: str, options: Namespace) -> int:
    named: Mapping[str, int] = {"starts": options.starts, "latency": options.calls, "update": options.updates}
    return named.get(row, options.count)


def _said(module: str, *arguments: str) -> dict[str, Any]:
    with process("-m", f"benchmarks.peers.{module}", *arguments) as child:
        assert child.stdout is not None
        lines = [line for line in child.stdout if line.startswith("{")]
    if not lines:
        raise RuntimeError("the peer ended without a figure")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def told(measure: Any) -> None:
    """Print the result of ``measure(row, count, url)``, or why there is none; runs in the child process."""
    row, count, url, _seconds = sys.argv[1:]
    try:
        found = measure(row, int(count), url)
    except Exception as exc:  # noqa: BLE001 - the error is the result
        found = {"absent": f"{type(exc).__name__}: {str(exc).splitlines()[0] if str(exc) else ''}"}
    print(json.dumps(found), flush=True)
    os._exit(0)  # threads of a peer that never end


def best(figure: str, ways: Mapping[str, Any]) -> dict[str, Any]:
    """Run several documented ways to do the same work; return the figure of the quickest, and the others beside it.

    A further way runs only if it would end in time when it takes 1.5 times as long as the longest so far.
    """
    rates: dict[str, int | str] = {}
    longest, until = 0.0, _BEGAN + float(sys.argv[4])
    for name, way in ways.items():
        began = time.monotonic()
        if began + longest > until:
            rates[name] = "not tried: no time left"
            continue
        try:
            rates[name] = round(way())
        except Exception as exc:  # noqa: BLE001 - the other ways may work
            rates[name] = f"{type(exc).__name__}: {exc}"[:200]
        longest = max(longest, 1.5 * (time.monotonic() - began))
    numbers = {name: rate for name, rate in rates.items() if isinstance(rate, int)}
    if not numbers:
        return {"absent": f"none of its ways works: {rates}"}
    quickest = max(numbers, key=lambda name: numbers[name])
    return {figure: numbers[quickest], "way": quickest, "ways": rates}
