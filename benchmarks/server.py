"""The database of a benchmark: a server, or a file, that ends with it, and its settings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

ROOT: Final = Path(__file__).resolve().parent.parent
#: ``make bench-data`` keeps its server here until you delete it.
GROWN: Final = ROOT / "var" / "bench-data"
#: Printed with the figures: a server that need not keep its commits is quicker.
_SETTINGS: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
#: Process ids of the server that runs here, for its share of the processors.
postmaster: int | None = None


@contextmanager
def database(kind: str, *, web: bool = False, grown: bool = False) -> Iterator[None]:
    """Set Django up on a new database: ``postgres`` or ``sqlite``.

    ``grown``: use the one that ``make bench-data`` fills. DATABASE_URL replaces the embedded server.
    """
    with tempfile.TemporaryDirectory(prefix="tx-bench-") as folder:
        Path(folder).chmod(0o755)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings_web" if web else "benchmarks.settings"
        if kind == "sqlite":
            os.environ["BENCH_DATABASE_URL"] = f"sqlite:///{folder}/ours.sqlite3"
            os.environ["BENCH_PEER_URL"] = f"sqlite:///{folder}/peer.sqlite3"
            _set_up()
            yield
            return
        server = _start(Path(folder), grown=grown)
        try:
            _set_up()
            yield
        finally:
            if server is not None:
                server.stop()


def databases(url: str, *names: str) -> None:
    """Drop these databases and create them again."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for name in names:
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")


def address(name: str) -> str:
    """Return the address of another database of the same server."""
    return urlsplit(os.environ["BENCH_SERVER_URL"])._replace(path=f"/{name}").geturl()


def facts() -> dict[str, Any]:
    """Return versions, and the settings that decide whether the database keeps what it has committed."""
    import django
    from django.db import connection

    found: dict[str, Any] = {"django": django.get_version()}
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for name in ("journal_mode", "synchronous"):
                cursor.execute(f"pragma {name}")
                found[name] = cursor.fetchone()[0]
            cursor.execute("select sqlite_version()")
            return found | {"sqlite": cursor.fetchone()[0]}
        for name in _SETTINGS:
            cursor.execute(f"show {name}")
            found[name.replace("server_version", "postgresql")] = cursor.fetchone()[0]
    return found


def empty() -> None:
    """Delete all runs, so that a benchmark does not measure those of the one before.

    The rows of workers stay: a worker without its row counts as dead, and releases everything that it claimed.
    """
    from django.apps import apps
    from django.db import connection

    models = [model for label in ("temporalex_django", "app") for model in apps.get_app_config(label).get_models()]
    tables = [model._meta.db_table for model in models if model.__name__ != "Worker"]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for table in tables:
                cursor.execute(f"delete from {table}")
        else:
            cursor.execute(f"truncate {', '.join(tables)}")


@contextmanager
def vacuuming(every: str) -> Iterator[str]:
    """Set the pause of autovacuum on the server that runs here; another server keeps its own. Yields the pause."""
    from django.db import connection

    if not postmaster:
        with connection.cursor() as cursor:
            cursor.execute("show autovacuum_naptime")
            (pause,) = cursor.fetchone()
        yield pause
        return
    with connection.cursor() as cursor:
        cursor.execute("alter system set autovacuum_naptime = %s", [every])
        cursor.execute("select pg_reload_conf()")
    try:
        yield every
    finally:
        with connection.cursor() as cursor:
            cursor.execute("alter system reset autovacuum_naptime")
            cursor.execute("select pg_reload_conf()")


def _start(folder: Path, *, grown: bool) -> Any:
    from scripts.embedded_postgres import EmbeddedPostgres

    global postmaster
    server = None
    url = os.environ.get("DATABASE_URL")
    if not url:
        server = EmbeddedPostgres(GROWN / "pg" if grown else folder / "pg").start()
        url, postmaster = server.url(), server.process.pid if server.process else None
    os.environ["BENCH_SERVER_URL"] = url
    databases(url, "bench", "bench_peer")
    os.environ["BENCH_DATABASE_URL"] = address("bench")
    os.environ["BENCH_PEER_URL"] = _for_sqlalchemy(urlsplit(address("bench_peer")))
    return server


def _set_up() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def _for_sqlalchemy(parts: SplitResult) -> str:
    """Return the address with the folder of a socket as a parameter: SQLAlchemy does not unquote a host."""
    user, at, host = parts.netloc.rpartition("@")
    if not host.startswith("%2F"):
        return parts.geturl()
    return parts._replace(netloc=user + at, query=f"host={unquote(host)}").geturl()
