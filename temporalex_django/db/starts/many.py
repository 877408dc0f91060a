"""Starts of many runs: one statement for the chains and one for the runs, for a thousand of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError

from temporalex_django.conf import get_settings
from temporalex_django.core.names import all_names
from temporalex_django.db.inserts import (
    NewStart,
    StartedRun,
    insert_start,
    notify_on_commit,
    open_already_error,
    subject_columns,
)
from temporalex_django.db.search_attributes import insert_search_attributes
from temporalex_django.db.sql_columns import NEW_RUN, new_run_row
from temporalex_django.db.starts.statement import SCOPED_CHAIN, SCOPED_CHAIN_INSERT
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.engine.ids import parse_run_id, token, uuid7
from temporalex_django.errors import AlreadyRunning

T = TypeVar("T")
#: The number of a start in the call, the start, and the ids of its new rows.
_Entry = tuple[int, NewStart, StartedRun]


def insert_many(starts: Sequence[NewStart], *, storage: DjangoStorage) -> list[StartedRun | AlreadyRunning]:
    """Insert the chains and the first runs of these starts, in the open transaction.

    Returns, in the order of the starts, the ids of a run, or the error if an open run has its id. Of two starts with
    the same id, the first one is inserted. It locks no row that exists. Workers are notified after the commit.

    The chains are inserted in the order of their keys, so that two callers wait for each other in one direction only.
    If another transaction that starts one of the ids does not end within ``START_LOCK_WAIT``, the runs of that
    statement are inserted one by one.
    """
    results: dict[int, StartedRun | AlreadyRunning] = {}
    # Lists are in the order of the ids, so that of the starts is kept.
    numbered = [(number, start, StartedRun(uuid7(), uuid7())) for number, start in enumerate(starts)]
    numbered.sort(key=lambda entry: entry[1].open_key or "")
    for number, start, _ in numbered:
        if _needs_checks(start):
            results[number] = _insert_alone(start, storage)
    now = storage.now()
    for chunk in _chunks((entry for entry in numbered if entry[0] not in results), policy.STARTS_TOGETHER):
        results |= _insert_chunk(chunk, now, storage)
    queues = {start.queue for start in starts}
    if queues and storage.clock is None:
        notify_on_commit(alias=storage.alias, queues=queues)
    return [results[number] for number in range(len(starts))]


def _needs_checks(start: NewStart) -> bool:
    """Return True if the start needs checks that only the insert of a single run makes.

    Its id has the form of a run id, or its class has former names under which a run with the id may be open.
    """
    return not start.generated and (parse_run_id(start.workflow_id) is not None or len(all_names(start.workflow)) > 1)


def _insert_alone(start: NewStart, storage: DjangoStorage) -> StartedRun | AlreadyRunning:
    try:
        return insert_start(start, storage=storage)
    except AlreadyRunning as exc:
        return exc


def _insert_chunk(
    chunk: Sequence[_Entry], now: datetime, storage: DjangoStorage
) -> dict[int, StartedRun | AlreadyRunning]:
    """Insert some of the runs with few statements, or one by one if that has to wait for too long.

    Returns, by the number of each start in the call, the ids of its run, or the error if an open run has its id.
    """
    wait = nullcontext() if storage.sql.writer_lock else storage.sql.lock_timeout(get_settings().START_LOCK_WAIT)
    try:
        with storage.savepoint(), wait:
            return _write_chunk(chunk, now, storage)
    except DatabaseError as exc:
        if storage.sql.writer_lock or not storage.is_transient(exc) or storage.is_interrupted(exc):
            raise
    return {number: _insert_alone(start, storage) for number, start, _ in chunk}


def _write_chunk(
    chunk: Sequence[_Entry], now: datetime, storage: DjangoStorage
) -> dict[int, StartedRun | AlreadyRunning]:
    storage.sql.write(
        SCOPED_CHAIN.columns,
        SCOPED_CHAIN_INSERT,
        [
            (*ids, s.queue, s.due_at(now), s.deadline(now), s.open_key, s.scope, s.workflow_id, s.workflow)
            for _, s, ids in chunk
        ],
    )
    inserted = _existing_chains([ids.chain_id for _, _, ids in chunk], storage)
    rows = [_run_row(start, ids, now, storage.alias) for _, start, ids in chunk if ids.chain_id in inserted]
    storage.sql.write(NEW_RUN.columns, NEW_RUN.insert, rows)
    insert_search_attributes(
        storage.sql,
        [(i.run_id, s.search_attributes) for _, s, i in chunk if s.search_attributes and i.chain_id in inserted],
    )
    return {number: ids if ids.chain_id in inserted else open_already_error(start) for number, start, ids in chunk}


def _existing_chains(chains: Sequence[UUID], storage: DjangoStorage) -> set[UUID]:
    """Return the ids among ``chains`` for which there is a row: those that an insert did not skip as a conflict."""
    test, parameter = storage.sql.in_array(chains, "uuid")
    rows = storage.sql.select(f"select id from temporalex_chain where id {test}", [parameter], ("uuid",))
    return {row[0] for row in rows}


def _run_row(start: NewStart, ids: StartedRun, now: datetime, alias: str) -> Sequence[Any]:
    extra = {
        "seed": token() if start.seed is None else start.seed,
        "created_at": now,
        "starts_at": start.starts_at(now),
        "expires_at": start.expires_at(now),
        **subject_columns(start, alias),
    }
    return new_run_row(start, *ids, extra)


def _chunks(entries: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(entries)
    while chunk := [*islice(iterator, size)]:
        yield chunk
