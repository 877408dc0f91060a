"""The provider's ledger: every call, and at most one charge for each key."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = """
create table if not exists call (
    id integer primary key, operation text not null, key text not null, reference text not null, number integer not null,
    outcome text not null default 'lost');
create index if not exists call_key on call (key);
create table if not exists booking (
    key text primary key, call_id integer not null references call (id), operation text not null, reference text not null,
    cents integer not null);
create index if not exists booking_call on booking (call_id);
"""


class KeyConflict(Exception):
    """A key was used again for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A charge or a refund of so many cents, under an idempotency key."""

    operation: str
    key: str
    reference: str
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call in the ledger; ``number`` counts the calls of its key from 1."""

    id: int
    number: int


class Ledger:
    """A SQLite file behind one lock: the provider is small, and its numbers must be exact."""

    def __init__(self, file: Path | str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.executescript("pragma journal_mode=wal; pragma synchronous=normal;" + SCHEMA)

    def open_call(self, request: Request) -> Call:
        """Record a call before anything can go wrong with it."""
        with self._lock, self._connection as db:
            (earlier,) = db.execute("select count(*) from call where key = ?", [request.key]).fetchone()
            cursor = db.execute(
                "insert into call (operation, key, reference, number) values (?, ?, ?, ?)",
                [request.operation, request.key, request.reference, earlier + 1],
            )
            return Call(id=int(cursor.lastrowid or 0), number=earlier + 1)

    def book(self, call: Call, *, request: Request) -> tuple[int, bool]:
        """Book a request once for its key, and return the number of the booking and whether it existed before.

        Raises ``KeyConflict`` if the key was used for another amount or purpose.
        """
        wanted = (request.operation, request.reference, request.cents)
        with self._lock, self._connection as db:
            columns = "select operation, reference, cents, call_id from booking where key = ?"
            found = db.execute(columns, [request.key]).fetchone()
            if found is None:
                db.execute("insert into booking values (?, ?, ?, ?, ?)", [request.key, call.id, *wanted])
                return call.id, False
        if tuple(found[:3]) != wanted:
            message = f"key {request.key} was already used for a {found[0]} of {found[2]} cents for {found[1]}"
            raise KeyConflict(message)
        return int(found[3]), True

    def close_call(self, call: Call, *, outcome: str) -> None:
        """Record how the call was answered."""
        with self._lock, self._connection as db:
            db.execute("update call set outcome = ? where id = ?", [outcome, call.id])

    def report(self, *, after: int = 0, without: str = "-") -> dict[str, Any]:
        """Count calls and bookings after call number ``after``.

        References that begin with ``without`` are left out.

        ``repeats`` are calls whose key had been called before; ``doubles`` are purchases that were charged under two
        keys.
        """
        values = {"after": after, "without": without}
        calls = "from call where id > :after and substr(reference, 1, length(:without)) <> :without"
        booked = (
            "from booking where call_id > :after and substr(reference, 1, length(:without)) <> :without and operation"
        )
        with self._lock, self._connection as db:

            def number(statement: str) -> int:
                return int(db.execute(statement, values).fetchone()[0] or 0)

            outcomes = db.execute(f"select outcome, count(*) {calls} group by outcome order by outcome", values)
            return {
                "last": number("select max(id) from call"),
                "calls": number(f"select count(*) {calls}"),
                "repeats": number(f"select count(*) {calls} and number > 1"),
                "charges": number(f"select count(*) {booked} = 'charge'"),
                "cents": number(f"select sum(cents) {booked} = 'charge'"),
                "doubles": number(f"select count(*) - count(distinct reference) {booked} = 'charge'"),
                "refunds": number(f"select count(*) {booked} = 'refund'"),
                "outcomes": dict(outcomes.fetchall()),
            }

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
