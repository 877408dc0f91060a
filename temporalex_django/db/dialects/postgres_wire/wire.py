"""The wire to PostgreSQL, which sends the statements of one connection and receives their answers.

It uses libpq itself where psycopg's internals are known, else psycopg alone. See decision 50.
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
    """The sender of statements on one psycopg connection; they join the transaction that is open on it."""

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        """Work on a connection of psycopg. With ``prepares``, statements that are sent often are prepared."""

    @staticmethod
    def array(values: Sequence[Any], kind: str) -> Any:
        """Return a parameter that sends ``values`` as an array; ``kind`` is the PostgreSQL type of its elements."""

    def statement(self) -> Any:
        """Return a cursor for one statement, which Django's wrappers can wrap."""

    def pipeline(self, *, sends_early: bool) -> AbstractContextManager[None]:
        """Send the statements that are executed inside the block together.

        The end of the block waits, and raises the first error. Statements behind one that failed are not executed.
        Without ``sends_early`` other cursors of the connection may be used inside.
        """

    def send_with_next(self, sql: str, parameters: Sequence[Any]) -> Callable[[], bool]:
        """Send a statement with or after the next one that is sent outside of a transaction.

        It is a transaction of its own, and its outcome is ignored. Returns a function that withdraws the statement, and
        that returns False if it was sent already.
        """


def choose_wire(version: str, implementation: str) -> type[Wire]:
    """Return the class that sends statements: ``LibpqWire`` for versions of psycopg with which it was tested.

    For others it is ``PlainWire``. ``implementation`` is "c", "binary" or "python"; psycopg's own implementation in
    Python is not faster when it is given statements in another way, so it gets ``PlainWire``, too.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    first, beyond = TESTED_VERSIONS
    if first <= numbers < beyond and implementation in ("c", "binary"):
        return LibpqWire
    return PlainWire


#: The wire of all connections of this process.
chosen: type[Wire] = choose_wire(psycopg.__version__, psycopg.pq.__impl__)
