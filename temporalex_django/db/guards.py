"""Guards that keep workflow code away from the ORM, mail and the cache."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.cache import CacheHandler
from django.core.cache.backends.base import BaseCache
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.core.signals import setting_changed
from django.db import DatabaseError, OperationalError, ProgrammingError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from temporalex_django.conf import SETTING, get_settings, read
from temporalex_django.core.current import is_guarded
from temporalex_django.core.determinism import guard
from temporalex_django.core.determinism.rules import Rule
from temporalex_django.db.attempt_scope import current_scope, outside_attempt, register_connection
from temporalex_django.errors import NotConfigured

# --- guarded orm ------------------------------------------------------------------------------------------------------
#
# The determinism guard on database connections: workflow code may neither send a query nor close a connection.
#
# Every connection of Django gets an execute wrapper when it is opened. The wrapper checks two context variables and
# does nothing else in views and for the engine's own queries. In an attempt of an activity, it also notes what a
# statement leaves on the session (``db.attempt_scope``). See decision 18.


#: SQLite's message for a table of ours that does not exist. PostgreSQL has a code, since it names tables in other
#: errors, too.
_NO_SUCH_TABLE = re.compile(r"no such table: (?:main\.)?temporalex_\w+")
_UNDEFINED_TABLE = "42P01"


class TablesMissing(NotConfigured, DatabaseError):
    """Raised when the tables of this package do not exist: ``manage.py migrate`` was not run on that database."""

    next_step = "Run it with the settings of the process that reported this, and try again."


def missing_tables_error(error: DatabaseError, alias: str) -> TablesMissing | None:
    """Return a ``TablesMissing`` if the error says that a table of this package does not exist, else None."""
    undefined = getattr(error.__cause__, "sqlstate", None) == _UNDEFINED_TABLE and '"temporalex_' in str(error)
    if not undefined and not _NO_SUCH_TABLE.search(str(error)):
        return None
    if alias == "default":
        on = ""
    else:
        on = f" --database {alias}"
    return TablesMissing(
        f"the database {alias!r} has no tables for workflows: run manage.py migrate temporalex_django{on}"
    )


def install_orm_guard() -> None:
    """Guard all database connections against use by workflow code, those that are open included.

    The setting ``TEMPORALEX["GUARD"]`` says if a violation raises, warns or is ignored.
    """
    guard.configure(get_settings().GUARD)
    for connection in connections.all(initialized_only=True):
        _guard_connection(connection)


def refuse_query(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 - Django's signature
    """Send a query by ``execute``, or refuse it in workflow code; an execute wrapper, which Django calls.

    Raises ``DeterminismViolation`` in workflow code, before anything is sent. Raises ``TablesMissing`` if the database
    reports that it lacks a table of this package.
    """
    # The wrapper runs for every statement: nothing is called unless workflow code or an attempt runs here.
    if is_guarded():
        guard.refuse_in_step(guard.ORM)
    if (scope := current_scope.get()) is not None:
        scope.note_statement(sql, context["connection"])
    try:
        return execute(sql, params, many, context)
    except (OperationalError, ProgrammingError) as exc:
        if (missing := missing_tables_error(exc, context["connection"].alias)) is not None:
            raise missing from exc
        raise


@receiver(connection_created)
def _on_connection_created(sender: Any, connection: Any, **_: Any) -> None:
    _guard_connection(connection)


@receiver(setting_changed)
def _on_setting_changed(sender: Any, setting: str, **_: Any) -> None:
    # A wrong setting raises where it is used, not in the code that changes it.
    if setting == SETTING:
        guard.configure(read()[0].GUARD)


def _guard_connection(connection: Any) -> None:
    register_connection(connection)
    if refuse_query not in connection.execute_wrappers:
        # First in the list: `with connection.execute_wrapper(...)` removes the last one at its end.
        connection.execute_wrappers.insert(0, refuse_query)
    if "close" not in vars(connection):
        # Through a weak reference: when a thread ends, its connection is freed, and that closes it.
        connection.close = partial(_guarded_close, weakref.ref(connection))
    if "connect" not in vars(connection):
        connection.connect = partial(_connect, weakref.ref(connection))


def _guarded_close(wrapped: weakref.ref[Any]) -> None:
    """Close a connection, or refuse it in workflow code: it would end the transaction of all runs of the turn."""
    guard.refuse_in_step(guard.ORM)
    if (connection := wrapped()) is not None:
        type(connection).close(connection)


def _connect(wrapped: weakref.ref[Any]) -> None:
    """Open a connection again. The setup of its session is no part of the attempt that needs it."""
    if (connection := wrapped()) is not None:
        with outside_attempt():
            type(connection).connect(connection)


# --- guarded services -------------------------------------------------------------------------------------------------
#
# The determinism guard on Django's mail and cache, whatever backends they have.
#
# A backend may keep its data in memory, as those for tests do, so no connection reveals its use. The guard therefore
# wraps methods that every use goes through. They first check if workflow code runs, and cost nothing more.


_GUARDED: tuple[tuple[type, str, Rule], ...] = (
    (EmailMessage, "send", guard.MAIL),
    (EmailMessage, "message", guard.MAIL),  # called by a backend that exists already
    (BaseEmailBackend, "__init__", guard.MAIL),
    (CacheHandler, "__getitem__", guard.CACHE),
    (BaseCache, "make_key", guard.CACHE),  # for a backend that was looked up before
)


def install_service_guard() -> None:
    """Guard the methods of Django's mail and cache against use by workflow code, once per process."""
    for cls, name, rule in _GUARDED:
        original = getattr(cls, name)
        if not hasattr(original, "temporalex_guard"):
            setattr(cls, name, _guard_method(original, rule))


def _guard_method(original: Any, rule: Rule) -> Any:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if is_guarded():
            guard.refuse_in_step(rule)
        return original(*args, **kwargs)

    guarded.temporalex_guard = rule  # type: ignore[attr-defined] # marks it as guarded
    return guarded
