"""The choice of the dialect (the statements in which databases differ) for a database alias, by its vendor."""

from __future__ import annotations

from functools import cache

from django.db import connections

from temporalex_django.engine.contracts.dialect import Dialect
from temporalex_django.errors import NotConfigured


def find_dialect(alias: str) -> Dialect | None:
    """Return the dialect of the database behind ``alias``, or None if that database is not supported.

    A dialect sends statements, and knows how PostgreSQL or SQLite differ in them.
    """
    return _build_dialect(connections[alias].vendor, alias)


@cache
def _build_dialect(vendor: str, alias: str) -> Dialect | None:
    if vendor == "postgresql":
        from temporalex_django.db.dialects.postgres import PostgresDialect  # noqa: PLC0415 - psycopg is an extra

        return PostgresDialect(alias)
    if vendor == "sqlite":
        from temporalex_django.db.dialects.sqlite import SqliteDialect  # noqa: PLC0415 - only where it is used

        return SqliteDialect(alias)
    return None


def get_dialect(alias: str) -> Dialect:
    """Return the dialect of the database behind ``alias``: the object that sends statements to PostgreSQL or SQLite.

    Raises ``NotConfigured`` for a database that is not supported.
    """
    dialect = find_dialect(alias)
    if dialect is not None:
        return dialect
    vendor = connections[alias].vendor
    raise NotConfigured(f"temporalex_django runs on PostgreSQL and SQLite; the database {alias!r} is {vendor}")
