"""The two ways in which statements reach PostgreSQL."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from temporalex_django.db.dialects import postgres
from temporalex_django.db.dialects.postgres_wire import wire
from temporalex_django.db.dialects.postgres_wire.libpq import LibpqWire
from temporalex_django.db.dialects.postgres_wire.plain import PlainWire


def use_wire(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all statements by ``libpq`` or by ``plain`` psycopg from now on, on connections that are open, too.

    What the wire of a connection has prepared stays, and is used again after the test.
    """
    chosen = {"libpq": LibpqWire, "plain": PlainWire}[name]
    if wire.chosen is not chosen:
        monkeypatch.setattr(wire, "chosen", chosen)
        monkeypatch.setattr(postgres, "_wires", WeakKeyDictionary())
