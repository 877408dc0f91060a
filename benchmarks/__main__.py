"""``python -m benchmarks run [--only one,update,guard] [--peers dbos,django-q2] [--json FILE]``: measures, prints JSON and ratios.

PostgreSQL is the server of DATABASE_URL, or an embedded one that ends with this command. Ours and the peers run in turn in
the same call, on the same server. A peer that cannot start is reported as absent, never as zero.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
#: What each benchmark is compared by.
FIGURES = {"one": "workflows_per_s"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--only", default="one,update,guard", help="names of benchmarks")
    parser.add_argument("--peers", default="dbos,django-q2", help="names of peers; empty for none")
    parser.add_argument("--count", type=int, default=10_000, help="workflows of `one`")
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name]
    peers = [name for name in options.peers.split(",") if name]
    with tempfile.TemporaryDirectory(prefix="tx-bench-") as folder:
        Path(folder).chmod(0o755)
        server = _server(folder)
        try:
            figures = _measure(wanted, peers, options)
        finally:
            if server is not None:
                server.stop()
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


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
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    return server


def _for_sqlalchemy(parts: SplitResult) -> str:
    """The folder of a socket as a parameter: SQLAlchemy does not unquote a host."""
    user, at, host = parts.netloc.rpartition("@")
    if not host.startswith("%2F"):
        return parts.geturl()
    return parts._replace(netloc=user + at, query=f"host={unquote(host)}").geturl()


def _measure(wanted: list[str], peers: list[str], options: argparse.Namespace) -> dict[str, Any]:
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("show server_version")
        version = cursor.fetchone()[0]
    figures: dict[str, Any] = {
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "django": django.get_version(),
            "postgresql": version,
        }
    }
    if "one" in wanted:
        from benchmarks import one

        say("one …")
        figures["one"] = {"ours": one.run(options.count), **_peers("one", peers, options)}
        _ratios("one", figures["one"])
    if "update" in wanted:
        from benchmarks import update

        say("update …")
        figures["update"] = {"ours": update.run(options.updates)}
    if "guard" in wanted:
        from benchmarks import guard

        say("guard …")
        figures["guard"] = {"ours": guard.run(options.count)}
    return figures


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
