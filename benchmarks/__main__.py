"""Measure, and print JSON and ratios.

``python -m benchmarks run [--only one,update,...] [--peers dbos,django-q2] [--json FILE]``

``one``, ``graph`` and ``update`` need PostgreSQL: the server of DATABASE_URL, or an embedded one that ends with this
command. Ours and the peers run in turn in the same call, on the same server. A peer that cannot start is reported as
absent, never as zero. So do ``pages`` and ``listing`` (a million runs are made first) and ``served`` (servers and a
generator of load are started), which take minutes and run when they are named. All others run in this process, without
a database and without Django.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
#: What each benchmark is compared by.
FIGURES = {"one": "workflows_per_s"}
ON_DATABASE: Final = ("one", "graph", "update")
OVER_HTTP: Final = ("pages", "listing", "served")
IN_PROCESS: Final = ("replay", "steps", "fan", "long", "memory", "guard")
#: Thresholds of the garbage collector that ``manage.py temporalex worker`` sets.
WORKER_GC: Final = (50_000, 20, 100)


def main() -> int:
    signal.signal(
        signal.SIGTERM, lambda number, _frame: sys.exit(128 + number)
    )  # what was started is ended on the way out
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--only", default=",".join(ON_DATABASE + IN_PROCESS), help="names of benchmarks")
    parser.add_argument("--peers", default="dbos,django-q2", help="names of peers; empty for none")
    parser.add_argument("--count", type=int, default=10_000, help="workflows of `one`, steps and events of the others")
    parser.add_argument("--sizes", default="10,100,1000,10000", help="branches of `fan`, signals of `long`")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts, without a database")
    parser.add_argument("--gc", choices=["default", "worker"], default="default", help="thresholds, without a database")
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs that `pages` and `listing` make")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each figure of `served`")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    if unknown := [name for name in wanted if name not in ON_DATABASE + OVER_HTTP + IN_PROCESS]:
        known = ", ".join(ON_DATABASE + OVER_HTTP + IN_PROCESS)
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are {known})")
    figures: dict[str, Any] = {"machine": {"cpus": os.cpu_count(), "python": platform.python_version()}}
    figures |= _in_process(wanted, options)
    if set(wanted) & {*ON_DATABASE, *OVER_HTTP}:
        _with_server(wanted, options, figures)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


def _in_process(wanted: list[str], options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import core, guard

    sizes = [int(size) for size in options.sizes.split(",")]
    measures: dict[str, Callable[[], Any]] = {
        "replay": lambda: core.replay(options.count, options.rounds),
        "steps": lambda: core.steps(options.count, options.rounds),
        "fan": lambda: core.fan(sizes, options.rounds),
        "long": lambda: core.long(sizes, options.rounds),
        "memory": lambda: core.memory(max(options.count // 10, 1)),
        "guard": lambda: guard.run(options.count, options.rounds),
    }
    figures: dict[str, Any] = {}
    before = gc.get_threshold()
    if options.gc == "worker":
        gc.set_threshold(*WORKER_GC)
    for name, measure in measures.items():
        if name in wanted:
            say(f"{name} …")
            figures[name] = {"ours": measure()}
    gc.set_threshold(*before)
    return figures


def _with_server(wanted: list[str], options: argparse.Namespace, figures: dict[str, Any]) -> None:
    peers = [name for name in options.peers.split(",") if name]
    with tempfile.TemporaryDirectory(prefix="tx-bench-") as folder:
        Path(folder).chmod(0o755)
        server = _server(folder)
        web = bool(set(wanted) & set(OVER_HTTP))
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings_web" if web else "benchmarks.settings"
        try:
            _measure(wanted, peers, options, figures)
        finally:
            if server is not None:
                server.stop()


def _server(folder: str) -> Any:
    """Start a server unless DATABASE_URL names one; databases of our own in either."""
    from scripts.embedded_postgres import EmbeddedPostgres

    server = None
    url = os.environ.get("DATABASE_URL")
    if not url:
        server = EmbeddedPostgres(Path(folder) / "pg").start()
        url = server.url()
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("bench", "bench_peer"):
            connection.execute(f"drop database if exists {name}")
            connection.execute(f"create database {name}")
    parts = urlsplit(url)
    os.environ["BENCH_DATABASE_URL"] = parts._replace(path="/bench").geturl()
    os.environ["BENCH_PEER_URL"] = _for_sqlalchemy(parts._replace(path="/bench_peer"))
    return server


def _for_sqlalchemy(parts: SplitResult) -> str:
    """The folder of a socket as a parameter: SQLAlchemy does not unquote a host."""
    user, at, host = parts.netloc.rpartition("@")
    if not host.startswith("%2F"):
        return parts.geturl()
    return parts._replace(netloc=user + at, query=f"host={unquote(host)}").geturl()


def _measure(wanted: list[str], peers: list[str], options: argparse.Namespace, figures: dict[str, Any]) -> None:
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("show server_version")
        figures["machine"] |= {"django": django.get_version(), "postgresql": cursor.fetchone()[0]}
    if "one" in wanted:
        from benchmarks import one

        say("one …")
        figures["one"] = {"ours": one.run(options.count), **_peers("one", peers, options)}
        _ratios("one", figures["one"])
    if "graph" in wanted:
        from benchmarks import graph

        say("graph …")
        figures["graph"] = {"ours": graph.run(options.count, options.rounds)}
    if "update" in wanted:
        from benchmarks import update

        say("update …")
        figures["update"] = {"ours": update.run(options.updates)}
    if "served" in wanted:
        from benchmarks import serving

        say("served …")
        figures["served"] = {"ours": serving.run(options.seconds)}
    if "pages" in wanted:
        from benchmarks import pages

        say("pages …")
        figures["pages"] = {"ours": pages.run(options.runs)}
    if "listing" in wanted:
        from benchmarks import listing

        say("listing …")
        figures["listing"] = {"ours": listing.run(options.runs)}


def _peers(name: str, peers: list[str], options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.peers import dbos, django_q2

    known = {"dbos": dbos.one, "django-q2": django_q2.one}
    found: dict[str, Any] = {}
    for peer in peers:
        say(f"{name}: {peer} …")
        try:
            found[peer] = known[peer](min(options.count, 1000))
        except Exception as exc:  # noqa: BLE001 - whatever keeps a peer from running, it is absent
            found[peer] = {"absent": f"{type(exc).__name__}: {exc}"}
    return found


def _ratios(name: str, row: dict[str, Any]) -> None:
    figure = FIGURES[name]
    ours = row["ours"][figure]
    row["ratios"] = {
        peer: round(ours / values[figure], 1) for peer, values in row.items() if peer != "ours" and figure in values
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
