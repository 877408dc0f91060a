"""The wire to PostgreSQL: libpq itself where psycopg's internals are known, else psycopg alone.

See decision 50.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import psycopg

from temporalex_django.db.dialects.postgres_wire.libpq import LibpqWire
from temporalex_django.db.dialects.postgres_wire.plain import PlainWire

#: Versions of psycopg whose internals ``LibpqWire`` was tested with: the first one, and the first one that was not.
#: ``pyproject.toml`` has the same bounds.
TESTED_VERSIONS: Final = ((3, 2), (3, 4))


class Wire(Protocol):
    """The statements of one connection, which takes part in the transaction that is open on it."""

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        """Work on a connection of psycopg; ``prepares`` says that frequent statements are prepared."""

    @staticmethod
    def array(values: Sequence[Any], kind: str) -> Any:
        """Return the parameter for values of the PostgreSQL type ``kind``, as an array."""

    def statement(self) -> Any:
        """Return a cursor for one statement, which Django's wrappers can wrap."""

    def pipeline(self, *, sends_early: bool) -> AbstractContextManager[None]:
        """Send the statements that are executed inside the block together.

        The end of the block waits, and raises the first error. Statements behind one that failed are not executed.
        Without ``sends_early`` other cursors of the connection may be used inside.
        """

    def send_with_next(self, sql: str, parameters: Sequence[Any]) -> Callable[[], bool]:
        """Send a statement behind the next one outside of a transaction: see ``Dialect.send_with_next``."""


def choose_wire(version: str, implementation: str) -> type[Wire]:
    """Return the wire for a version of psycopg and its ``implementation`` ("c", "binary" or "python").

    psycopg's own implementation in Python is not faster when it is given statements in another way.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    first, beyond = TESTED_VERSIONS
    if first <= numbers < beyond and implementation in ("c", "binary"):
        return LibpqWire
    return PlainWire


#: The wire of all connections of this process.
chosen: type[Wire] = choose_wire(psycopg.__version__, psycopg.pq.__impl__)
