"""A copy of one migrated database for each process of a test run.

The first process migrates the template. Migrating takes seconds of processor time, and a copy takes none that counts.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.test.utils import setup_databases, teardown_databases

_TEMPLATE = "template"


@contextmanager
def process_database(worker: str) -> Iterator[None]:
    """Use a copy of the template within the block, and remove it afterwards.

    ``worker`` is the name of this process among those of the run. The last process removes the template. A run with
    the settings of another project has no folder for a template, and gets the test database of those settings.
    """
    if "TX_TEST_FOLDER" not in os.environ:
        databases = setup_databases(verbosity=0, interactive=False)
        yield
        teardown_databases(databases, verbosity=0)
        return
    folder = Path(os.environ["TX_TEST_FOLDER"])
    users = folder / "users-of-template"
    original = settings.DATABASES["default"]["NAME"]
    copy = str(connection.settings_dict["TEST"]["NAME"])
    template = str(folder / "template.sqlite3") if connection.vendor == "sqlite" else f"{_base(copy)}_{_TEMPLATE}"
    with _lock(folder):
        if not users.exists():
            _migrate(template)
            users.mkdir()
        (users / worker).touch()
        _copy(template, copy)
    _use(copy)
    yield
    _use(original)
    with _lock(folder):
        (users / worker).unlink()
        _remove(copy)
        if not any(users.iterdir()):
            users.rmdir()
            _remove(template)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with (folder / "template.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _base(name: str) -> str:
    """Return the name of the test database without the process of pytest-xdist, which pytest-django appends."""
    return name.rpartition("_gw")[0] or name


def _migrate(template: str) -> None:
    test: dict[str, Any] = connection.settings_dict["TEST"]
    own, test["NAME"] = test["NAME"], template
    setup_databases(verbosity=0, interactive=False, aliases=["default"], serialized_aliases=set())
    test["NAME"] = own
    connection.close()


def _use(name: str) -> None:
    connection.close()
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name


def _copy(template: str, copy: str) -> None:
    _remove(copy)
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(template)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return
    with connection._nodb_cursor() as cursor:  # as Django's own creation of test databases does
        cursor.execute(f'create database "{copy}" template "{template}"')


def _remove(name: str) -> None:
    if connection.vendor == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(name + suffix).unlink(missing_ok=True)
        return
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'drop database if exists "{name}" with (force)')
