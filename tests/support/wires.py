"""The two ways in which statements reach PostgreSQL."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from temporalex_django.db.dialects import libpq, postgres
from temporalex_django.db.dialects.libpq import LibpqWire, PlainWire


def use_wire(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send all statements by ``libpq`` or by ``plain`` psycopg from now on, on connections that are open, too.

    What the wire of a connection has prepared stays, and is used again after the test.
    """
    chosen = {"libpq": LibpqWire, "plain": PlainWire}[name]
    if libpq.chosen is not chosen:
        monkeypatch.setattr(libpq, "chosen", chosen)
        monkeypatch.setattr(postgres, "_wires", WeakKeyDictionary())
