"""``served``: starts, signals and updates over REST, through gunicorn and uvicorn, compared with direct calls."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.measures import milliseconds, wait_until
from benchmarks.processes import process

CLIENTS: Final = 8
_PROCESSES: Final = "2"
_KINDS: Final = ("start", "signal", "update")
#: Two processes each, like the number of processors; they keep their connections to the database.
SERVERS: Final = {
    "gunicorn": (
        ("-m", "gunicorn", "benchmarks.served:wsgi", "--workers", _PROCESSES, "--threads", "4", "--bind", "127.0.0.1:{port}"),
        {"BENCH_CONN_MAX_AGE": "60"},
    ),
    "uvicorn": (
        ("-m", "uvicorn", "benchmarks.served:asgi", "--workers", _PROCESSES, "--port", "{port}", "--no-access-log"),
        {"BENCH_POOL": "1"},
    ),
}  # fmt: skip


def run(seconds: float) -> dict[str, Any]:
    """Measure requests a second of eight clients, and their times. A server that is not installed is absent."""
    from django.contrib.auth import get_user_model

    from benchmarks.app.workflows import Parked

    get_user_model().objects.create_superuser("operator")
    handles = [Parked.start() for _ in range(4 * CLIENTS)]
    for handle in handles:
        handle.update("count", 1)
    calls: dict[str, Callable[[int], Any]] = {
        "start": lambda _: Parked.start(),
        "signal": lambda n: handles[n % len(handles)].signal("seen", 1),
        "update": lambda n: handles[n % len(handles)].update("count", 1),
    }
    found: dict[str, Any] = {"clients": CLIENTS, "in_process": {}}
    for kind, call in calls.items():
        found["in_process"][kind] = _called(call, seconds)
        _empty(handles)
    for name, (arguments, environment) in SERVERS.items():
        try:
            found[name] = _served(arguments, environment, handles, seconds)
        except (ImportError, TimeoutError, RuntimeError) as exc:
            found[name] = {"absent": f"{type(exc).__name__}: {exc}"}
    return found


def _called(call: Callable[[int], Any], seconds: float) -> dict[str, float]:
    """Measure the calls of one caller, one after the other."""
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - before)
    return {"per_s": round(len(times) / (time.perf_counter() - began)), **milliseconds(times)}


def _empty(handles: list[Any]) -> None:
    """Let the runs read their signals, since an update behind thousands of signals would measure these."""
    for handle in handles:
        handle.update("count", 0, timeout=60)


def _served(
    arguments: tuple[str, ...], environment: dict[str, str], handles: list[Any], seconds: float
) -> dict[str, Any]:
    __import__(arguments[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = {}
    with process(*(part.format(port=port) for part in arguments), **environment):
        wait_until(lambda: _listens(port), seconds=30, every=0.1)
        for kind in _KINDS:
            _load(port, kind, 1, handles)  # first do the work that a process does only once
            found[kind] = _load(port, kind, seconds, handles)
            _empty(handles)
    return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _load(port: int, kind: str, seconds: float, handles: list[Any]) -> dict[str, Any]:
    ids = [] if kind == "start" else [handle.id for handle in handles]
    command = [sys.executable, "-m", "benchmarks.load", str(port), kind, str(CLIENTS), str(seconds), *ids]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
