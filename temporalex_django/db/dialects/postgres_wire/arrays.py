"""Arrays in PostgreSQL's binary format, encoded by this module in place of psycopg.

psycopg inspects every element to find its type, but here the type is known. For many rows the inspection takes a tenth
of a worker's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_NULL = b"\xff\xff\xff\xff"
_HEADER = Struct(">iiIii").pack  # dimensions, has nulls, element type, length, lower bound
_LENGTH = Struct(">i").pack
_INT4 = Struct(">ii").pack
_INT8 = Struct(">iq").pack
_FLOAT8 = Struct(">id").pack


def _uuids(values: Iterable[UUID | None]) -> list[bytes]:
    return [_NULL if v is None else b"\0\0\0\x10" + v.bytes for v in values]


def _int4s(values: Iterable[int | None]) -> list[bytes]:
    return [_NULL if v is None else _INT4(4, v) for v in values]


def _int8s(values: Iterable[int | None]) -> list[bytes]:
    return [_NULL if v is None else _INT8(8, v) for v in values]


def _floats(values: Iterable[float | None]) -> list[bytes]:
    return [_NULL if v is None else _FLOAT8(8, v) for v in values]


def _bools(values: Iterable[bool | None]) -> list[bytes]:
    return [_NULL if v is None else (b"\0\0\0\1\1" if v else b"\0\0\0\1\0") for v in values]


def _bytes(values: Iterable[bytes | None]) -> list[bytes]:
    return [_NULL if v is None else _LENGTH(len(v)) + v for v in values]


def _texts(values: Iterable[str | None]) -> list[bytes]:
    return _bytes(None if v is None else v.encode() for v in values)


def _jsons(values: Iterable[str | None]) -> list[bytes]:
    return _bytes(None if v is None else b"\1" + v.encode() for v in values)


def _times(values: Iterable[datetime | None]) -> list[bytes]:
    # A turn writes the same moment again and again, as one object. A lookup by hash would take longer than encoding it.
    last, part, parts = None, _NULL, []
    for v in values:
        if v is not last:
            if v is None:
                part = _NULL
            else:
                since = v - _EPOCH
                part = _INT8(8, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
            last = v
        parts.append(part)
    return parts


#: By PostgreSQL type: object ids of the element and of the array, and the encoder.
_KINDS: dict[str, tuple[int, int, Callable[[Iterable[Any]], list[bytes]]]] = {
    "uuid": (2950, 2951, _uuids),
    "int4": (23, 1007, _int4s),
    "int8": (20, 1016, _int8s),
    "float8": (701, 1022, _floats),
    "bool": (16, 1000, _bools),
    "bytea": (17, 1001, _bytes),
    "text": (25, 1009, _texts),
    "jsonb": (3802, 3807, _jsons),
    "timestamptz": (1184, 1185, _times),
}


class _Array(bytes):
    """The bytes of an array that is encoded for PostgreSQL.

    Each element type has a subclass, by which psycopg finds the object that sends it.
    """


_CLASSES: dict[str, type[_Array]] = {kind: type(f"_Array_{kind}", (_Array,), {}) for kind in _KINDS}


def encode_array(values: Sequence[Any], kind: str) -> bytes:
    """Encode values as a parameter of the PostgreSQL type ``kind[]``; ``kind`` is the name of the element's type.

    The connection that sends it must be one that ``register`` has set up.
    """
    element, _, encode = _KINDS[kind]
    parts = encode(values)
    return _CLASSES[kind](_HEADER(1, 1, element, len(parts), 1) + b"".join(parts))


def register(connection: Connection[Any]) -> None:
    """Let a connection send the results of ``encode_array`` as parameters."""
    for kind, cls in _CLASSES.items():
        connection.adapters.register_dumper(cls, _DUMPERS[kind])


class _ArrayDumper(Dumper):
    """Passes arrays that are encoded already to psycopg, which asks a dumper for the bytes of each parameter."""

    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return bytes(obj)


_DUMPERS = {kind: type(f"_Dumper_{kind}", (_ArrayDumper,), {"oid": oid}) for kind, (_, oid, _e) in _KINDS.items()}
