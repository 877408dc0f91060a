"""Missing tables: one error that says what to run, for every caller and every statement."""

from __future__ import annotations

import re

from django.db import DatabaseError

from temporalex_django.errors import NotConfigured

#: SQLite's message for a table of ours that does not exist. PostgreSQL has a code, since it names tables in other
#: errors, too.
_NO_SUCH_TABLE = re.compile(r"no such table: (?:main\.)?temporalex_\w+")
_UNDEFINED_TABLE = "42P01"


class TablesMissing(NotConfigured, DatabaseError):
    """The tables of workflows do not exist: ``manage.py migrate`` was not run on that database."""

    next_step = "Run it with the settings of the process that reported this, and try again."


def missing_tables_error(error: DatabaseError, alias: str) -> TablesMissing | None:
    """Return a ``TablesMissing`` for an error that means it, else None."""
    undefined = getattr(error.__cause__, "sqlstate", None) == _UNDEFINED_TABLE and '"temporalex_' in str(error)
    if not undefined and not _NO_SUCH_TABLE.search(str(error)):
        return None
    on = "" if alias == "default" else f" --database {alias}"
    return TablesMissing(
        f"the database {alias!r} has no tables for workflows: run manage.py migrate temporalex_django{on}"
    )
