"""The choice of the dialect (the statements in which databases differ) for a database alias, by its vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - the name Django gives it
from django.db import connections

from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.errors import NotConfigured


def find_dialect(alias: str) -> Dialect | None:
    """Return the dialect of the database behind ``alias``, or None if that database is not supported.

    A dialect sends statements, and knows how PostgreSQL or SQLite differ in them.
    """
    vendor = connections[alias].vendor
    if vendor == "postgresql":
        from temporalex_django.db.dialects.postgres import PostgresDialect  # noqa: PLC0415 - psycopg is an extra

        return PostgresDialect(alias)
    if vendor == "sqlite":
        from temporalex_django.db.dialects.sqlite import SqliteDialect  # noqa: PLC0415 - only where it is used

        return SqliteDialect(alias)
    return None


@cache
def get_dialect(alias: str) -> Dialect:
    """Return the dialect of the database behind ``alias``: the object that sends statements to PostgreSQL or SQLite.

    A process has one for each alias.

    Raises ``NotConfigured`` for a database that is not supported.
    """
    dialect = find_dialect(alias)
    if dialect is not None:
        return dialect
    vendor = connections[alias].vendor
    raise NotConfigured(f"temporalex_django runs on PostgreSQL and SQLite; the database {alias!r} is {vendor}")


# --- checks -----------------------------------------------------------------------------------------------------------
#
# System checks of the database that stores the runs. They do not need its driver.


def check_connection(connection: Any) -> Iterator[CheckMessage]:
    """Yield a Django check message for each problem in the database settings of a connection, without a query."""
    return _BY_VENDOR.get(connection.vendor, _refuse_vendor)(connection)


def _check_sqlite(connection: Any) -> Iterator[CheckMessage]:
    configured = connection.settings_dict
    if str((configured.get("OPTIONS") or {}).get("transaction_mode") or "").upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
        yield Warning(
            "Workflows use SQLite without transaction_mode=IMMEDIATE: a transaction that reads before it writes fails "
            "with 'database is locked' if another transaction has written in between.",
            hint="DATABASES[...]['OPTIONS'] = {'transaction_mode': 'IMMEDIATE', 'timeout': 20, 'init_command': "
            "'PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;'}",
            id="temporalex_django.W001",
        )
    if configured.get("ATOMIC_REQUESTS"):
        yield Warning(
            "Workflows use SQLite with ATOMIC_REQUESTS: each request holds the only write lock until it ends, "
            "and workers have to wait for it.",
            hint="Set ATOMIC_REQUESTS to False for this database, or use PostgreSQL.",
            id="temporalex_django.W002",
        )


def _check_postgresql(connection: Any) -> Iterator[CheckMessage]:
    if (connection.settings_dict.get("OPTIONS") or {}).get("pool"):
        yield Warning(
            "Workflows use a connection with psycopg's pool: pools do not survive a fork, and django-q2 forks its "
            "workers.",
            hint="Use CONN_MAX_AGE instead of OPTIONS['pool'] in worker processes.",
            id="temporalex_django.W003",
        )
    try:
        from psycopg import Connection  # noqa: F401, PLC0415 - an extra
    except ImportError:
        yield Error(
            "Workflows on PostgreSQL need psycopg 3.",
            hint="pip install 'temporalex-django[postgres]'",
            id="temporalex_django.E003",
        )


def _refuse_vendor(connection: Any) -> Iterator[CheckMessage]:
    yield Error(
        f"Workflows require PostgreSQL or SQLite, but the database {connection.alias!r} is {connection.vendor}.",
        hint="Set TEMPORALEX['DATABASE'] to another alias.",
        id="temporalex_django.E004",
    )


_BY_VENDOR: dict[str, Callable[[Any], Iterator[CheckMessage]]] = {
    "sqlite": _check_sqlite,
    "postgresql": _check_postgresql,
}
