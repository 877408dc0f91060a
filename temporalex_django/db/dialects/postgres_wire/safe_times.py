"""The reading of an answer with times that Python cannot show, such as ``infinity``.

psycopg raises for such a time, and then none of the rows of the answer can be read. Only after that error an answer is
read again by this module, so others cost nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Loader, Transformer
from psycopg.pq import Format
from psycopg.types.datetime import TimestamptzBinaryLoader

from temporalex_django.core.names import AFTER_ALL, BEFORE_ALL


class _SafeTimeLoader(Loader):
    """Reads a time; one that Python cannot show becomes ``BEFORE_ALL`` or ``AFTER_ALL``."""

    format = Format.BINARY

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        self._load = TimestamptzBinaryLoader(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            return self._load(data)
        except psycopg.DataError:
            # A time is a signed integer: the microseconds since 2000.
            return BEFORE_ALL if bytes(data)[0] & 0x80 else AFTER_ALL


def load_rows(connection: psycopg.Connection[Any], result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of ``result``, a binary answer of libpq, whatever times are in it."""
    cursor = psycopg.Cursor(connection)
    cursor.adapters.register_loader("timestamptz", _SafeTimeLoader)
    transformer = Transformer(cursor)
    transformer.set_pgresult(result, set_loaders=True, format=Format.BINARY)
    return transformer.load_rows(0, result.ntuples, tuple)
