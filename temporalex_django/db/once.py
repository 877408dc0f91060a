"""``once(key)``: work in your database that takes effect once, however often its activity is repeated.

The work, its result and a row with the key commit together. A repeat finds the row. Of two at a time, the second waits
for the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from temporalex_django.authoring.activity_context import activity_context
from temporalex_django.conf import codec
from temporalex_django.core.names import MAX_LENGTH
from temporalex_django.core.payloads.round_trip import encode_lossless

if TYPE_CHECKING:
    from temporalex_django.db.storage import DjangoStorage


_OWN: Final = "own:"  # prefix of the keys of projects
_ATOMIC: Final = "atomic:"  # prefix of the keys of atomic activities


class OnceBlock:
    """The work of one key. ``is_first`` is True if it is still to be done, and ``result`` is its result.

    Set ``result`` to plain data, which a repeat gets.
    """

    def __init__(self, *, is_first: bool, result: Any = None) -> None:
        self.is_first = is_first
        self.result = result


@contextmanager
def once(key: str) -> Iterator[OnceBlock]:
    """Return a context manager for work in the database that is done once for ``key``, of 1 to 200 characters.

    Use it in an activity. The block runs in a transaction of the alias ``TEMPORALEX["DATABASE"]``, or in a savepoint if
    one is open. Its value is a ``OnceBlock``. If ``is_first`` is True, do the work and set ``result`` to plain data.
    Otherwise the work is done, and ``result`` is its result. An exception rolls back the work and the row of the key,
    so the next attempt does the work.

    The row is deleted with the run of the activity. Raises ``OutsideWorkflow`` outside of an activity, ``ValueError``
    for an invalid key, and ``PayloadError`` for a result that cannot be stored.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_LENGTH:
        raise ValueError(f"once: the key must be a text of 1 to {MAX_LENGTH} characters, not {key!r:.60}")
    context = activity_context()
    # The tables are imported here: `from temporalex_django import *` has to work before Django is set up.
    from temporalex_django.db.storage import DjangoStorage  # noqa: PLC0415 - as above

    run_id = UUID(context._owner or context.run_id)  # noqa: SLF001 - of no interest to activities
    with _done_once(f"{_OWN}{key}", run_id, DjangoStorage()) as block:
        yield block


@contextmanager
def atomic_once(key: str, run_id: UUID, storage: DjangoStorage) -> Iterator[OnceBlock]:
    """Return the context manager in which an atomic activity of a run on a Temporal cluster runs.

    ``key`` is the idempotency key of the activity: its writes and its result are stored once for it.
    """
    with _done_once(f"{_ATOMIC}{key}", run_id, storage) as block:
        yield block


@contextmanager
def _done_once(key: str, run_id: UUID, storage: DjangoStorage) -> Iterator[OnceBlock]:
    from temporalex_django.db.sql_columns import DONE_ONCE  # noqa: PLC0415 - as in `once`
    from temporalex_django.models import DoneOnce  # noqa: PLC0415 - as in `once`

    with storage.transaction("once"):
        new = DONE_ONCE.pick_columns("key", "run_id", "created_at")
        # Inserted before the work: another attempt that comes meanwhile waits here for the end of this transaction.
        inserted = storage.sql.execute(
            new.insert_parameters(storage.sql.placeholder, "on conflict do nothing"),
            new.encode_row((key, run_id, storage.now())),
        )
        rows = DoneOnce.objects.using(storage.alias).filter(pk=key)
        if not inserted:
            encoded = rows.values_list("result", flat=True).get()
            yield OnceBlock(is_first=False, result=None if encoded is None else codec().decode(bytes(encoded)))
            return
        block = OnceBlock(is_first=True)
        yield block
        if block.result is not None:
            encoded = codec().encode(encode_lossless(block.result, label="the result of once()"))
            rows.update(result=encoded)
