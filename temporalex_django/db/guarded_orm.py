"""The determinism guard on database connections: a query from workflow code is refused, whatever issues it.

So is closing one.

Every connection of Django gets an execute wrapper when it is opened. The wrapper asks one context variable and is then
out of the way; activities, views and the engine's own queries never see it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.signals import setting_changed
from django.db import OperationalError, ProgrammingError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from temporalex_django.conf import SETTING, get_settings, read
from temporalex_django.core.determinism import guard
from temporalex_django.db.missing_tables import missing_tables_error


def install() -> None:
    """Set the guard up as ``TEMPORALEX["GUARD"]`` says, and guard the connections that are open already."""
    guard.configure(get_settings().GUARD)
    for connection in connections.all(initialized_only=True):
        _guard_connection(connection)


def refuse_query(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:  # noqa: FBT001 - Django's signature
    """An execute wrapper. Raises ``DeterminismViolation`` in workflow code, before anything is sent.

    And ``TablesMissing`` where the database says that it lacks a table of ours.
    """
    guard.refuse_in_step(guard.ORM)
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
    if setting == SETTING:  # a wrong one raises where it is used, not in whoever changes it
        guard.configure(read()[0].GUARD)


def _guard_connection(connection: Any) -> None:
    if refuse_query not in connection.execute_wrappers:
        # first, since `with connection.execute_wrapper(...)` takes away the last one when it is left
        connection.execute_wrappers.insert(0, refuse_query)
    if "close" not in vars(connection):
        # not by itself: a thread that ends leaves its connection to nobody, and that closes it
        connection.close = partial(_guarded_close, weakref.ref(connection))


def _guarded_close(wrapped: weakref.ref[Any]) -> None:
    """Workflow code that closes the connection would end the transaction of its turn, and of all runs in it."""
    guard.refuse_in_step(guard.ORM)
    if (connection := wrapped()) is not None:
        type(connection).close(connection)
